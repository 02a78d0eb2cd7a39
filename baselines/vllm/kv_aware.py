"""vLLM production stack's routers on LMCache's index: kvaware and loadaware.

The index is `hit_tokens` of the view: leading prompt tokens that an instance reported as cached.
Holders are the available instances with a hit.

Sources: `routers_sglang_vllm_aibrix_llmd.md` §2.2, §2.3, §2.8, §2.9; the lookup and the scores read
in LMCache `kv_controller.py`, `RegistryTree.find_kv` and production-stack `routing_logic.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, home
from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import random_word
from prefixgym.envs.view.arrival_rate import ArrivalRate
from prefixgym.envs.view.hash_ring import HashRing
from prefixgym.envs.view.view import View

_QPS_WINDOW = 60.0
_TO_FALLBACK = -1


@dataclass
class _IndexRouter(Router):
    """What both routers share: where a request goes that the index says nothing about.

    Attributes:
        fallback: `session` is the home of the request's session on a hash ring, for requests that
            carry a session key; `qps` the instance with the fewest arrivals in the last 60 s (the
            first that never had one, else the first among equals), for those that do not.
        virtual_nodes: points of an instance on the ring.
    """

    fallback: str = "session"
    virtual_nodes: int = 160

    def __post_init__(self) -> None:
        self.require("fallback", self.fallback in ("session", "qps"), "session, qps")
        self.require("virtual_nodes", self.virtual_nodes >= 1, "at least 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Lay the ring; no arrivals yet."""
        num_instances = len(cluster.instances)
        self._ring = HashRing(num_instances, self.virtual_nodes)
        self._keys = router_keys(seeds)
        self._arrivals = ArrivalRate(len(seeds), num_instances, _QPS_WINDOW)

    def route(self, view: View) -> NDArray[np.int64]:
        """By the index where it knows enough, else by the fallback."""
        chosen = np.empty(view.num_envs, np.int64)
        self._choose(view, chosen)
        if self.fallback == "session":
            _to_session(
                view.requests,
                view.instances,
                self._ring.positions,
                self._ring.owners,
                self._keys,
                chosen,
            )
        else:
            now = view.requests["time"]
            self._arrivals.advance(now)
            _to_lowest_qps(view.instances, self._arrivals.counts, self._arrivals.seen, chosen)
            self._arrivals.record(now, chosen)
        return chosen

    def _choose(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Write the choice by the index, or _TO_FALLBACK."""
        raise NotImplementedError


@kernel
def _to_session(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    keys: NDArray[np.uint64],
    chosen: NDArray[np.int64],
) -> None:
    num_instances = instances.shape[1]
    picks = np.empty(num_instances, np.int64)
    for e in range(len(chosen)):
        if chosen[e] == _TO_FALLBACK:
            count = candidates(instances[e], picks)
            key = random_word(keys[e], requests[e]["session"])
            chosen[e] = home(positions, owners, key, picks, count, num_instances)


@kernel
def _to_lowest_qps(
    instances: NDArray[np.void],
    arrivals: NDArray[np.int64],
    seen: NDArray[np.bool_],
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        if chosen[e] == _TO_FALLBACK:
            best = _TO_FALLBACK
            for k in range(candidates(instances[e], picks)):
                i = picks[k]
                if not seen[e, i]:
                    best = i
                    break
                if best == _TO_FALLBACK or arrivals[e, i] < arrivals[e, best]:
                    best = i
            chosen[e] = best


@register
@dataclass
class Kvaware(_IndexRouter):
    """The first holder of the prompt's prefix, whatever its load and however many hold it.

        matched < max(L - kv_aware_threshold, 0)  →  fallback

    so prompts up to the threshold accept any match, and longer ones need all but that many tokens.

    "First" is the first key of the controller's answer, which names one holder for each chunk of
    the prompt, in order. LMCache's controller searches its instances in the order in which they
    registered, so the first key is the lowest-numbered holder of the first chunk, and its matched
    tokens are its own longest prefix: that is what happens here. (Before the registry tree it
    was the instance that admitted the first chunk earliest, which a view does not tell.)

    Attributes:
        kv_aware_threshold: tokens that may be missing.
    """

    name = "kvaware"
    source = "vLLM production stack, kvaware (§2.3)"
    family = "vLLM"
    knows = ("index", "ring")

    kv_aware_threshold: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("kv_aware_threshold", self.kv_aware_threshold >= 0, "at least 0")

    def _choose(self, view: View, chosen: NDArray[np.int64]) -> None:
        _kvaware(view.requests, view.instances, self.kv_aware_threshold, chosen)


@kernel
def _kvaware(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    threshold: int,
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        chosen[e] = _TO_FALLBACK
        for k in range(candidates(instances[e], picks)):
            matched = instances[e, picks[k]]["hit_tokens"]
            if matched > 0:
                if matched >= requests[e]["prompt_tokens"] - threshold:
                    chosen[e] = picks[k]
                break


@register
@dataclass
class Loadaware(_IndexRouter):
    """The best sum of cached share and relative load, over all instances.

        score_i = min(matched_i, L) / max(L, 1) - beta · (N_i - mean) / max(1, mean)

    N_i = this router's requests in flight on i, mean over the available instances. The load term is
    signed: an instance below the mean is rewarded. The first among equals (real: the smallest URL).
    Without any holder the fallback decides and load is not looked at.

    Attributes:
        beta: full cache hits that a load of 100 % above the mean costs.
    """

    name = "loadaware"
    source = "vLLM production stack, loadaware, PR #1035 of 2026-08 (§2.8)"
    family = "vLLM"
    knows = ("index", "ledger", "ring")

    beta: float = 1.0

    def _choose(self, view: View, chosen: NDArray[np.int64]) -> None:
        _loadaware(view.requests, view.instances, self.beta, chosen)


@kernel
def _loadaware(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    beta: float,
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        count = candidates(instances[e], picks)
        total, held = 0, False
        for k in range(count):
            row = instances[e, picks[k]]
            total += row["requests"]
            held = held or row["hit_tokens"] > 0
        chosen[e] = _TO_FALLBACK
        if held:
            mean = total / count
            prompt_tokens = requests[e]["prompt_tokens"]
            best_score = -np.inf
            for k in range(count):
                row = instances[e, picks[k]]
                benefit = min(row["hit_tokens"], prompt_tokens) / max(prompt_tokens, 1)
                score = benefit - beta * ((row["requests"] - mean) / max(1.0, mean))
                if score > best_score:
                    best_score = score
                    chosen[e] = picks[k]
