"""llm-d's scorers: each rates every candidate pod from 0 to 1, and the ratings are weighted.

    total(pod) = Σ over scorers  weight · score(pod)

| scorer | score |
|---|---|
| queue | (max - q) / (max - min) of the engines' queues; all equal: 1 |
| running requests size | the same of running requests |
| KV cache utilization | 1 - KV usage |
| load aware | 0.5 · (1 - min(q, threshold) / threshold): from 0.5 for an empty queue down to 0 |
| prefix cache | matched share of the prompt |
| token load | 1 - min(tokens in flight + the request's own uncached ones, threshold) / threshold |
| active request | 1 up to the idle threshold, else (max - c) / max · max busy score |
| no-hit LRU | see `no_hit_lru` |

Source: `routers_sglang_vllm_aibrix_llmd.md` §4.1, §4.2.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import Record, kernel

NEVER = 0
"""Stamp of a pod that never got a cold request."""


class Weights(NamedTuple):
    """The scorers' weights, and the settings of those that have any."""

    queue: float
    kv_cache_utilization: float
    prefix_cache: float
    running_requests_size: float
    load_aware: float
    load_aware_threshold: int
    token_load: float
    queue_threshold_tokens: int
    active_request: float
    idle_threshold: int
    max_busy_score: float
    no_hit_lru: float


@kernel
def add_totals(
    weights: Weights,
    request: Record,
    pods: NDArray[np.void],
    matched: NDArray[np.int64],
    last_cold: NDArray[np.int64],
    picks: NDArray[np.int64],
    count: int,
    values: NDArray[np.float64],
    totals: NDArray[np.float64],
) -> None:
    """Write the weighted sum of all scores of the `count` candidates in `picks` to `totals`.

    Args:
        weights: see `Weights`.
        request: a REQUEST_VIEW record.
        pods: INSTANCE_VIEW records [N].
        matched: tokens of the prompt that each pod is believed to have, [N].
        last_cold: for `no_hit_lru`, [N].
        picks: the candidates.
        count: how many.
        values: scratch [N].
        totals: the result, [N]; other pods get 0.
    """
    totals[:] = 0.0
    if weights.queue != 0.0:
        for k in range(count):
            values[picks[k]] = pods[picks[k]]["waiting"]
        add_relative(weights.queue, values, picks, count, totals)
    if weights.running_requests_size != 0.0:
        for k in range(count):
            values[picks[k]] = pods[picks[k]]["running"]
        add_relative(weights.running_requests_size, values, picks, count, totals)
    if weights.active_request != 0.0:
        _add_active_request(weights, pods, picks, count, totals)
    if weights.no_hit_lru != 0.0:
        no_hit_lru(matched, last_cold, picks, count, values)
        for k in range(count):
            totals[picks[k]] += weights.no_hit_lru * values[picks[k]]
    prompt_tokens = request["prompt_tokens"]
    for k in range(count):
        pod = picks[k]
        row = pods[pod]
        totals[pod] += weights.kv_cache_utilization * (1.0 - row["kv_usage"])
        totals[pod] += weights.prefix_cache * matched_share(matched[pod], prompt_tokens)
        queue = min(row["waiting"], weights.load_aware_threshold)
        totals[pod] += weights.load_aware * 0.5 * (1.0 - queue / weights.load_aware_threshold)
        in_flight = row["prefill_tokens"] + max(0, prompt_tokens - matched[pod])
        in_flight = min(in_flight, weights.queue_threshold_tokens)
        totals[pod] += weights.token_load * (1.0 - in_flight / weights.queue_threshold_tokens)


@kernel
def matched_share(matched: int, prompt_tokens: int) -> float:
    """Share of the prompt that is matched, 0..1."""
    return min(matched, prompt_tokens) / max(prompt_tokens, 1)


@kernel
def add_relative(
    weight: float,
    values: NDArray[np.float64],
    picks: NDArray[np.int64],
    count: int,
    totals: NDArray[np.float64],
) -> None:
    """Add weight · (max - value) / (max - min) of the candidates, or the weight if all are equal.

    The scale is that of the moment: whether the queues are 0 and 1 or 0 and 100, the worst pod gets
    0 and the best one 1.
    """
    low, high = np.inf, -np.inf
    for k in range(count):
        low, high = min(low, values[picks[k]]), max(high, values[picks[k]])
    for k in range(count):
        score = (high - values[picks[k]]) / (high - low) if high > low else 1.0
        totals[picks[k]] += weight * score


@kernel
def _add_active_request(
    weights: Weights,
    pods: NDArray[np.void],
    picks: NDArray[np.int64],
    count: int,
    totals: NDArray[np.float64],
) -> None:
    high = 0
    for k in range(count):
        high = max(high, pods[picks[k]]["requests"])
    for k in range(count):
        requests = pods[picks[k]]["requests"]
        score = 1.0
        if requests > weights.idle_threshold:
            score = (high - requests) / high * weights.max_busy_score
        totals[picks[k]] += weights.active_request * score


@kernel
def is_cold(matched: NDArray[np.int64], picks: NDArray[np.int64], count: int) -> bool:
    """Whether no candidate has anything of the prompt."""
    best = 0
    for k in range(count):
        best = max(best, matched[picks[k]])
    return best == 0


@kernel
def no_hit_lru(
    matched: NDArray[np.int64],
    last_cold: NDArray[np.int64],
    picks: NDArray[np.int64],
    count: int,
    scores: NDArray[np.float64],
) -> None:
    """Spread cold requests: the pod whose last one is longest ago is the best.

    0.5 for all if any candidate has a match. Else those that never had a cold request come first,
    in order of index, then the others by their last one:

        score = max(0, 1 - rank / (candidates - 1))        (a single candidate: 1)

    A used pod's rank counts all used pods before it, also those that are no candidates.

    Args:
        matched: tokens [N].
        last_cold: stamp of each pod's last cold request, NEVER without one, [N].
        picks: the candidates.
        count: how many.
        scores: the result, [N].
    """
    if not is_cold(matched, picks, count):
        for k in range(count):
            scores[picks[k]] = 0.5
        return
    never = 0
    for k in range(count):
        never += last_cold[picks[k]] == NEVER
    num_seen = 0
    for k in range(count):
        pod = picks[k]
        rank = num_seen
        if last_cold[pod] == NEVER:
            num_seen += 1
        else:
            rank = never
            for other in range(len(last_cold)):
                rank += NEVER < last_cold[other] < last_cold[pod]
        scores[pod] = max(0.0, 1.0 - rank / (count - 1)) if count > 1 else 1.0
