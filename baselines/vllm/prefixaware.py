"""vLLM production stack's prefixaware: who was sent the longest prefix of the prompt before?

Source: `routers_sglang_vllm_aibrix_llmd.md` §2.4; read in production-stack
`prefix/hashtrie.py` at 35e4ad37.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, draw
from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.baselines.vllm.fallback import QPS_WINDOW, TO_FALLBACK, to_lowest_qps
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.arrival_rate import ArrivalRate
from prefixgym.envs.view.history import History, HistoryArrays, sent_blocks
from prefixgym.envs.view.view import View


@register
@dataclass
class Prefixaware(Router):
    """One of the available instances that were sent the longest known prefix, at random.

    1. Down the tree of all prompts, as long as an available instance was sent what is passed.
    2. Uniformly random among the available instances that were sent that prefix; all available ones
       if nothing matches. Load is never looked at.
    3. If prefix_min_match_length > 0 and the match is shorter: the instance with the fewest
       arrivals in the last 60 s instead.
    4. The whole prompt is remembered under the choice, in step 3 as well.

    Nothing is ever forgotten. An instance joins those of a prefix only while no other of them is
    available, or by step 3; so whoever gets the first prompt with a shared system prompt keeps all
    that follow (production-stack#957).

    The real tree has chunks of 128 characters; ours has the prompt's blocks, so a match ends at a
    block's end, and a prompt shorter than a block matches only itself.

    Attributes:
        prefix_min_match_length: characters; 0 accepts any match.
        chars_per_token: characters that a token stands for.
    """

    name = "prefixaware"
    source = "vLLM production stack, prefixaware (§2.4)"
    family = "vLLM"
    knows = ("history",)

    prefix_min_match_length: int = 0
    chars_per_token: float = 4.0

    def __post_init__(self) -> None:
        at_least = "at least 0"
        self.require("prefix_min_match_length", self.prefix_min_match_length >= 0, at_least)
        self.require("chars_per_token", 0 < self.chars_per_token < math.inf, "above 0 and finite")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """An empty tree; no arrivals yet."""
        num_envs, num_instances = len(seeds), len(cluster.instances)
        self._keys = router_keys(seeds)
        self._block_size = cluster.block_size
        self._history = History(num_envs, num_instances)
        self._arrivals = ArrivalRate(num_envs, num_instances, QPS_WINDOW)

    def route(self, view: View) -> NDArray[np.int64]:
        """One of those with the longest prefix, or the one with the lowest arrival rate."""
        chosen = np.empty(view.num_envs, np.int64)
        least_tokens = self.prefix_min_match_length / self.chars_per_token
        _choose(
            view.requests,
            view.block_ids,
            view.instances,
            self._history.arrays,
            self._keys,
            self._block_size,
            least_tokens,
            chosen,
        )
        if self.prefix_min_match_length > 0:
            now = view.requests["time"]
            self._arrivals.advance(now)
            to_lowest_qps(view.instances, self._arrivals.counts, self._arrivals.seen, chosen)
            self._arrivals.record(now, chosen)
        self._history.remember(view.requests, view.block_ids, self._block_size, chosen)
        return chosen

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Into the tree with them."""
        self._history.remember(requests, block_ids, self._block_size, chosen)


@kernel
def _choose(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    h: HistoryArrays,
    keys: NDArray[np.uint64],
    block_size: int,
    least_tokens: float,
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    sent = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        request = requests[e]
        count = candidates(instances[e], picks)
        prompt = block_ids[e, : request["num_blocks"]]
        sent_blocks(h, e, prompt, sent)
        longest, equals = -1, 0
        for k in range(count):
            if sent[picks[k]] > longest:
                longest, equals = sent[picks[k]], 0
            equals += sent[picks[k]] == longest
        if min(longest * block_size, request["prompt_tokens"]) < least_tokens:
            chosen[e] = TO_FALLBACK
            continue
        skip = draw(keys[e], request["index"], equals)
        for k in range(count):
            if sent[picks[k]] == longest:
                chosen[e] = picks[k]
                if skip == 0:
                    break
                skip -= 1
