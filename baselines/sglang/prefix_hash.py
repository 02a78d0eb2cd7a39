"""Prefix hash: the first tokens of a prompt have a fixed home by consistent hashing.

Keys are hashed with the environment's seed: blocks are numbered 0, 1, … in every episode, and
without it the hottest one would have the same home in all of them. Real keys are arbitrary
tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, first_least, home
from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import random_word
from prefixgym.envs.view.hash_ring import HashRing
from prefixgym.envs.view.view import View


@register
@dataclass
class PrefixHash(Router):
    """The home of the prompt's first tokens, unless it is overloaded.

        load_ok(i)  iff  total load = 0  or  load(i) <= load_factor · (total load + 1) / n
                    or  load(i) <= (total load + 1) / n + balance_abs_threshold, if that is not 0

    over the n available instances, load = this router's requests in flight. The home is taken if
    load_ok; else the least loaded instance that is, the first among equals; else the home after
    all. As in the gateway's code, and unlike its documentation, the ring is not walked to the next
    instance.

    The view has ids of blocks, not tokens: the key is the id of the block that holds token
    min(prefix_token_count, L) - 1, so with blocks larger than the prefix it names more tokens than
    the real router's key, up to the block's end. A prompt too short for an id has no key and goes
    to the least loaded instance (since 2026-08; the first version failed such requests).

    Attributes:
        prefix_token_count: tokens that make up the key.
        load_factor: how far above the mean a home's load may be.
        balance_abs_threshold: requests; 0 is the first version, 10 the default since smg#2150 of
            2026-08: at a mean of 10 chance alone exceeds a factor of 1.25 in 18 % of cases.
        virtual_nodes: points of an instance on the ring.
    """

    name = "prefix_hash"
    source = "SGLang model gateway, prefix_hash, sglang#15935 of 2025-12 (§1.4)"
    family = "SGLang"
    knows = ("ring", "ledger")

    prefix_token_count: int = 256
    load_factor: float = 1.25
    balance_abs_threshold: int = 0
    virtual_nodes: int = 150

    def __post_init__(self) -> None:
        self.require("prefix_token_count", self.prefix_token_count >= 1, "at least 1")
        self.require("load_factor", self.load_factor > 0, "above 0")
        self.require("balance_abs_threshold", self.balance_abs_threshold >= 0, "at least 0")
        self.require("virtual_nodes", self.virtual_nodes >= 1, "at least 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Lay the ring."""
        self._ring = HashRing(len(cluster.instances), self.virtual_nodes)
        self._keys = router_keys(seeds)
        self._block_size = cluster.block_size

    def route(self, view: View) -> NDArray[np.int64]:
        """The prefix's home, or the least loaded instance."""
        chosen = np.empty(view.num_envs, np.int64)
        _prefix_hash(
            view.requests,
            view.block_ids,
            view.instances,
            self._ring.positions,
            self._ring.owners,
            self._keys,
            self._block_size,
            self.prefix_token_count,
            self.load_factor,
            self.balance_abs_threshold,
            chosen,
        )
        return chosen


@kernel
def _prefix_hash(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    keys: NDArray[np.uint64],
    block_size: int,
    prefix_token_count: int,
    load_factor: float,
    balance_abs_threshold: int,
    chosen: NDArray[np.int64],
) -> None:
    num_instances = instances.shape[1]
    picks = np.empty(num_instances, np.int64)
    loads = np.empty(num_instances)
    for e in range(len(chosen)):
        request = requests[e]
        count = candidates(instances[e], picks)
        for i in range(num_instances):
            loads[i] = instances[e, i]["requests"]
        total = 0.0
        for k in range(count):
            total += loads[picks[k]]
        mean = (total + 1) / count
        limit = load_factor * mean if total > 0 else np.inf
        if balance_abs_threshold > 0:
            limit = max(limit, mean + balance_abs_threshold)
        # If any load is within the limit, the least one is.
        least = first_least(loads, picks, count)
        if request["num_blocks"] == 0:
            chosen[e] = least
            continue
        last_token = min(prefix_token_count, request["prompt_tokens"]) - 1
        block = min(last_token // block_size, request["num_blocks"] - 1)
        key = random_word(keys[e], block_ids[e, block])
        owner = home(positions, owners, key, picks, count, num_instances)
        chosen[e] = owner if loads[owner] <= limit or loads[least] > limit else least
