"""DualMap: two hashes give every prefix two homes; cache decides between them, within the SLO.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §8.3 (arXiv 2602.06502, ICLR'26); levels, window
and ties read in Dynamo's port, ai-dynamo/dynamo `router-plugins/builtin/src/dualmap.rs` at
6dcfceb3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.full_blocks import full_blocks
from prefixgym.baselines.papers.recent_keys import (
    RecentKeys,
    count_of,
    enter,
    recent_keys,
    with_room,
)
from prefixgym.baselines.papers.two_homes import two_homes
from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.hash_ring import HashRing
from prefixgym.envs.view.view import View

_LEVELS = 8


@register
@dataclass
class DualMap(Router):
    """The warmer of a prefix's two homes, unless its queue is too long for the TTFT objective.

    1. The key is the first hash_prefix_blocks full blocks, or twice, four times … as many (8
       levels at most): the shortest whose share of the last window_requests requests, this one
       included, is at most 2 / n for n available instances; the longest if all are above.
    2. Two independent hashes give the key two homes on a ring, always different ones.
    3. Equal hits: the home with fewer pending prefill tokens (the router's own, booked and without
       a first token), of equals the first instance.
    4. Else the home with more cached tokens, unless what is pending there and this request's
       uncached tokens exceed what it can clear within the TTFT objective; then as in 3.

    A prompt shorter than the key goes to the instance with the fewest pending tokens.

    The paper also moves requests that wait at an overloaded home to their other home. A request
    that has left for an engine stays there in this simulator, as in Dynamo's port, and DualMap does
    not hold requests back: that step is left out.

    Dynamo's blocks have 16 to 64 tokens; here they are the view's. Dynamo's port hashes by
    rendezvous, the paper on rings, as here.

    Attributes:
        hash_prefix_blocks: blocks of the shortest key.
        pending_prefill_token_budget: tokens that an instance clears within the TTFT objective. 0 is
            the paper's definition, by the instance's profile and the request's own objective:
            backlog_seconds + prefill_seconds <= slo_ttft. Dynamo's port has 65,536.
        window_requests: requests over which shares are measured.
        virtual_nodes: points of an instance on the ring; the paper's number is not known.
    """

    name = "dualmap"
    source = "DualMap, arXiv 2602.06502 (§8.3)"
    family = "papers"
    knows = ("ring", "index", "ledger")

    hash_prefix_blocks: int = 4
    pending_prefill_token_budget: int = 0
    window_requests: int = 1000
    virtual_nodes: int = 160

    def __post_init__(self) -> None:
        self.require("hash_prefix_blocks", self.hash_prefix_blocks >= 1, "at least 1")
        budget = self.pending_prefill_token_budget
        self.require("pending_prefill_token_budget", budget >= 0, "at least 0")
        self.require("window_requests", self.window_requests >= 1, "at least 1")
        self.require("virtual_nodes", self.virtual_nodes >= 1, "at least 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Lay the ring; no requests in the window."""
        self._ring = HashRing(len(cluster.instances), self.virtual_nodes)
        self._keys = router_keys(seeds)
        self._block_size = cluster.block_size
        self._recent = recent_keys(len(seeds), self.window_requests, _LEVELS)

    def route(self, view: View) -> NDArray[np.int64]:
        """One of the two homes of the prompt's prefix."""
        self._recent = with_room(self._recent)
        chosen = np.empty(view.num_envs, np.int64)
        _dualmap(
            view.requests,
            view.block_ids,
            view.instances,
            self._ring.positions,
            self._ring.owners,
            self._keys,
            self._recent,
            self._block_size,
            self.hash_prefix_blocks,
            self.pending_prefill_token_budget,
            chosen,
        )
        return chosen


@kernel
def _dualmap(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    seeds: NDArray[np.uint64],
    recent: RecentKeys,
    block_size: int,
    prefix_blocks: int,
    budget: int,
    chosen: NDArray[np.int64],
) -> None:
    num_instances = instances.shape[1]
    picks = np.empty(num_instances, np.int64)
    keys = np.empty(_LEVELS, np.int64)
    for e in range(len(chosen)):
        request = requests[e]
        count = candidates(instances[e], picks)
        levels, depth = 0, prefix_blocks
        while levels < _LEVELS and depth <= full_blocks(request, block_size):
            keys[levels] = block_ids[e, depth - 1]
            levels += 1
            depth *= 2
        if levels == 0 or count == 1:
            chosen[e] = _least_pending(instances[e], picks, count)
            continue
        enter(recent, e, keys, levels)
        level, length = 0, recent.length[e]
        while level < levels - 1 and count_of(recent, e, keys[level]) * count > 2 * length:
            level += 1
        homes = two_homes(positions, owners, seeds[e], keys[level], picks, count, num_instances)
        picks[0], picks[1] = min(homes), max(homes)
        warm, cold = instances[e, picks[0]], instances[e, picks[1]]
        warmer = picks[0]
        if cold["hit_tokens"] > warm["hit_tokens"]:
            warm, cold = cold, warm
            warmer = picks[1]
        if budget > 0:
            pending = request["prompt_tokens"] - warm["hit_tokens"] + warm["prefill_tokens"]
            in_time = pending <= budget
        else:
            in_time = warm["backlog_seconds"] + warm["prefill_seconds"] <= request["slo_ttft"]
        if warm["hit_tokens"] > cold["hit_tokens"] and in_time:
            chosen[e] = warmer
        else:
            chosen[e] = _least_pending(instances[e], picks, 2)


@kernel
def _least_pending(rows: NDArray[np.void], picks: NDArray[np.int64], count: int) -> int:
    """Of the first `count` of `picks`, the first with the fewest pending prefill tokens."""
    best = picks[0]
    for k in range(1, count):
        if rows[picks[k]]["prefill_tokens"] < rows[best]["prefill_tokens"]:
            best = picks[k]
    return int(best)
