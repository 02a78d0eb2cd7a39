"""FlexLB's default prefill strategy: the least predicted time to first token, nearly.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §1.3; FlexLB `CostBasedPrefillStrategy`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import draw
from prefixgym.baselines.flexlb.books import Books, clock_ms, is_made
from prefixgym.baselines.flexlb.ledger import inflight_ms
from prefixgym.baselines.flexlb.prefill_predictor import estimate_ms
from prefixgym.baselines.flexlb.prefill_router import (
    PrefillRouter,
    Settings,
    batcher_wait_ms,
    is_eligible,
    pending,
    place,
    slo_ms,
)
from prefixgym.baselines.flexlb.status_reports import hear
from prefixgym.baselines.router import register
from prefixgym.envs.jit import borrowed, kernel
from prefixgym.envs.view.view import View


@register
@dataclass
class CostBasedPrefill(PrefillRouter):
    """CostBasedPrefillStrategy, in whole ms over the eligible workers (see PrefillRouter):

        S_i = T_prefill(L, H_i) + T_inflight,i + T_batcher,i

    1. With the SLO filter, drop T_inflight + T_prefill > slo - margin.
    2. With the integer means over what is left: drop P_i > 3 · mean P if that is above 0, and
       T_inflight,i > 3 · mean T_inflight if that is. If nobody is left, keep the one with the least
       T_inflight, the first among equals.
    3. Choose uniformly among S_i ≤ min S + max(10 % of min S, 20 ms).

    With batching (the default) nothing enters the ledger before a batch leaves, so up to a batch of
    arrivals see no work more on the chosen worker, and a queue that has begun is a shorter wait
    than an empty one: arrivals herd. Without batching the request is in the ledger at once,
    predicted to take min S, which is not the chosen worker's and has the ledger's wait, and a
    window's, in it: the backlog compounds.

    Attributes:
        cost_slo_filter_enabled: step 1.
        cost_slo_risk_margin_ms: ms.
        cost_hotspot_multiplier: times the mean of P; 0 switches the filter off.
        cost_imbalance_multiplier: times the mean of T_inflight; 0 switches the filter off.
        score_tie_random_enabled: step 3's tolerance; off: only exact ties are drawn among.
        score_tie_threshold_pct: share of min S.
        score_tie_threshold_ms: ms.
    """

    name = "flexlb"
    source = "alibaba/rtp-llm FlexLB, CostBasedPrefillStrategy at 4b8d39cd5 (part B §1.3)"

    cost_slo_filter_enabled: bool = False
    cost_slo_risk_margin_ms: int = 100
    cost_hotspot_multiplier: float = 3.0
    cost_imbalance_multiplier: float = 3.0
    score_tie_random_enabled: bool = True
    score_tie_threshold_pct: float = 0.1
    score_tie_threshold_ms: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        for parameter in (
            "cost_slo_risk_margin_ms",
            "cost_hotspot_multiplier",
            "cost_imbalance_multiplier",
            "score_tie_threshold_pct",
            "score_tie_threshold_ms",
        ):
            value = getattr(self, parameter)
            self.require(parameter, 0 <= value < np.inf, "at least 0 and finite")

    def _choose(self, view: View, chosen: NDArray[np.int64]) -> None:
        _cost_based(
            self._books,
            self._settings,
            view.requests,
            view.instances,
            view.events,
            view.num_events,
            view.holds,
            self._keys,
            self._buckets,
            self._scratch,
            self.cost_slo_filter_enabled,
            self.cost_slo_risk_margin_ms,
            self.cost_hotspot_multiplier,
            self.cost_imbalance_multiplier,
            self.score_tie_random_enabled,
            self.score_tie_threshold_pct,
            self.score_tie_threshold_ms,
            chosen,
        )


@kernel
def score_cutoff(least: int, share: float, least_tolerance: int) -> int:
    """The highest score that still counts as near the least one."""
    return least + max(max(0, int(least * share)), least_tolerance)


@kernel
def _cost_based(
    books: Books,
    s: Settings,
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    holds: NDArray[np.void],
    keys: NDArray[np.uint64],
    buckets: NDArray[np.int64],
    scratch: NDArray[np.float64],
    slo_filter: bool,
    risk_margin: int,
    hotspot: float,
    imbalance: float,
    tolerant: bool,
    tie_share: float,
    tie_ms: int,
    chosen: NDArray[np.int64],
) -> None:
    b = borrowed(books)
    num_instances = instances.shape[1]
    picks = np.empty(num_instances, np.int64)
    scores = np.empty(num_instances, np.int64)
    waits = np.empty(num_instances, np.int64)
    pendings = np.empty(num_instances, np.int64)
    for e in range(len(chosen)):
        request = requests[e]
        if is_made(b, e, request.index):
            chosen[e] = b.last_choice[e]
            continue
        prompt = request.prompt_tokens
        hear(b, s.predictor, s.status_poll_ms, e, events[e], num_events[e], request.time)
        now = clock_ms(request.time)
        count, sum_wait, sum_pending = 0, 0, 0
        for i in range(num_instances):
            row = instances[e, i]
            pendings[i] = pending(b, e, i, row.waiting)
            if not (row.available and is_eligible(b, s, e, i, pendings[i])):
                continue
            prefill = estimate_ms(s.predictor, b.parameters[e, i], scratch, prompt, row.hit_tokens)
            waits[i] = inflight_ms(b, s.status_poll_ms, e, i, now)
            if slo_filter and waits[i] + prefill > slo_ms(buckets, prompt) - risk_margin:
                continue
            scores[i] = prefill + waits[i] + batcher_wait_ms(b, s, e, i, now)
            picks[count] = i
            count += 1
            sum_wait += waits[i]
            sum_pending += pendings[i]
        b.last_index[e] = request.index
        b.last_choice[e] = chosen[e] = num_instances
        if count == 0:
            continue

        mean_wait, mean_pending = sum_wait // count, sum_pending // count
        least_waiting, survivors = picks[0], 0
        for k in range(count):
            i = picks[k]
            if waits[i] < waits[least_waiting]:
                least_waiting = i
            hot = hotspot > 0 and mean_pending > 0 and pendings[i] > mean_pending * hotspot
            slow = imbalance > 0 and mean_wait > 0 and waits[i] > mean_wait * imbalance
            if not (hot or slow):
                picks[survivors] = i
                survivors += 1
        if survivors == 0:
            picks[0] = least_waiting
            survivors = 1

        least = scores[picks[0]]
        for k in range(1, survivors):
            least = min(least, scores[picks[k]])
        cutoff = score_cutoff(least, tie_share, tie_ms) if tolerant else least
        near = 0
        for k in range(survivors):
            if scores[picks[k]] <= cutoff:
                picks[near] = picks[k]
                near += 1
        i = picks[draw(keys[e], request.index, near)]
        if place(
            b,
            s,
            scratch,
            buckets,
            e,
            request,
            instances[e, i].hit_tokens,
            i,
            least,
            holds[e, i],
        ):
            b.last_choice[e] = chosen[e] = i
