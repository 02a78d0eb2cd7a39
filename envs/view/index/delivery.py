"""Messages under way from one instance to one router: late, lost, doubled, out of order.

For every row and instance a binary heap by arrival. What happens to a message is drawn from the
row's key and the message's number among all that the instance sent to this router, so it does not
depend on what else is under way.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER
from prefixgym.envs.jit import Record, cold_kernel, kernel
from prefixgym.envs.rng import uniform
from prefixgym.envs.view.index.arrays import IndexArrays

# Kinds of messages. A question is under way to the instance, all others to the router.
BATCH, SNAPSHOT, QUESTION, REPLAY, DUMP, NO_ANSWER = range(6)

_DRAWS = 4  # loss, jitter, duplication, jitter of the second copy


@kernel
def next_arrival(heap: NDArray[np.void], line: Record) -> int:
    """Ticks of the first arrival, NEVER if nothing is under way."""
    return heap[0].arrival if line.under_way > 0 else NEVER


@kernel
def _is_before(first: Record, second: Record) -> bool:
    if first.arrival != second.arrival:
        return first.arrival < second.arrival
    return first.order < second.order


@kernel
def _swap(heap: NDArray[np.void], a: int, b: int) -> None:
    # The last place is never in use here, see `put_under_way`.
    spare = heap.size - 1
    heap[spare] = heap[a]
    heap[a] = heap[b]
    heap[b] = heap[spare]


@cold_kernel
def put_under_way(
    heap: NDArray[np.void],
    line: Record,
    control: Record,
    arrival: int,
    kind: int,
    number: int,
    start: int,
    count: int,
    epoch: int,
) -> bool:
    """Put a message on the way between an instance and a router.

    Args:
        heap: `under_way` of the two, MESSAGE [Q].
        line: their LINE.
        control: CONTROL of the router.
        arrival: ticks.
        kind: see above.
        number: see MESSAGE, as the rest.
        start: see MESSAGE.
        count: see MESSAGE.
        epoch: of the instance.

    Returns:
        False if there is no room for it.
    """
    if line.under_way >= heap.size - 1:
        control.refused += 1
        return False
    at = line.under_way
    line.under_way += 1
    message = heap[at]
    message.arrival = arrival
    message.order = line.order
    line.order += 1
    message.kind = kind
    message.number = number
    message.start = start
    message.count = count
    message.epoch = epoch
    while at > 0 and _is_before(heap[at], heap[(at - 1) // 2]):
        _swap(heap, at, (at - 1) // 2)
        at = (at - 1) // 2
    return True


@cold_kernel
def take_first(heap: NDArray[np.void], line: Record) -> int:
    """Take the first message off the heap; its place, where it stays until the next is put there.

    There must be one.
    """
    line.under_way -= 1
    last = line.under_way
    if last > 0:
        _swap(heap, 0, last)
    at = 0
    while 2 * at + 1 < last:
        child = 2 * at + 1
        if child + 1 < last and _is_before(heap[child + 1], heap[child]):
            child += 1
        if not _is_before(heap[child], heap[at]):
            break
        _swap(heap, at, child)
        at = child
    return last


@cold_kernel
def send(
    x: IndexArrays,
    w: int,
    i: int,
    time: int,
    kind: int,
    number: int,
    start: int,
    count: int,
) -> None:
    """Instance i sends a message at tick `time`, which may never come, or twice."""
    config, control, line = x.config[0], x.control[w], x.lines[w, i]
    heap, key = x.under_way[w, i], x.keys[w]
    draw = _DRAWS * (line.serial * x.lines.shape[1] + i)
    line.serial += 1
    control.messages += 1
    if config.loss > 0 and uniform(key, draw) < config.loss:
        control.lost += 1
        return
    copies = 1
    if config.duplication > 0 and uniform(key, draw + 2) < config.duplication:
        control.duplicates += 1
        copies = 2
    for copy in range(copies):
        arrival = time + config.delay
        if config.jitter > 0:
            arrival += int(uniform(key, draw + 1 + 2 * copy) * config.jitter)
        put_under_way(heap, line, control, arrival, kind, number, start, count, line.epoch)
