"""Session affinity: every session has a fixed home by consistent hashing.

Keys are hashed with the environment's seed: sessions are numbered 0, 1, … in every episode, and
without it the hottest one would have the same home in all of them. Real keys are arbitrary
strings.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, home
from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.rng import random_word
from prefixgym.envs.view.hash_ring import HashRing
from prefixgym.envs.view.view import View


@register
@dataclass
class SessionAffinity(Router):
    """The home of the request's session, whatever the load.

    While that is unavailable, the next one on the ring: vLLM's production stack takes it off the
    ring, SGLang's gateway walks past it, which is the same.

    Attributes:
        virtual_nodes: points of an instance on the ring; 160 is vllm-project/router's number and
            that of uhashing, which the production stack uses (SGLang: 150).
    """

    name = "session_affinity"
    source = "vLLM production stack, session (§2.2); SGLang, consistent_hashing (§1.8)"
    family = "vLLM"
    knows = ("ring",)

    virtual_nodes: int = 160

    def __post_init__(self) -> None:
        self.require("virtual_nodes", self.virtual_nodes >= 1, "at least 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Lay the ring."""
        self._ring = HashRing(len(cluster.instances), self.virtual_nodes)
        self._keys = router_keys(seeds)

    def route(self, view: View) -> NDArray[np.int64]:
        """The session's home."""
        chosen = np.empty(view.num_envs, np.int64)
        _session_affinity(
            view.requests,
            view.instances,
            self._ring.positions,
            self._ring.owners,
            self._keys,
            chosen,
        )
        return chosen


@kernel
def _session_affinity(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    keys: NDArray[np.uint64],
    chosen: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        chosen[e] = session_home(requests[e], instances[e], positions, owners, keys[e])


@kernel
def session_home(
    request: Record,
    instances: NDArray[np.void],
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    key: np.uint64,
) -> int:
    """The home of one request's session on the ring."""
    picks = np.empty(len(instances), np.int64)
    count = candidates(instances, picks)
    place = random_word(key, request["session"])
    return home(positions, owners, place, picks, count, len(instances))
