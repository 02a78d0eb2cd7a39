"""The moment of a decision: the request in hand, held against what is known of every instance."""

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.block_index import prefix_depths
from prefixgym.envs.cluster.state import ClusterArrays, settings_row
from prefixgym.envs.cluster.step_time import prefill_ticks
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.arrays import ViewArrays
from prefixgym.envs.view.queues import reset_queues
from prefixgym.envs.view.reports import poll, reset_reports


@kernel
def booked_prefill(c: ClusterArrays, v: ViewArrays, e: int, i: int) -> int:
    """Ticks that the current request's prefill would take on instance i, alone."""
    prompt, hit = v.requests[e].prompt_tokens, v.instances[e, i].hit_tokens
    row = settings_row(c, e)
    return prefill_ticks(c.cost[row, i], prompt - hit, hit, c.limits[row, i].max_batched_tokens)


@kernel
def present_request(c: ClusterArrays, v: ViewArrays, e: int) -> None:
    """Fill in, for every instance, what the router knows about the current request there."""
    request, block_size = v.requests[e], c.limits[0, 0].block_size
    # An engine computes at least one token, so the block with the last one is never a hit.
    reusable = min(request.num_blocks, (request.prompt_tokens - 1) // block_size)
    stale = v.intervals[0].report > 0
    prefix_depths(c, e, v.block_ids[e], reusable, stale, v.depths[e])
    for i in range(v.instances.shape[1]):
        row = v.instances[e, i]
        if not row.available:
            continue
        row.hit_tokens = v.depths[e, i] * block_size
        row.prefill_seconds = booked_prefill(c, v, e, i) / TICKS_PER_SECOND
        if v.intervals[0].poll == 0:
            poll(c, v, e, i)


@kernel
def reset_view(c: ClusterArrays, v: ViewArrays, e: int) -> None:
    """Nothing in flight, nothing known but which instances are there."""
    for i in range(v.instances.shape[1]):
        row = v.instances[e, i]
        row.available = c.limits[settings_row(c, e), i].num_blocks > 0
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
    v.num_events[e] = 0
    v.requests[e].index = 0
    v.requests[e].time = 0.0
    v.requests[e].gap = 0.0
    reset_reports(v, e)
    reset_queues(v, e)
