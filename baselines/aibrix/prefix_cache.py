"""AIBrix's usual router: the longest known prefix among pods that are not busier than the rest.

Source: `routers_sglang_vllm_aibrix_llmd.md` §3.7; read in aibrix
`pkg/plugins/gateway/algorithms/prefix_cache.go` at 01de8a51.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.aibrix.prefix_table import (
    NO_MATCH,
    PrefixTable,
    TableSize,
    match_percent,
    prefix_table,
    put,
    sweep,
    table_size,
    with_room,
)
from prefixgym.baselines.choosing import candidates, random_least
from prefixgym.baselines.router import NOWHERE, Router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View


@dataclass
class PrefixTableRouter(Router):
    """What AIBrix's routers on the block table share: its settings.

    Attributes:
        prefix_cache_block_number: blocks that the table holds, for all pods together.
        prefix_cache_block_size: characters in one of its blocks.
        prefix_cache_eviction_duration_mins: minutes until a block that is not sent again is
            dropped.
        chars_per_token: characters that a token stands for.
    """

    prefix_cache_block_number: int = 200_000
    prefix_cache_block_size: int = 4
    prefix_cache_eviction_duration_mins: float = 20.0
    chars_per_token: float = 4.0

    def __post_init__(self) -> None:
        self.require("prefix_cache_block_number", self.prefix_cache_block_number >= 1, "1 or more")
        self.require("prefix_cache_block_size", self.prefix_cache_block_size >= 1, "at least 1")
        lasts = self.prefix_cache_eviction_duration_mins > 0
        self.require("prefix_cache_eviction_duration_mins", lasts, "above 0")
        self.require("chars_per_token", 0 < self.chars_per_token < math.inf, "above 0 and finite")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """An empty table."""
        self._keys = router_keys(seeds)
        self._table = prefix_table(len(seeds), len(cluster.instances))
        self._size = table_size(
            self.prefix_cache_block_number,
            self.prefix_cache_block_size,
            self.prefix_cache_eviction_duration_mins,
            self.chars_per_token,
            cluster.block_size,
        )

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Into the table with them."""
        self._table = with_room(self._table, block_ids.shape[1], self._size)
        _overhear(self._table, self._size, requests, block_ids, chosen)


@register
@dataclass
class PrefixCache(PrefixTableRouter):
    """AIBrix's `prefix-cache` with the defaults of its code, as of 2026-08-22.

    c = this router's requests in flight on a pod.

    1. If max c - min c > pod_running_request_imbalance_abs_count, only the pods with the least c
       are looked up in the block table (`PrefixTable`), else all.
    2. Of the pods that were sent the prompt's first block, those with
       c ≤ mean + standard_deviation_factor · sample standard deviation, over all pods: the longest
       match in whole percent of the prompt, then the least c, then at random. There is no minimum
       match: one block is enough.
    3. If there is none: the least c of all pods, at random among equals.
    4. All blocks of the prompt are put into the table under the choice.

    (A later version gates on max > 2 · (mean + 1) and a gap of 8 instead of step 1.)

    Attributes:
        pod_running_request_imbalance_abs_count: requests.
        standard_deviation_factor: standard deviations.
    """

    name = "aibrix_prefix_cache"
    source = "AIBrix gateway, prefix-cache, code defaults, e3e10f9e of 2026-08-22 (§3.7)"
    family = "AIBrix"
    knows = ("history", "ledger")

    pod_running_request_imbalance_abs_count: int = 8
    standard_deviation_factor: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pod_running_request_imbalance_abs_count", "standard_deviation_factor"):
            self.require(name, getattr(self, name) >= 0, "at least 0")

    def route(self, view: View) -> NDArray[np.int64]:
        """The longest match among pods with usual load, or the least loaded pod."""
        self._table = with_room(self._table, view.block_ids.shape[1], self._size)
        chosen = np.empty(view.num_envs, np.int64)
        _prefix_cache(
            self._table,
            self._size,
            view.requests,
            view.block_ids,
            view.instances,
            self._keys,
            self.pod_running_request_imbalance_abs_count,
            self.standard_deviation_factor,
            chosen,
        )
        return chosen


@register
@dataclass
class PrefixCacheChart(PrefixCache):
    """`aibrix_prefix_cache` with the settings of AIBrix's Helm chart.

    Its blocks are 32 times as large, so the table holds 32 times the text.
    """

    name = "aibrix_prefix_cache_chart"
    source = "AIBrix gateway, prefix-cache, Helm chart's settings (part B §3.7)"

    prefix_cache_block_size: int = 128
    pod_running_request_imbalance_abs_count: int = 16
    standard_deviation_factor: int = 2


@kernel
def _overhear(
    table: PrefixTable,
    size: TableSize,
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    chosen: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        if chosen[e] != NOWHERE:
            request = requests[e]
            prompt = block_ids[e, : request["num_blocks"]]
            put(table, size, e, prompt, request["prompt_tokens"], chosen[e], request["time"])


@kernel
def keep_least_loaded(
    counts: NDArray[np.float64],
    picks: NDArray[np.int64],
    count: int,
    most_spread: int,
    ready: NDArray[np.bool_],
) -> None:
    """Of the `count` pods in `picks`, those that AIBrix's imbalance gate leaves, as bool [N].

    All of them if max - min ≤ most_spread, else those with the least.
    """
    low, high = np.inf, -np.inf
    for k in range(count):
        low, high = min(low, counts[picks[k]]), max(high, counts[picks[k]])
    ready[:] = False
    for k in range(count):
        ready[picks[k]] = high - low <= most_spread or counts[picks[k]] == low


@kernel
def usual_load(
    counts: NDArray[np.float64], picks: NDArray[np.int64], count: int, factor: float
) -> float:
    """mean + factor · sample standard deviation of the `count` pods in `picks`."""
    mean = 0.0
    for k in range(count):
        mean += counts[picks[k]] / count
    squares = 0.0
    for k in range(count):
        squares += (counts[picks[k]] - mean) ** 2
    deviation = math.sqrt(squares / (count - 1)) if count > 1 else 0.0
    return mean + factor * deviation


@kernel
def _prefix_cache(
    table: PrefixTable,
    size: TableSize,
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    keys: NDArray[np.uint64],
    most_spread: int,
    factor: int,
    chosen: NDArray[np.int64],
) -> None:
    num_pods = instances.shape[1]
    picks, fit = np.empty(num_pods, np.int64), np.empty(num_pods, np.int64)
    counts, scores = np.empty(num_pods), np.empty(num_pods)
    ready, percent = np.empty(num_pods, np.bool_), np.empty(num_pods, np.int64)
    for e in range(len(chosen)):
        request = requests[e]
        now, prompt_tokens = request["time"], request["prompt_tokens"]
        prompt = block_ids[e, : request["num_blocks"]]
        for pod in range(num_pods):
            counts[pod] = instances[e, pod]["requests"]
        num_picks = candidates(instances[e], picks)
        keep_least_loaded(counts, picks, num_picks, most_spread, ready)
        sweep(table, size, e, now)
        match_percent(table, size, e, prompt, prompt_tokens, ready, percent)

        limit = usual_load(counts, picks, num_picks, factor)
        num_fit = 0
        for k in range(num_picks):
            pod = picks[k]
            if percent[pod] != NO_MATCH and counts[pod] <= limit:
                fit[num_fit] = pod
                num_fit += 1
                # Counts stay far below a percent's weight.
                scores[pod] = counts[pod] - 1e9 * percent[pod]
        if num_fit > 0:
            chosen[e] = random_least(scores, fit, num_fit, keys[e], request["index"])
        else:
            chosen[e] = random_least(counts, picks, num_picks, keys[e], request["index"])
        put(table, size, e, prompt, prompt_tokens, chosen[e], now)
