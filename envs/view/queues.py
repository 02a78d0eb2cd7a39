"""The router's own queues: requests routed to an instance and held back, by orders in HOLD."""

import numpy as np

from prefixgym.envs.clock import NEVER, TICKS_PER_SECOND
from prefixgym.envs.cluster.state import HELD, NONE, ClusterArrays
from prefixgym.envs.jit import cold_kernel, kernel
from prefixgym.envs.view.arrays import ViewArrays, router_row
from prefixgym.envs.view.view import MOST_BATCHES


@kernel
def leaves_at_once(v: ViewArrays, w: int, i: int, now: int) -> bool:
    """Whether a request routed to instance i now need not be queued, if no other one is."""
    return v.holds[w, i].most_batches == 0 and _release(v, w, i) <= now


@kernel
def hold_back(c: ClusterArrays, v: ViewArrays, e: int, w: int, i: int, q: int) -> None:
    """Flight q, routed to instance i just now, joins router w's queue for it."""
    queue, row = v.queues[w, i], v.instances[w, i]
    c.flights[e, q].next = NONE
    c.flights[e, q].place = HELD
    if row.held == 0:
        queue.head = q
        row.held_since = v.requests[e].time
    else:
        c.flights[e, queue.tail].next = q
    queue.tail = q
    row.held += 1


@kernel
def release_first(c: ClusterArrays, v: ViewArrays, e: int, w: int, i: int) -> int:
    """Take the first flight out of the queue for instance i."""
    queue = v.queues[w, i]
    q = queue.head
    queue.head = c.flights[e, q].next
    _count_out(v, e, w, i)
    return q


@cold_kernel
def take_out(c: ClusterArrays, v: ViewArrays, e: int, w: int, i: int, q: int) -> None:
    """Take flight q, whose client has gone, out of the queue for instance i."""
    queue = v.queues[w, i]
    before, other = NONE, queue.head
    while other != q:
        before, other = other, c.flights[e, other].next
    if before == NONE:
        queue.head = c.flights[e, q].next
    else:
        c.flights[e, before].next = c.flights[e, q].next
    if queue.tail == q:
        queue.tail = before
    _count_out(v, e, w, i)


@kernel
def _count_out(v: ViewArrays, e: int, w: int, i: int) -> None:
    row = v.instances[w, i]
    row.held -= 1
    row.held_since = 0.0
    if row.held > 0:
        row.held_since = v.bookings[e, v.queues[w, i].head].routed / TICKS_PER_SECOND


@kernel
def _release(v: ViewArrays, w: int, i: int) -> int:
    """Tick from which instance i's queue may leave, NEVER if that is too far off."""
    ticks = np.rint(v.holds[w, i].release * TICKS_PER_SECOND)
    return int(ticks) if ticks < NEVER else NEVER


@kernel
def departure(v: ViewArrays, w: int, i: int) -> int:
    """Tick from which the next batch for instance i may leave; NEVER: none, or not yet known."""
    limit = v.holds[w, i].most_batches
    if v.instances[w, i].held == 0:
        return NEVER
    if limit > 0:
        for k in range(MOST_BATCHES):
            limit -= v.batches[w, i, k] > 0
        if limit <= 0:
            return NEVER
    return _release(v, w, i)


@kernel
def first_departure(v: ViewArrays, e: int) -> int:
    """The first `departure` from any router of environment e to any instance."""
    first = NEVER
    for replica in range(v.settings[0].replicas):
        for i in range(v.instances.shape[1]):
            first = min(first, departure(v, router_row(v, e, replica), i))
    return first


@kernel
def open_batch(v: ViewArrays, w: int, i: int) -> int:
    """A place in `batches` for a batch that leaves; NONE if nobody counts, or all are taken."""
    if v.holds[w, i].most_batches > 0:
        for k in range(MOST_BATCHES):
            if v.batches[w, i, k] == 0:
                return k
    return NONE


@kernel
def join_batch(v: ViewArrays, e: int, w: int, i: int, q: int, batch: int) -> None:
    """Flight q leaves for instance i as a member of `batch`."""
    v.bookings[e, q].batch = batch
    if batch != NONE:
        v.batches[w, i, batch] += 1


@kernel
def reset_queues(v: ViewArrays, w: int) -> None:
    """Nothing held, no orders."""
    for i in range(v.instances.shape[1]):
        v.instances[w, i].held = 0
        v.instances[w, i].held_since = 0.0
        v.holds[w, i].release = 0.0
        v.holds[w, i].size = 0
        v.holds[w, i].most_batches = 0
        for k in range(MOST_BATCHES):
            v.batches[w, i, k] = 0
