"""The router's own queues: requests routed to an instance and held back, by orders in HOLD."""

import numpy as np

from prefixgym.envs.clock import NEVER, TICKS_PER_SECOND
from prefixgym.envs.cluster.state import NONE, ClusterArrays
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.arrays import ViewArrays
from prefixgym.envs.view.view import MOST_BATCHES


@kernel
def leaves_at_once(v: ViewArrays, e: int, i: int, now: int) -> bool:
    """Whether a request routed to instance i now need not be queued, if no other one is."""
    return v.holds[e, i].most_batches == 0 and _release(v, e, i) <= now


@kernel
def hold_back(c: ClusterArrays, v: ViewArrays, e: int, i: int, q: int) -> None:
    """Flight q, routed to instance i just now, joins the router's queue for it."""
    queue, row = v.queues[e, i], v.instances[e, i]
    c.flights[e, q].next = NONE
    if row.held == 0:
        queue.head = q
        row.held_since = v.requests[e].time
    else:
        c.flights[e, queue.tail].next = q
    queue.tail = q
    row.held += 1


@kernel
def let_go(c: ClusterArrays, v: ViewArrays, e: int, i: int) -> int:
    """Take the first flight out of the queue for instance i."""
    queue, row = v.queues[e, i], v.instances[e, i]
    q = queue.head
    queue.head = c.flights[e, q].next
    row.held -= 1
    row.held_since = 0.0
    if row.held > 0:
        row.held_since = c.flights[e, queue.head].arrival / TICKS_PER_SECOND
    return q


@kernel
def _release(v: ViewArrays, e: int, i: int) -> int:
    """Tick from which instance i's queue may leave, NEVER if that is too far off."""
    ticks = np.rint(v.holds[e, i].release * TICKS_PER_SECOND)
    return int(ticks) if ticks < NEVER else NEVER


@kernel
def departure(v: ViewArrays, e: int, i: int) -> int:
    """Tick from which the next batch for instance i may leave; NEVER: none, or not yet known."""
    limit = v.holds[e, i].most_batches
    if v.instances[e, i].held == 0:
        return NEVER
    if limit > 0:
        for k in range(MOST_BATCHES):
            limit -= v.batches[e, i, k] > 0
        if limit <= 0:
            return NEVER
    return _release(v, e, i)


@kernel
def first_departure(v: ViewArrays, e: int) -> int:
    """The first `departure` of any instance."""
    first = NEVER
    for i in range(v.instances.shape[1]):
        first = min(first, departure(v, e, i))
    return first


@kernel
def open_batch(v: ViewArrays, e: int, i: int) -> int:
    """A place in `batches` for a batch that leaves; NONE if nobody counts, or all are taken."""
    if v.holds[e, i].most_batches > 0:
        for k in range(MOST_BATCHES):
            if v.batches[e, i, k] == 0:
                return k
    return NONE


@kernel
def join_batch(v: ViewArrays, e: int, i: int, q: int, batch: int) -> None:
    """Flight q leaves for instance i as a member of `batch`."""
    v.bookings[e, q].batch = batch
    if batch != NONE:
        v.batches[e, i, batch] += 1


@kernel
def reset_queues(v: ViewArrays, e: int) -> None:
    """Nothing held, no orders."""
    for i in range(v.instances.shape[1]):
        v.instances[e, i].held = 0
        v.instances[e, i].held_since = 0.0
        v.holds[e, i].release = 0.0
        v.holds[e, i].size = 0
        v.holds[e, i].most_batches = 0
        for k in range(MOST_BATCHES):
            v.batches[e, i, k] = 0
