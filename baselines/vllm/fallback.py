"""Where vLLM's production stack sends a request that its index or history says nothing about.

By session, the home of the request's session on a hash ring (§2.2), or, for requests without a
session key, by QPS: the instance with the fewest arrivals in the last 60 s (§2.9).

Sources: `routers_sglang_vllm_aibrix_llmd.md` §2.2, §2.9; production-stack `routing_logic.py`,
`_fallback_routing` and `_qps_routing`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.router import Router, router_keys
from prefixgym.baselines.vllm.session import session_home
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.arrival_rate import ArrivalRate
from prefixgym.envs.view.hash_ring import HashRing
from prefixgym.envs.view.view import View

QPS_WINDOW = 60.0
"""Seconds over which arrivals are counted."""

TO_FALLBACK = -1
"""In place of an instance: the fallback decides."""


@dataclass
class IndexRouter(Router):
    """A router on LMCache's index, with a fallback for what the index does not know.

    A subclass overrides `choose`, and `hear` and `commit` if it remembers requests in flight.

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
        self._arrivals = ArrivalRate(len(seeds), num_instances, QPS_WINDOW)

    def route(self, view: View) -> NDArray[np.int64]:
        """By the index where it knows enough, else by the fallback."""
        self.hear(view)
        chosen = np.empty(view.num_envs, np.int64)
        self.choose(view, chosen)
        if self.fallback == "session":
            to_session(
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
            to_lowest_qps(view.instances, self._arrivals.counts, self._arrivals.seen, chosen)
            self._arrivals.record(now, chosen)
        self.commit(view, chosen)
        return chosen

    def hear(self, view: View) -> None:
        """Take in `view.events`: called once at every decision, before `choose`."""

    def choose(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Write the choice by the index, or TO_FALLBACK, to `chosen`, shape [E]."""
        raise NotImplementedError

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Remember that the current requests go to `chosen`, [E]."""


@kernel
def to_session(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    keys: NDArray[np.uint64],
    chosen: NDArray[np.int64],
) -> None:
    """Send every request that is TO_FALLBACK to its session's home on the ring."""
    for e in range(len(chosen)):
        if chosen[e] == TO_FALLBACK:
            chosen[e] = session_home(requests[e], instances[e], positions, owners, keys[e])


@kernel
def to_lowest_qps(
    instances: NDArray[np.void],
    arrivals: NDArray[np.int64],
    seen: NDArray[np.bool_],
    chosen: NDArray[np.int64],
) -> None:
    """Send every request that is TO_FALLBACK to the instance with the fewest arrivals."""
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        if chosen[e] == TO_FALLBACK:
            best = TO_FALLBACK
            for k in range(candidates(instances[e], picks)):
                i = picks[k]
                if not seen[e, i]:
                    best = i
                    break
                if best == TO_FALLBACK or arrivals[e, i] < arrivals[e, best]:
                    best = i
            chosen[e] = best
