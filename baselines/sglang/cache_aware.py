"""SGLang's cache-aware router: prefix affinity from its own history, until load is out of balance.

Source: `routers_sglang_vllm_aibrix_llmd.md` §1.1; read in sglang
`sgl-model-gateway/src/policies/cache_aware.rs` at 053b63ff, and held against sglang-router 0.3.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, draw, first_least
from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.history import (
    History,
    HistoryArrays,
    evict,
    forget,
    insert,
    match,
    match_among,
    touch,
)
from prefixgym.envs.view.view import View


@register
@dataclass
class CacheAware(Router):
    """SGLang's `cache_aware` for HTTP as of early 2026, with the defaults of its command line.

    load = this router's requests in flight.

    1. Out of balance iff max - min > balance_abs_threshold and max > balance_rel_threshold · min,
       both strict, over the available instances (the policy by itself looks at all, but the
       gateway shows it only those).
    2. Out of balance: the least loaded available instance, the first among equals.
    3. Else, if the matched share of the prompt is > cache_threshold (strict): the owner of the last
       matched edge of the history (`History`: who created it). If the owner is not available: the
       first available instance; the history forgets all that it knew of the owner, and does not
       hear of the request.
    4. Else the least loaded available instance, the first among equals.
    5. The prompt is inserted in the history under the choice at once, in step 2 as well.

    Every eviction_interval seconds each instance's part of the history is cut to max_tree_size
    characters; between sweeps it grows freely. The real tree holds characters, ours the prompt's
    blocks: shares are of tokens, only whole equal blocks match, and max_tree_size is divided by
    chars_per_token.

    Attributes:
        cache_threshold: matched share of the prompt, 0..1.
        balance_abs_threshold: requests.
        balance_rel_threshold: ratio.
        eviction_interval: seconds; 0 never evicts. 60 is the Python launcher's default, the Rust
            binary's is 120.
        max_tree_size: characters for each instance.
        chars_per_token: characters that a token stands for.
        has_tree: sglang-router 0.3.2 makes no tree in PD mode over HTTP, for either pool. With
            False every request that is not out of balance goes to a random available instance.
    """

    name = "cache_aware"
    source = "SGLang model gateway, cache_aware, CLI defaults, sglang-router 0.3.2 (§1.1)"
    family = "SGLang"
    knows = ("history", "ledger")

    any_holder: ClassVar[bool] = False
    """Whether step 3 takes the least loaded of those that were sent the prefix, not its owner."""

    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    eviction_interval: float = 60.0
    max_tree_size: int = 2**26
    chars_per_token: float = 4.0
    has_tree: bool = True

    def __post_init__(self) -> None:
        self.require("cache_threshold", 0 <= self.cache_threshold <= 1, "0 to 1")
        self.require("balance_abs_threshold", self.balance_abs_threshold >= 0, "at least 0")
        self.require("balance_rel_threshold", self.balance_rel_threshold >= 0, "at least 0")
        finite = 0 <= self.eviction_interval < math.inf
        self.require("eviction_interval", finite, "at least 0 and finite, 0 to never evict")
        self.require("max_tree_size", self.max_tree_size >= 0, "at least 0")
        self.require("chars_per_token", 0 < self.chars_per_token < math.inf, "above 0 and finite")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """An empty history."""
        self._keys = router_keys(seeds)
        self._history = History(len(seeds), len(cluster.instances))
        self._next_sweep = np.full(len(seeds), self.eviction_interval or math.inf)
        self._block_size = cluster.block_size

    def route(self, view: View) -> NDArray[np.int64]:
        """Owner of the longest known prefix, or the least loaded instance."""
        self._history.reserve(view.block_ids.shape[1])
        chosen = np.empty(view.num_envs, np.int64)
        _cache_aware(
            view.requests,
            view.block_ids,
            view.instances,
            self._history.arrays,
            self._next_sweep,
            self._keys,
            self.has_tree,
            self._block_size,
            self.cache_threshold,
            self.balance_abs_threshold,
            self.balance_rel_threshold,
            self.eviction_interval,
            self.max_tree_size / self.chars_per_token,
            self.any_holder,
            chosen,
        )
        return chosen

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Into the history with them, unless there is none."""
        if self.has_tree:
            self._history.remember(requests, block_ids, self._block_size, chosen)


@register
@dataclass
class CacheAwareStruct(CacheAware):
    """`cache_aware` with the other default set: that of the policy's struct, for use as a library.

    It evicts early and often: 10,000 characters are about 2,500 tokens for each instance.
    """

    name = "cache_aware_struct"
    source = "SGLang model gateway, cache_aware, struct defaults (§1.1)"

    cache_threshold: float = 0.5
    balance_abs_threshold: int = 32
    balance_rel_threshold: float = 1.1
    eviction_interval: float = 30.0
    max_tree_size: int = 10_000


@kernel
def _cache_aware(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    h: HistoryArrays,
    next_sweep: NDArray[np.float64],
    keys: NDArray[np.uint64],
    has_tree: bool,
    block_size: int,
    cache_threshold: float,
    balance_abs_threshold: int,
    balance_rel_threshold: float,
    eviction_interval: float,
    most_tokens: float,
    any_holder: bool,
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    loads = np.empty(instances.shape[1])
    for e in range(len(chosen)):
        request = requests[e]
        if request["time"] >= next_sweep[e]:
            evict(h, e, most_tokens)
            sweeps = math.floor(request["time"] / eviction_interval)
            next_sweep[e] = (sweeps + 1) * eviction_interval

        count = candidates(instances[e], picks)
        for i in range(len(loads)):
            loads[i] = instances[e, i]["requests"]
        choice = first_least(loads, picks, count)
        low, high = loads[choice], loads[choice]
        for k in range(count):
            high = max(high, loads[picks[k]])
        prompt = block_ids[e, : request["num_blocks"]]
        prompt_tokens = request["prompt_tokens"]
        in_balance = high - low <= balance_abs_threshold or high <= balance_rel_threshold * low
        if not has_tree:
            chosen[e] = picks[draw(keys[e], request["index"], count)] if in_balance else choice
            continue
        known = True
        if in_balance:
            if any_holder:
                blocks, node, owner = match_among(h, e, prompt, loads, picks, count)
            else:
                blocks, owner = match(h, e, prompt)
            if min(blocks * block_size, prompt_tokens) / prompt_tokens > cache_threshold:
                choice = picks[0]
                known = False
                for k in range(count):
                    if picks[k] == owner:
                        choice = owner
                        known = True
                if any_holder:
                    touch(h, e, node, owner)
                elif not known:
                    forget(h, e, owner)
        if known:
            insert(
                h,
                e,
                prompt,
                min(len(prompt) * block_size, prompt_tokens),
                block_size,
                choice,
            )
        chosen[e] = choice
