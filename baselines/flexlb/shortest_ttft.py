"""FlexLB's optional prefill strategy: the least recently chosen of the fastest third.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §1.10; FlexLB `ShortestTTFTStrategy`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.flexlb.books import Books, clock_ms, is_made
from prefixgym.baselines.flexlb.ledger import inflight_ms
from prefixgym.baselines.flexlb.prefill_predictor import estimate_ms
from prefixgym.baselines.flexlb.prefill_router import (
    PrefillRouter,
    Settings,
    is_eligible,
    pending,
    place,
)
from prefixgym.baselines.flexlb.status_reports import hear
from prefixgym.baselines.router import register
from prefixgym.envs.jit import borrowed, kernel
from prefixgym.envs.view.view import View


@register
@dataclass
class ShortestTtft(PrefillRouter):
    """ShortestTTFTStrategy over the eligible workers (see PrefillRouter).

        ttft_i = max(0, T_prefill(L, H_i)) + T_inflight,i, without the batcher's wait

    Sorted by ttft, then by the time of the worker's last choice, then by index; of the first
    max(1, ⌊ratio · n⌋) the one chosen least recently. (The real one claims it by compare-and-set,
    which cannot fail where decisions come one after the other.) Without batching the ledger books
    the prefill alone.

    Attributes:
        shortest_ttft_candidate_pool_mode: `RATIO` or `FIXED`.
        shortest_ttft_candidate_pool_ratio: share of the eligible workers, for RATIO.
        shortest_ttft_candidate_pool_min_size: workers, for RATIO.
        shortest_ttft_candidate_pool_size: workers, for FIXED.
    """

    name = "flexlb_shortest_ttft"
    source = "alibaba/rtp-llm FlexLB, ShortestTTFTStrategy at 4b8d39cd5 (part B §1.10)"

    shortest_ttft_candidate_pool_mode: str = "RATIO"
    shortest_ttft_candidate_pool_ratio: float = 0.3
    shortest_ttft_candidate_pool_min_size: int = 1
    shortest_ttft_candidate_pool_size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        mode = self.shortest_ttft_candidate_pool_mode
        self.require(
            "shortest_ttft_candidate_pool_mode", mode in ("RATIO", "FIXED"), "RATIO, FIXED"
        )
        ratio = self.shortest_ttft_candidate_pool_ratio
        self.require("shortest_ttft_candidate_pool_ratio", 0 < ratio <= 1, "above 0 and at most 1")
        for parameter in (
            "shortest_ttft_candidate_pool_min_size",
            "shortest_ttft_candidate_pool_size",
        ):
            self.require(parameter, getattr(self, parameter) >= 1, "at least 1")

    def _choose(self, view: View, chosen: NDArray[np.int64]) -> None:
        by_ratio = self.shortest_ttft_candidate_pool_mode == "RATIO"
        _shortest_ttft(
            self._books,
            self._settings,
            view.requests,
            view.instances,
            view.events,
            view.num_events,
            view.holds,
            self._buckets,
            self._scratch,
            self.shortest_ttft_candidate_pool_ratio if by_ratio else 0.0,
            self.shortest_ttft_candidate_pool_min_size
            if by_ratio
            else self.shortest_ttft_candidate_pool_size,
            chosen,
        )


@kernel
def _shortest_ttft(
    books: Books,
    s: Settings,
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    holds: NDArray[np.void],
    buckets: NDArray[np.int64],
    scratch: NDArray[np.float64],
    pool_ratio: float,
    least_pool: int,
    chosen: NDArray[np.int64],
) -> None:
    b = borrowed(books)
    num_instances = instances.shape[1]
    order = np.empty(num_instances, np.int64)
    prefills = np.empty(num_instances, np.int64)
    ttfts = np.empty(num_instances, np.int64)
    for e in range(len(chosen)):
        request = requests[e]
        if is_made(b, e, request.index):
            chosen[e] = b.last_choice[e]
            continue
        hear(b, s.predictor, s.status_poll_ms, e, events[e], num_events[e], request.time)
        now = clock_ms(request.time)
        count = 0
        for i in range(num_instances):
            row = instances[e, i]
            if not (row.available and is_eligible(b, s, e, i, pending(b, e, i, row.waiting))):
                continue
            prefills[i] = max(
                0,
                estimate_ms(
                    s.predictor,
                    b.parameters[e, i],
                    scratch,
                    request.prompt_tokens,
                    row.hit_tokens,
                ),
            )
            ttfts[i] = prefills[i] + inflight_ms(b, s.status_poll_ms, e, i, now)
            place_in_order = count
            while place_in_order > 0 and _is_before(b, e, ttfts, i, order[place_in_order - 1]):
                order[place_in_order] = order[place_in_order - 1]
                place_in_order -= 1
            order[place_in_order] = i
            count += 1
        b.last_index[e] = request.index
        b.last_choice[e] = chosen[e] = num_instances
        if count == 0:
            continue
        pool = min(count, max(least_pool, int(count * pool_ratio)))
        i = order[0]
        for k in range(1, pool):
            if b.endpoints[e, order[k]].last_selected < b.endpoints[e, i].last_selected:
                i = order[k]
        if place(
            b,
            s,
            scratch,
            buckets,
            e,
            request,
            instances[e, i].hit_tokens,
            i,
            prefills[i],
            holds[e, i],
        ):
            b.last_choice[e] = chosen[e] = i
        endpoint = b.endpoints[e, i]
        endpoint.last_selected = max(int(request.time * 1e6), endpoint.last_selected + 1)


@kernel
def _is_before(b: Books, e: int, ttfts: NDArray[np.int64], i: int, other: int) -> bool:
    """Whether worker i comes before `other`, which has a lower index."""
    if ttfts[i] != ttfts[other]:
        return ttfts[i] < ttfts[other]
    return b.endpoints[e, i].last_selected < b.endpoints[e, other].last_selected
