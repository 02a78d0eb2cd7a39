"""SGLang's gateway of August 2026: cache_aware with a gate per request, see `gate`.

Source: `routers_sglang_vllm_aibrix_llmd.md` §1.3; read in smg
`model_gateway/src/policies/cache_aware.rs` after smg#2161.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, first_least, random_least
from prefixgym.baselines.full_blocks import full_blocks
from prefixgym.baselines.probabilistic import rendezvous, softmax
from prefixgym.baselines.router import NOWHERE, register, router_keys
from prefixgym.baselines.sglang.gate import (
    GatedRouter,
    GateSettings,
    is_memory_pressed,
    least_loaded,
    spills,
)
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.rng import random_word
from prefixgym.envs.view.history import History, HistoryArrays, insert, sent_blocks
from prefixgym.envs.view.view import View

_MOST_HOLDERS = 8


@register
@dataclass
class SmgCacheAware(GatedRouter):
    """A holder of the longest known prefix, unless this request has to spill from it.

    1. Under memory pressure (see `GatedRouter`): the least loaded instance.
    2. If the matched share of the prompt is > cache_threshold (strict): among the available
       instances that were sent the matched prefix (the first 8 of them; there 8 in no order), the
       highest score, then the least load, then at random. No such instance: the first available,
       and nothing is remembered.

           score_i = 1 / (1 + overlap_decay · x_i)
           x_i = (waiting tokens_i - least among the holders) / block_size / request's blocks

       With selection_temperature T > 0 the holder is drawn instead, with weight
       exp((n_i - 1) / T), n_i = the score on a scale from 0 (least) to 1 (highest).
       If the gate is closed for that instance: the least loaded one.
    3. Else the least loaded.
    4. The prompt is remembered under the choice at once, also under the one it spilled to.

    The real tree holds pages of 16 tokens, ours whole blocks of the cluster's size. It drops its
    least recent parts beyond 2^26 tokens for all instances together, ours drops nothing: an episode
    does not send as much.

    Attributes:
        cache_threshold: matched share of the prompt, 0..1.
        block_size: tokens in a block, for overlap_decay only.
        overlap_decay: 0 is off.
        selection_temperature: 0 takes the best.
    """

    name = "smg_cache_aware"
    source = "SGLang model gateway, cache_aware since smg#2161 of 2026-08 (§1.3)"
    family = "SGLang"
    knows = ("history", "ledger", "telemetry")

    cache_threshold: float = 0.3
    block_size: int = 16
    overlap_decay: float = 0.0
    selection_temperature: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("cache_threshold", 0 <= self.cache_threshold <= 1, "0 to 1")
        self.require("block_size", self.block_size >= 1, "at least 1")
        self.require("overlap_decay", self.overlap_decay >= 0, "at least 0")
        self.require("selection_temperature", self.selection_temperature >= 0, "at least 0")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing sent, nothing known."""
        shape = len(seeds), len(cluster.instances)
        self._keys = router_keys(seeds)
        self._block_size = cluster.block_size
        self._sent = np.zeros(shape, np.int64)
        self._history = History(*shape)

    def route(self, view: View) -> NDArray[np.int64]:
        """A holder or the least loaded instance."""
        self._history.reserve(view.block_ids.shape[1])
        chosen = np.empty(view.num_envs, np.int64)
        _choose(
            view.requests,
            view.block_ids,
            view.instances,
            self._history.arrays,
            self._sent,
            self._keys,
            self._settings(),
            self._block_size,
            self.cache_threshold,
            self.block_size,
            self.overlap_decay,
            self.selection_temperature,
            chosen,
        )
        return chosen

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Into the tree with them."""
        self._history.reserve(block_ids.shape[1])
        _overhear(requests, block_ids, self._history.arrays, self._block_size, chosen)


@kernel
def _choose(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    h: HistoryArrays,
    sent: NDArray[np.int64],
    keys: NDArray[np.uint64],
    settings: GateSettings,
    page: int,
    cache_threshold: float,
    block_size: int,
    overlap_decay: float,
    temperature: float,
    chosen: NDArray[np.int64],
) -> None:
    num_instances = instances.shape[1]
    picks = np.empty(num_instances, np.int64)
    costs, shares = np.empty(num_instances), np.empty(num_instances)
    blocks = np.empty(num_instances, np.int64)
    for e in range(len(chosen)):
        request, rows = requests[e], instances[e]
        count = candidates(rows, picks)
        prompt = block_ids[e, : full_blocks(request, page)]
        sent_blocks(h, e, prompt, blocks)
        depth = blocks.max()
        choice = least = least_loaded(rows, sent[e], picks, count)
        share = depth * page / request["prompt_tokens"]
        if share > cache_threshold and not is_memory_pressed(rows, picks, count, settings):
            request_blocks = max(request["prompt_tokens"] // block_size, 1)
            decay = overlap_decay / (block_size * request_blocks)
            if not _weigh_holders(rows, blocks == depth, picks, count, decay, costs):
                chosen[e] = picks[0]
                continue
            if temperature > 0:
                softmax(costs, picks, count, 0, np.inf, temperature, shares)
                choice = rendezvous(random_word(keys[e], request["index"]), shares)
            else:
                choice = _best(rows, costs, picks, count, keys[e], request["index"])
            if spills(rows, choice, picks, count, settings):
                choice = least
        _remember(h, e, request, block_ids[e], page, choice)
        sent[e, choice] += 1
        chosen[e] = choice


@kernel
def _remember(
    h: HistoryArrays, e: int, request: Record, ids: NDArray[np.int64], page: int, instance: int
) -> None:
    prompt = ids[: full_blocks(request, page)]
    insert(h, e, prompt, len(prompt) * page, page, instance)


@kernel
def _overhear(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    h: HistoryArrays,
    page: int,
    chosen: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        if chosen[e] != NOWHERE:
            _remember(h, e, requests[e], block_ids[e], page, chosen[e])


@kernel
def _weigh_holders(
    rows: NDArray[np.void],
    holders: NDArray[np.bool_],
    picks: NDArray[np.int64],
    count: int,
    decay: float,
    costs: NDArray[np.float64],
) -> bool:
    """Write minus the score of the holders among the candidates, inf for all others.

    Returns whether there is any such holder.
    """
    costs[:] = np.inf
    floor, seen = np.inf, 0
    for i in range(len(holders)):
        if holders[i] and seen < _MOST_HOLDERS:
            seen += 1
            costs[i] = 0.0
    for k in range(count):
        if costs[picks[k]] == 0.0:
            floor = min(floor, rows[picks[k]]["waiting_tokens"])
    for k in range(count):
        if costs[picks[k]] == 0.0:
            excess = rows[picks[k]]["waiting_tokens"] - floor
            costs[picks[k]] = -1.0 / (1.0 + decay * excess)
    return bool(floor < np.inf)


@kernel
def _best(
    rows: NDArray[np.void],
    costs: NDArray[np.float64],
    picks: NDArray[np.int64],
    count: int,
    key: np.uint64,
    counter: int,
) -> int:
    """The least cost, then the least load, then at random."""
    loads = np.full(len(costs), np.inf)
    least = costs[first_least(costs, picks, count)]
    for k in range(count):
        if costs[picks[k]] == least:
            loads[picks[k]] = rows[picks[k]]["requests"]
    return random_least(loads, picks, count, key, counter)
