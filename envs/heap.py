"""Things that are due at a known time: a binary heap, ordered by (time, order)."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER
from prefixgym.envs.jit import kernel

DUE = np.dtype(
    [
        ("time", np.int64),  # ticks
        ("order", np.int64),  # among those of equal time
        ("check", np.int64),  # what tells whether it still matters
        ("kind", np.int32),
        ("index", np.int32),  # of what it is about
    ],
    align=True,
)


@kernel
def _precedes(heap: NDArray[np.void], a: int, b: int) -> bool:
    if heap[a].time != heap[b].time:
        return heap[a].time < heap[b].time
    return heap[a].order < heap[b].order


@kernel
def _swap(heap: NDArray[np.void], a: int, b: int) -> None:
    x, y = heap[a], heap[b]
    x.time, y.time = y.time, x.time
    x.order, y.order = y.order, x.order
    x.check, y.check = y.check, x.check
    x.kind, y.kind = y.kind, x.kind
    x.index, y.index = y.index, x.index


@kernel
def _rise(heap: NDArray[np.void], position: int) -> None:
    while position > 0 and _precedes(heap, position, (position - 1) // 2):
        _swap(heap, position, (position - 1) // 2)
        position = (position - 1) // 2


@kernel
def push(
    heap: NDArray[np.void], size: int, time: int, order: int, kind: int, index: int, check: int
) -> None:
    """Add a record to a heap of `size` records."""
    new = heap[size]
    new.time = time
    new.order = order
    new.check = check
    new.kind = kind
    new.index = index
    _rise(heap, size)


@kernel
def remove(heap: NDArray[np.void], size: int, position: int) -> None:
    """Take the record at `position` out of a heap of `size` records; it is at its end then."""
    last = size - 1
    _swap(heap, position, last)
    _rise(heap, position)
    while True:
        smallest = position
        for child in (2 * position + 1, 2 * position + 2):
            if child < last and _precedes(heap, child, smallest):
                smallest = child
        if smallest == position:
            return
        _swap(heap, position, smallest)
        position = smallest


@kernel
def first_time(heap: NDArray[np.void], size: int) -> int:
    """When the first record is due; NEVER if there is none."""
    return heap[0].time if size > 0 else NEVER
