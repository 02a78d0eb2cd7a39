"""SGLang's gateway of August 2026: cache_aware on a hash index, `cache_index = hash`.

Source: `routers_sglang_vllm_aibrix_llmd.md` §1.3; read in smg
`model_gateway/src/policies/cache_aware.rs` after smg#2161.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.router import NOWHERE, register
from prefixgym.baselines.sglang.gate import (
    GatedRouter,
    GateSettings,
    is_memory_pressed,
    least_loaded,
    spills,
)
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.view.id_table import NONE, IdTable, doubled, find, find_or_add, id_table
from prefixgym.envs.view.view import View

_MOST_HOLDERS = 3
_START_KEYS = 256

HOLDER = np.dtype([("touched", np.float64), ("instance", np.int64)], align=True)
"""An instance that was sent a key, and when it last was (s); -inf where there is none."""


@register
@dataclass
class SmgCacheAwareHash(GatedRouter):
    """A recent holder of the prompt's head, unless this request has to spill from it.

    A key is a boundary with the prompt's tokens up to it; it remembers up to 3 instances, the
    stalest gives way, and each for cache_ttl_secs since it was last sent the key.

    1. Of the boundaries within the prompt the deepest whose key has an available holder: the least
       loaded of these, the first among equals. If the gate is closed for it (see `GatedRouter`):
       the least loaded instance.
    2. No such boundary, or memory pressure: the least loaded instance.
    3. The choice is remembered at every boundary within the prompt.

    There are no boundaries by default, so that every request goes to the least loaded instance.

    The view has ids of blocks, not tokens: a boundary's key is the id of the block that holds its
    last token.

    Attributes:
        cache_boundaries: tokens, in any order, say "1024, 8192".
        cache_ttl_secs: seconds.
    """

    name = "smg_cache_aware_hash"
    source = "SGLang model gateway, cache_aware with cache_index=hash, 2026-08 (§1.3)"
    family = "SGLang"
    knows = ("history", "ledger", "telemetry")

    cache_boundaries: str = ""
    cache_ttl_secs: int = 180

    def __post_init__(self) -> None:
        super().__post_init__()
        words = self.cache_boundaries.replace(",", " ").split()
        numbers = all(word.isdecimal() and int(word) > 0 for word in words)
        self.require("cache_boundaries", numbers, "positive integers with commas between them")
        self.require("cache_ttl_secs", self.cache_ttl_secs >= 0, "at least 0")
        self._boundaries = np.array(sorted({int(word) for word in words}), np.int64)

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing sent, nothing known."""
        self._block_size = cluster.block_size
        self._sent = np.zeros((len(seeds), len(cluster.instances)), np.int64)
        self._known = id_table(len(seeds), _START_KEYS)
        self._holders = np.zeros((len(seeds), _MOST_HOLDERS * _START_KEYS), HOLDER)

    def route(self, view: View) -> NDArray[np.int64]:
        """A holder or the least loaded instance."""
        self._make_room()
        chosen = np.empty(view.num_envs, np.int64)
        _choose(
            view.requests,
            view.block_ids,
            view.instances,
            self._known,
            self._holders,
            self._sent,
            self._boundaries,
            self._settings(),
            self._block_size,
            float(self.cache_ttl_secs),
            chosen,
        )
        return chosen

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """At every boundary within their prompts."""
        self._make_room()
        _overhear(
            requests,
            block_ids,
            self._known,
            self._holders,
            self._boundaries,
            self._block_size,
            chosen,
        )

    def _make_room(self) -> None:
        while self._known.num_spare.min() < len(self._boundaries):
            self._known = doubled(self._known)
            self._holders = widened(self._holders, _MOST_HOLDERS * self._known.ids.shape[1])


@kernel
def _key(
    request: Record,
    block_ids: NDArray[np.int64],
    boundaries: NDArray[np.int64],
    block_size: int,
    b: int,
) -> int:
    """The key at boundary b of the request, or NONE if that is beyond the prompt's ids."""
    block = (boundaries[b] - 1) // block_size
    if boundaries[b] > request["prompt_tokens"] or block >= request["num_blocks"]:
        return NONE
    return int(block_ids[block] * len(boundaries) + b)


@kernel
def _least_loaded_holder(
    rows: NDArray[np.void],
    holders: NDArray[np.void],
    picks: NDArray[np.int64],
    count: int,
    oldest: float,
) -> int:
    best = NOWHERE
    for k in range(count):
        i = picks[k]
        for h in range(_MOST_HOLDERS):
            holds = holders[h]["instance"] == i and holders[h]["touched"] >= oldest
            if holds and (best == NOWHERE or rows[i]["requests"] < rows[best]["requests"]):
                best = i
    return int(best)


@kernel
def _touch(holders: NDArray[np.void], instance: int, now: float) -> None:
    """Remember the instance, in place of the stalest unless it is there already."""
    stalest = 0
    for h in range(_MOST_HOLDERS):
        if holders[h]["instance"] == instance and holders[h]["touched"] > -np.inf:
            stalest = h
            break
        if holders[h]["touched"] < holders[stalest]["touched"]:
            stalest = h
    holders[stalest]["instance"] = instance
    holders[stalest]["touched"] = now


@kernel
def _remember(
    known: IdTable,
    holders: NDArray[np.void],
    e: int,
    request: Record,
    ids: NDArray[np.int64],
    boundaries: NDArray[np.int64],
    page: int,
    instance: int,
) -> None:
    for b in range(len(boundaries)):
        key = _key(request, ids, boundaries, page, b)
        if key != NONE:
            entry, is_new = find_or_add(known, e, key)
            first = _MOST_HOLDERS * entry
            if is_new:
                holders[e, first : first + _MOST_HOLDERS]["touched"][:] = -np.inf
            _touch(holders[e, first : first + _MOST_HOLDERS], instance, request["time"])


@kernel
def _overhear(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    known: IdTable,
    holders: NDArray[np.void],
    boundaries: NDArray[np.int64],
    page: int,
    chosen: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        if chosen[e] != NOWHERE:
            _remember(known, holders, e, requests[e], block_ids[e], boundaries, page, chosen[e])


@kernel
def _choose(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    known: IdTable,
    holders: NDArray[np.void],
    sent: NDArray[np.int64],
    boundaries: NDArray[np.int64],
    settings: GateSettings,
    page: int,
    ttl: float,
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        request, rows, ids = requests[e], instances[e], block_ids[e]
        count = candidates(rows, picks)
        choice = least = least_loaded(rows, sent[e], picks, count)
        if not is_memory_pressed(rows, picks, count, settings):
            for b in range(len(boundaries) - 1, -1, -1):
                key = _key(request, ids, boundaries, page, b)
                entry = NONE if key == NONE else find(known, e, key)
                if entry == NONE:
                    continue
                first = _MOST_HOLDERS * entry
                at_key = holders[e, first : first + _MOST_HOLDERS]
                holder = _least_loaded_holder(rows, at_key, picks, count, request["time"] - ttl)
                if holder != NOWHERE:
                    closed = spills(rows, holder, picks, count, settings)
                    choice = least if closed else holder
                    break
        _remember(known, holders, e, request, ids, boundaries, page, choice)
        sent[e, choice] += 1
        chosen[e] = choice
