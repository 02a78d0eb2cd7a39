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
from prefixgym.baselines.id_table import NONE
from prefixgym.baselines.prefix_tree import (
    ROOT,
    PrefixTree,
    insert,
    match,
    prefix_tree,
    with_room,
)
from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.baselines.vllm.fallback import QPS_WINDOW, TO_FALLBACK, to_lowest_qps
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.arrival_rate import ArrivalRate
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
        self._tree = prefix_tree(num_envs)
        self._holders = np.zeros((*self._tree.nodes.shape, num_instances), np.bool_)
        self._arrivals = ArrivalRate(num_envs, num_instances, QPS_WINDOW)

    def route(self, view: View) -> NDArray[np.int64]:
        """One of those with the longest prefix, or the one with the lowest arrival rate."""
        chosen = np.empty(view.num_envs, np.int64)
        least_tokens = self.prefix_min_match_length / self.chars_per_token
        _choose(
            view.requests,
            view.block_ids,
            view.instances,
            self._tree,
            self._holders,
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
        self._tree = with_room(self._tree, view.block_ids.shape[1])
        missing = self._tree.nodes.shape[1] - self._holders.shape[1]
        if missing > 0:
            self._holders = np.pad(self._holders, ((0, 0), (0, missing), (0, 0)))
        _remember(
            view.requests,
            view.block_ids,
            self._tree,
            self._holders,
            self._block_size,
            chosen,
        )
        return chosen


@kernel
def _choose(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    tree: PrefixTree,
    holders: NDArray[np.bool_],
    keys: NDArray[np.uint64],
    block_size: int,
    least_tokens: float,
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        request = requests[e]
        count = candidates(instances[e], picks)
        matched, node = match(tree, e, block_ids[e, : request["num_blocks"]])
        held = 0
        while node != ROOT:
            for k in range(count):
                held += holders[e, node, picks[k]]
            if held > 0:
                break
            matched = int(tree.nodes[e, node]["depth"])
            node = int(tree.nodes[e, node]["parent"])
        if min(matched * block_size, request["prompt_tokens"]) < least_tokens:
            chosen[e] = TO_FALLBACK
            continue
        skip = draw(keys[e], request["index"], held if held > 0 else count)
        for k in range(count):
            if held == 0 or holders[e, node, picks[k]]:
                chosen[e] = picks[k]
                if skip == 0:
                    break
                skip -= 1


@kernel
def _remember(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    tree: PrefixTree,
    holders: NDArray[np.bool_],
    block_size: int,
    chosen: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        request = requests[e]
        prompt = block_ids[e, : request["num_blocks"]]
        tokens = min(len(prompt) * block_size, request["prompt_tokens"])
        _, node, lower, upper = insert(tree, e, prompt, tokens, block_size)
        if upper != NONE:
            for i in range(holders.shape[2]):
                holders[e, upper, i] = holders[e, lower, i]
        while node != ROOT and not holders[e, node, chosen[e]]:
            holders[e, node, chosen[e]] = True
            node = int(tree.nodes[e, node]["parent"])
