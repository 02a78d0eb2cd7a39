"""The moment of a decision: the request in hand, held against what is known of every instance."""

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.block_index import prefix_depths
from prefixgym.envs.cluster.state import DOWN, ClusterArrays, settings_row
from prefixgym.envs.cluster.step_time import prefill_ticks
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.rng import uniform
from prefixgym.envs.view.arrays import REPLICA_KEY, ViewArrays, router_row
from prefixgym.envs.view.queues import reset_queues
from prefixgym.envs.view.reports import poll, reset_reports
from prefixgym.envs.view.sources import reset_sources


@kernel
def replica_of(v: ViewArrays, decision: int) -> int:
    """Which router gets the request of this decision."""
    if v.shares.size == 1:
        return 0
    number, replica = uniform(REPLICA_KEY, decision), 0
    while replica < v.shares.size - 1 and v.shares[replica] <= number:
        replica += 1
    return replica


@kernel
def booked_prefill(c: ClusterArrays, v: ViewArrays, e: int, w: int, i: int) -> int:
    """Ticks that the current request's prefill would take on instance i, alone.

    As far as router w knows, and at the instance's nominal speed.
    """
    prompt, hit = v.requests[e].prompt_tokens, v.instances[w, i].hit_tokens
    row = settings_row(c, e)
    limits = c.limits[row, i]
    return prefill_ticks(c.nominal[row, i], prompt - hit, hit, limits.max_batched_tokens)


@kernel
def present_request(c: ClusterArrays, v: ViewArrays, e: int) -> None:
    """Fill in, for every instance, what a router knows about the current request there.

    An index that is made of messages is asked later, by `prefixgym.envs.knowing`.
    """
    if v.settings[0].indexed:
        v.unpresented[e] = 1
        return
    prefix_depths(c, e, v.block_ids[e], reusable_blocks(c, v, e), v.depths[e])
    fill_in(c, v, e)


@kernel
def reusable_blocks(c: ClusterArrays, v: ViewArrays, e: int) -> int:
    """Blocks of the current prompt that can be hits: an engine computes at least one token."""
    request = v.requests[e]
    return min(request.num_blocks, (request.prompt_tokens - 1) // c.limits[0, 0].block_size)


@kernel
def fill_in(c: ClusterArrays, v: ViewArrays, e: int) -> None:
    """The same, once `depths` are known."""
    replica, block_size = v.requests[e].replica, c.limits[0, 0].block_size
    w = router_row(v, e, replica)
    for i in range(v.instances.shape[1]):
        if c.limits[settings_row(c, e), i].num_blocks == 0:
            continue  # there is no such instance
        known = v.instances[w, i]
        known.hit_tokens = v.depths[e, i] * block_size
        known.prefill_seconds = booked_prefill(c, v, e, w, i) / TICKS_PER_SECOND
        if v.settings[0].poll == 0:
            poll(c, v, e, w, i)
    if v.settings[0].replicas > 1:
        _show(v, e, replica)


@kernel
def _show(v: ViewArrays, e: int, replica: int) -> None:
    """Show what a router knows, with what the others told it."""
    w = router_row(v, e, replica)
    for i in range(v.instances.shape[1]):
        v.shown_instances[e, i] = v.instances[w, i]
        v.shown_holds[e, i] = v.holds[w, i]
        if v.settings[0].load_sync > 0:
            _add_others(v, e, w, i)
    v.num_shown[e] = v.num_events[w]
    for k in range(v.num_events[w]):
        v.shown_events[e, k] = v.events[w, k]


@kernel
def _add_others(v: ViewArrays, e: int, w: int, i: int) -> None:
    shown, backlog = v.shown_instances[e, i], v.sources[w, i].backlog
    for replica in range(v.settings[0].replicas):
        other = router_row(v, e, replica)
        if other != w:
            told = v.board[other, i]
            shown.requests += told.requests
            shown.prefill_requests += told.prefill_requests
            shown.prefill_tokens += told.prefill_tokens
            shown.context_tokens += told.context_tokens
            backlog += told.backlog
    shown.backlog_seconds = backlog / TICKS_PER_SECOND


@kernel
def begin_decision(v: ViewArrays, e: int, replica: int) -> None:
    """The router has decided: its orders hold, and what it was shown has been heard."""
    w = router_row(v, e, replica)
    v.num_events[w] = 0
    if v.settings[0].replicas > 1:
        v.num_shown[e] = 0
        for i in range(v.holds.shape[1]):
            v.holds[w, i] = v.shown_holds[e, i]


@kernel
def forget_events(v: ViewArrays, e: int) -> None:
    """An episode is over: what was shown last was shown once."""
    v.num_shown[e] = 0


@kernel
def reset_view(c: ClusterArrays, v: ViewArrays, e: int) -> None:
    """Nothing in flight, nothing known but which instances are there."""
    for replica in range(v.settings[0].replicas):
        w = router_row(v, e, replica)
        for i in range(v.instances.shape[1]):
            _reset_instance(v.instances[w, i])
            there = c.limits[settings_row(c, e), i].num_blocks > 0
            v.forgotten[w, i] = 0
            v.instances[w, i].available = there and c.instances[e, i].phase != DOWN
        v.num_events[w] = 0
        v.remembered[w] = 0
        reset_queues(v, w)
    v.num_shown[e] = 0
    v.unpresented[e] = 0
    v.requests[e].index = 0
    v.requests[e].time = 0.0
    v.requests[e].gap = 0.0
    reset_reports(v, e)
    reset_sources(v, e)


@kernel
def _reset_instance(row: Record) -> None:
    row.hit_tokens = 0
    row.prefill_seconds = 0.0
    row.requests = 0
    row.prefill_requests = 0
    row.prefill_tokens = 0
    row.backlog_seconds = 0.0
    row.context_tokens = 0
    row.waiting = 0
    row.running = 0
    row.kv_usage = 0.0
    row.waiting_tokens = 0
    row.prefilling_tokens = 0
    row.throughput = 0.0
    row.recent_prefill_seconds = 0.0
    row.recent_booked_seconds = 0.0
    row.recent_wait_seconds = 0.0
    row.recent_tokens = 0.0
    row.recent_decode_seconds = 0.0
