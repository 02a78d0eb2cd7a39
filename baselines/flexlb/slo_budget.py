"""FlexLB's other batcher, `slo_budget`: wait for more requests while the first can afford it.

A request's latest start is its arrival + max(0, slo - T̂ - T_inflight); the budget at any moment is
the time left until the earliest one in the queue. Of the requests behind the head those join whose
batch is predicted to take at most T̂_head + max(0, budget - guard). A batch leaves

- with `flexlb_batch_size_max` members,
- when the budget is at most min(emergency, guard + T̂_batch - T̂_head),
- once the budget is within the window, as soon as waiting for the next arrival is not worth it: it
  would come too late, or the batch has the size that can be expected.

FlexLB's loop looks every millisecond; here the same tests are made for each coming millisecond at
every arrival, and the first that holds is the time of departure.

What differs: requests leave in order of arrival, so a batch is the longest run from the queue's
front that the rule lets in, where FlexLB sorts by latest start and skips what does not fit; what
stays behind leaves right after. A queued request past its latest start is not dropped. But one that
would be dropped as soon as it is queued, because its budget is within the guard while the worker
has all the batches that it may have, is turned away at arrival.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §1.6; FlexLB `SloBudgetBatcherAlgorithm`.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.flexlb.batch_features import change_features
from prefixgym.baselines.flexlb.books import NONE, Books, clock_ms
from prefixgym.baselines.flexlb.prefill_predictor import predict_ms
from prefixgym.envs.jit import Record, kernel


class SloBudget(NamedTuple):
    """The batcher's settings, in ms and requests; names as in FlexlbConfig."""

    size_max: int
    window: int
    min_size: int
    emergency_budget: int
    dispatch_guard: int
    arrival_wait_guard: int
    arrival_ema_alpha: float
    scan_ahead: int
    max_inflight_batches: int


@kernel
def guard_ms(s: SloBudget) -> int:
    """Budget that a dispatch has to leave."""
    guard = max(1, s.dispatch_guard)
    return min(guard, s.emergency_budget) if s.emergency_budget > 0 else guard


@kernel
def head_start_ms(b: Books, e: int, i: int) -> int:
    """The earliest latest start in worker i's queue, which is not empty."""
    k = b.endpoints[e, i].first_queued
    earliest = b.members[e, k].latest_start
    while k != NONE:
        earliest = min(earliest, b.members[e, k].latest_start)
        k = b.members[e, k].next
    return int(earliest)


@kernel
def note_arrival(b: Books, s: SloBudget, e: int, i: int, now: int) -> None:
    """A request joins worker i's queue at ms `now`: average the gaps, each cut to the window."""
    endpoint = b.endpoints[e, i]
    if endpoint.last_offer != NONE and now > endpoint.last_offer:
        gap = min(now - endpoint.last_offer, max(1, s.window))
        alpha = max(0.01, min(1.0, s.arrival_ema_alpha))
        if endpoint.arrival_interval <= 0.0:
            endpoint.arrival_interval = gap
        else:
            endpoint.arrival_interval += alpha * (gap - endpoint.arrival_interval)
    endpoint.last_offer = now


@kernel
def arrival_interval_ms(s: SloBudget, average: float) -> int:
    """Expected gap between arrivals; before there was one, the window over the least size."""
    gap = average if average > 0.0 else max(1, s.window) / max(1, s.min_size)
    return max(1, math.floor(gap + 0.5))


@kernel
def next_arrival_ms(s: SloBudget, average: float, elapsed: int) -> int:
    """Expected time to the next arrival, `elapsed` ms after the last one."""
    gap = arrival_interval_ms(s, average)
    if elapsed <= 0 or average <= 0.0 or elapsed >= 2 * gap:
        return gap
    rest = elapsed % gap
    return 1 if rest == 0 else max(1, gap - rest)


@kernel
def worth_waiting(s: SloBudget, picked: int, slack: int, interval: int, next_arrival: int) -> bool:
    """Whether a batch of `picked` should wait, `slack` ms before it has to leave."""
    if picked >= s.size_max or slack <= 1 or next_arrival + s.arrival_wait_guard > slack:
        return False
    target = max(1, min(s.min_size, s.size_max))
    if picked < target or s.size_max <= target:
        return True
    target += 1 + (slack - s.arrival_wait_guard - next_arrival) // interval
    return picked < min(s.size_max, target)


@kernel
def order_budget(
    b: Books,
    predictor: int,
    s: SloBudget,
    capacity: int,
    scratch: NDArray[np.float64],
    e: int,
    i: int,
    hold: Record,
    now: float,
) -> None:
    """Write into `hold` (HOLD) when worker i's queue, which has just grown, leaves."""
    endpoint, now_ms = b.endpoints[e, i], clock_ms(now)
    # Predicted time of the first 1, 2, … requests of the queue.
    most = min(endpoint.queued, s.size_max, 1 + s.scan_ahead)
    predicted = np.empty(most, np.int64)
    for f in range(len(scratch)):
        scratch[f] = 0.0
    tokens, k = 0, endpoint.first_queued
    for n in range(most):
        member = b.members[e, k]
        tokens += member.prompt
        if n > 0 and tokens > capacity:
            most = n
            break
        change_features(scratch, member.prompt, member.hit, 1)
        predicted[n] = max(0, predict_ms(predictor, b.parameters[e, i], scratch))
        k = member.next

    head, guard = head_start_ms(b, e, i), guard_ms(s)
    longest = _latest_budget(s, predicted[most - 1] - predicted[0])
    interval = arrival_interval_ms(s, endpoint.arrival_interval)
    t = now_ms
    while True:
        budget = head - t
        picked = 1
        while picked < most and predicted[picked] <= predicted[0] + max(0, budget - guard):
            picked += 1
        latest = _latest_budget(s, predicted[picked - 1] - predicted[0])
        if picked >= s.size_max or budget <= latest:
            break
        if budget <= s.window:
            coming = next_arrival_ms(s, endpoint.arrival_interval, t - endpoint.last_offer)
            if not worth_waiting(s, picked, budget - latest, interval, coming):
                break
        t = max(t + 1, head - max(s.window, longest))  # before that, nothing can make it leave
    hold.size = endpoint.batch_limit = picked
    hold.release = now if t == now_ms else t / 1000.0


@kernel
def _latest_budget(s: SloBudget, extra: int) -> int:
    """Budget at which a batch that takes `extra` ms more than its head has to leave."""
    latest = guard_ms(s) + max(0, extra)
    return min(latest, s.emergency_budget) if s.emergency_budget > 0 else latest
