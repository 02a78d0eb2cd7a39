"""CacheRoute: a table plans where popular prefixes live; everything else takes two choices.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §8.5 (arXiv 2608.19677).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, draw_two
from prefixgym.baselines.full_blocks import full_blocks
from prefixgym.baselines.papers.recent_keys import (
    NO_KEY,
    RecentKeys,
    enter,
    recent_keys,
    with_room,
)
from prefixgym.baselines.router import NOWHERE, Router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.view.id_table import NONE
from prefixgym.envs.view.view import View


@register
@dataclass
class CacheRoute(Router):
    """The planned home of a popular prefix; the less loaded of two draws for all other requests.

    A request's key is its first prefix_blocks full blocks. Every `period` seconds a new plan is
    made from the last window_requests requests, with λ_k the requests/s of key k among them:

    1. The warm_keys keys with the highest λ_k are admitted; of equals, the lower block id.
    2. A key has max(1, ceil(λ_k / q_cap)) copies, at most one for each available instance.
    3. Longest processing time first: keys in order of λ_k, each copy to the instance that has the
       least planned load so far and no copy of the key, the first among equals; it adds λ_k /
       copies.

    Between plans the table does not change. A planned request goes to the home with the fewest of
    this router's requests in flight, the first among equals, or, if no home is available, as one
    without a plan. Two choices are as in `power_of_two`, by the router's own requests.

    An episode begins without a plan, so its first period is routed by two choices alone.

    Attributes:
        period: seconds between plans; the paper's value is not known.
        prefix_blocks: blocks of a key.
        warm_keys: keys that a plan admits (the paper's main workload has 128).
        q_cap: requests/s that one copy of a prefix serves; inf: one copy each, as in the paper's
            main results.
        window_requests: requests that a plan is made from.
    """

    name = "cacheroute"
    source = "CacheRoute, arXiv 2608.19677 (§8.5)"
    family = "papers"
    knows = ("history", "ledger")

    period: float = 20.0
    prefix_blocks: int = 4
    warm_keys: int = 128
    q_cap: float = math.inf
    window_requests: int = 4096

    def __post_init__(self) -> None:
        self.require("period", 0 < self.period < math.inf, "above 0 and finite")
        self.require("prefix_blocks", self.prefix_blocks >= 1, "at least 1")
        self.require("warm_keys", self.warm_keys >= 1, "at least 1")
        self.require("q_cap", self.q_cap > 0, "above 0, inf for one copy")
        self.require("window_requests", self.window_requests >= 1, "at least 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """No plan."""
        num_envs, num_instances = len(seeds), len(cluster.instances)
        self._seeds = router_keys(seeds)
        self._block_size = cluster.block_size
        self._recent = recent_keys(num_envs, self.window_requests)
        self._started = np.zeros((num_envs, self.window_requests))
        self._next_plan = np.full(num_envs, self.period)
        # Planned keys, the first num_planned of each row; and which instances are their homes.
        self._planned = np.empty((num_envs, self.warm_keys), np.int64)
        self._num_planned = np.zeros(num_envs, np.int64)
        self._homes = np.zeros((num_envs, self.warm_keys, num_instances), np.bool_)

    def route(self, view: View) -> NDArray[np.int64]:
        """A home of the prompt's prefix, or one of two draws."""
        self._recent = with_room(self._recent)
        chosen = np.empty(view.num_envs, np.int64)
        _cacheroute(
            view.requests,
            view.block_ids,
            view.instances,
            self._seeds,
            self._recent,
            self._started,
            self._next_plan,
            self._planned,
            self._num_planned,
            self._homes,
            self._block_size,
            self.period,
            self.prefix_blocks,
            self.q_cap,
            chosen,
        )
        return chosen

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Their keys are popular, too."""
        self._recent = with_room(self._recent)
        _overhear(
            requests,
            block_ids,
            self._recent,
            self._started,
            self._block_size,
            self.prefix_blocks,
            chosen,
        )


@kernel
def _cacheroute(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    seeds: NDArray[np.uint64],
    recent: RecentKeys,
    started: NDArray[np.float64],
    next_plan: NDArray[np.float64],
    planned: NDArray[np.int64],
    num_planned: NDArray[np.int64],
    homes: NDArray[np.bool_],
    block_size: int,
    period: float,
    prefix_blocks: int,
    q_cap: float,
    chosen: NDArray[np.int64],
) -> None:
    num_instances = instances.shape[1]
    picks = np.empty(num_instances, np.int64)
    key = np.empty(1, np.int64)
    for e in range(len(chosen)):
        request = requests[e]
        now = request["time"]
        count = candidates(instances[e], picks)
        if now >= next_plan[e]:
            next_plan[e] = (math.floor(now / period) + 1) * period
            if recent.length[e] > 0:
                elapsed = max(now - started[e, recent.head[e]], 1e-9)
                num_planned[e] = _plan(
                    recent, e, elapsed, q_cap, picks, count, planned[e], homes[e]
                )
        _note(recent, started, e, request, block_ids[e], block_size, prefix_blocks, key)
        chosen[e] = -1
        place = 0
        while place < num_planned[e] and planned[e, place] != key[0]:
            place += 1
        if place < num_planned[e]:
            for k in range(count):
                i = picks[k]
                if homes[e, place, i] and (
                    chosen[e] == -1
                    or instances[e, i]["requests"] < instances[e, chosen[e]]["requests"]
                ):
                    chosen[e] = i
        if chosen[e] == -1:
            first, second = draw_two(seeds[e], request["index"], picks, count)
            fewer = instances[e, second]["requests"] < instances[e, first]["requests"]
            chosen[e] = second if fewer else first


@kernel
def _note(
    recent: RecentKeys,
    started: NDArray[np.float64],
    e: int,
    request: Record,
    ids: NDArray[np.int64],
    block_size: int,
    prefix_blocks: int,
    key: NDArray[np.int64],
) -> None:
    """Put a request into the window; its key, or NO_KEY, is written to `key`, shape [1]."""
    key[0] = NO_KEY
    if full_blocks(request, block_size) >= prefix_blocks:
        key[0] = ids[prefix_blocks - 1]
    enter(recent, e, key, int(key[0] != NO_KEY))
    newest = (recent.head[e] + recent.length[e] - 1) % started.shape[1]
    started[e, newest] = request["time"]


@kernel
def _overhear(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    recent: RecentKeys,
    started: NDArray[np.float64],
    block_size: int,
    prefix_blocks: int,
    chosen: NDArray[np.int64],
) -> None:
    key = np.empty(1, np.int64)
    for e in range(len(chosen)):
        if chosen[e] != NOWHERE:
            _note(recent, started, e, requests[e], block_ids[e], block_size, prefix_blocks, key)


@kernel
def _plan(
    recent: RecentKeys,
    e: int,
    elapsed: float,
    q_cap: float,
    picks: NDArray[np.int64],
    count: int,
    planned: NDArray[np.int64],
    homes: NDArray[np.bool_],
) -> int:
    """Write the planned keys, highest rate first, and their homes; return their number."""
    table = recent.table
    keys = np.empty(table.ids.shape[1], np.int64)
    counts = np.empty(len(keys), np.int64)
    found = 0
    for slot in range(table.slots.shape[1]):
        entry = table.slots[e, slot].entry
        if entry != NONE:
            keys[found] = table.ids[e, entry]
            counts[found] = recent.counts[e, entry]
            found += 1
    loads = np.zeros(homes.shape[1])
    for rank in range(min(found, len(planned))):
        top = 0
        for k in range(1, found):
            if counts[k] > counts[top] or (counts[k] == counts[top] and keys[k] < keys[top]):
                top = k
        rate = counts[top] / elapsed
        counts[top] = 0  # admitted
        planned[rank] = keys[top]
        homes[rank] = False
        copies = min(count, max(1, math.ceil(rate / q_cap)))
        for _ in range(copies):
            best = -1
            for k in range(count):
                i = picks[k]
                if not homes[rank, i] and (best == -1 or loads[i] < loads[best]):
                    best = i
            homes[rank, best] = True
            loads[best] += rate / copies
    return min(found, len(planned))
