"""llm-d's endpoint picker with the approximate prefix index: no engine needs to report anything.

Source: `routers_sglang_vllm_aibrix_llmd.md` §4.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.llmd.approximate_prefix import (
    ApproximatePrefix,
    add,
    approximate_prefix,
    forget,
    match_tokens,
    with_room,
)
from prefixgym.baselines.llmd.weighted import LlmdPrecise
from prefixgym.baselines.router import NOWHERE, register
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View

_BLOCK_SIZE_TOKENS = 64
"""What the index is held to, whatever the configuration says."""

_SWEEP_INTERVAL = 120.0  # s


@register
@dataclass
class LlmdApproximate(LlmdPrecise):
    """The same scorers with the prefix looked up in the router's own history.

    See `ApproximatePrefix`. The real index has blocks of 64 tokens, the last one of a prompt
    perhaps partial; here they are the simulator's, and a pod holds as many tokens of them.

    Attributes:
        auto_tune: a pod's LRU holds as many blocks as its engine's KV cache. The engine counts
            blocks of `engine_block_size` tokens and the index blocks of 64, so it believes in four
            times too many (llm-d-router#1650). Else, and where engines do not tell:
        lru_capacity_per_server: blocks of 64 tokens.
        engine_block_size: tokens in a block of the engine.
        max_prefix_tokens_to_match: tokens of a prompt that are looked at.
    """

    name = "llmd_approximate"
    source = "llm-d-router, queue 2, KV 2, approximate prefix 3, ebab6879 of 2026-08-22 (§4.2)"
    knows = ("history", "telemetry")

    auto_tune: bool = True
    lru_capacity_per_server: int = 31_250
    engine_block_size: int = 16
    max_prefix_tokens_to_match: int = 131_072

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lru_capacity_per_server", "engine_block_size", "max_prefix_tokens_to_match"):
            self.require(name, getattr(self, name) >= 1, "at least 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """An empty history."""
        super().reset(cluster, seeds)
        block_size = cluster.block_size
        capacity = np.empty(len(cluster.instances), np.int64)
        for pod in range(len(capacity)):
            blocks = self.lru_capacity_per_server
            if self.auto_tune:
                blocks = cluster.kv_blocks(pod) * block_size // self.engine_block_size
            capacity[pod] = max(1, blocks * _BLOCK_SIZE_TOKENS // block_size)
        self._block_size = block_size
        self._most_blocks = max(1, self.max_prefix_tokens_to_match // block_size)
        self._index = approximate_prefix(len(seeds), capacity)
        self._next_sweep = np.full(len(seeds), _SWEEP_INTERVAL)

    def hear(self, view: View) -> None:
        """Every two minutes, which pods are not there any more."""
        super().hear(view)
        _forget_absent(self._index, view.requests, view.instances, self._next_sweep)

    def matched_tokens(self, view: View) -> NDArray[np.int64]:
        """Tokens of the blocks that were sent to each pod before."""
        matched = np.empty(view.instances.shape, np.int64)
        _match(
            self._index,
            view.requests,
            view.block_ids[:, : self._most_blocks],
            self._block_size,
            matched,
        )
        return matched

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """The prompt's blocks are on their way."""
        super().commit(view, chosen)
        self.overhear(view.requests, view.block_ids, chosen)

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Their blocks are on their way as well."""
        block_ids = block_ids[:, : self._most_blocks]
        self._index = with_room(self._index, block_ids.shape[1])
        _add(self._index, requests, block_ids, chosen)


@kernel
def _forget_absent(
    index: ApproximatePrefix,
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    next_sweep: NDArray[np.float64],
) -> None:
    for e in range(len(requests)):
        now = requests[e]["time"]
        if now >= next_sweep[e]:
            next_sweep[e] = (math.floor(now / _SWEEP_INTERVAL) + 1) * _SWEEP_INTERVAL
            for pod in range(instances.shape[1]):
                if instances[e, pod]["available"] == 0:
                    forget(index, e, pod)


@kernel
def _match(
    index: ApproximatePrefix,
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    block_size: int,
    matched: NDArray[np.int64],
) -> None:
    for e in range(len(matched)):
        request = requests[e]
        prompt = block_ids[e, : min(request["num_blocks"], block_ids.shape[1])]
        tokens, now = request["prompt_tokens"], request["time"]
        match_tokens(index, e, prompt, tokens, block_size, now, matched[e])


@kernel
def _add(
    index: ApproximatePrefix,
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    chosen: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        if chosen[e] == NOWHERE:
            continue
        prompt = block_ids[e, : min(requests[e]["num_blocks"], block_ids.shape[1])]
        add(index, e, prompt, chosen[e], requests[e]["time"])
