"""A FlexLB batcher's queue for one worker, and its batches' departure.

The simulator lets a batch go as the orders in `View.holds` say; here the router keeps the same
queue, and the requests that it hears leaving at one instant form the batch.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §1.5, §1.7; FlexLB `WorkerBatcher`,
`BatcherContext`.
"""

from prefixgym.baselines.flexlb.books import NONE, QUEUED, Books, clock_ms
from prefixgym.baselines.flexlb.ledger import join_entry, open_entry
from prefixgym.envs.jit import kernel

_INTERVAL_WEIGHT = 0.3


@kernel
def enqueue(b: Books, e: int, q: int) -> None:
    """Request q joins the queue of the worker that it was routed to."""
    member = b.members[e, q]
    endpoint = b.endpoints[e, member.instance]
    member.state = QUEUED
    member.next = NONE
    if endpoint.queued == 0:
        endpoint.first_queued = q
    else:
        b.members[e, endpoint.last_queued].next = q
    endpoint.last_queued = q
    endpoint.queued += 1


@kernel
def unqueue(b: Books, e: int, q: int) -> None:
    """Request q leaves the queue that it is in."""
    endpoint = b.endpoints[e, b.members[e, q].instance]
    before, k = NONE, endpoint.first_queued
    while k != q:
        before, k = k, b.members[e, k].next
    following = b.members[e, q].next
    if before == NONE:
        endpoint.first_queued = following
    else:
        b.members[e, before].next = following
    if following == NONE:
        endpoint.last_queued = before
    endpoint.queued -= 1


@kernel
def dispatch(b: Books, predictor: int, e: int, q: int, time: float) -> None:
    """Request q, which is queued, leaves the router at `time` (s).

    It joins the batch that is leaving at that instant, if that has room, else it is the first of a
    new one.
    """
    i = b.members[e, q].instance
    endpoint = b.endpoints[e, i]
    unqueue(b, e, q)
    k = endpoint.open_entry
    if k == NONE or endpoint.open_time != time or b.entries[e, k].members >= endpoint.batch_limit:
        k = open_entry(b, e, i, clock_ms(time))
        endpoint.open_entry = k
        endpoint.open_time = time
        _note_interval(b, e, i, clock_ms(time))
    join_entry(b, predictor, e, k, q)


@kernel
def _note_interval(b: Books, e: int, i: int, now: int) -> None:
    """A batch leaves at ms `now`: average the gaps with weight 0.3 for the latest."""
    endpoint = b.endpoints[e, i]
    gap = now - endpoint.last_dispatch
    if endpoint.last_dispatch != NONE and gap > 0:
        if endpoint.dispatch_interval <= 0.0:
            endpoint.dispatch_interval = gap
        else:
            endpoint.dispatch_interval += _INTERVAL_WEIGHT * (gap - endpoint.dispatch_interval)
    endpoint.last_dispatch = now
