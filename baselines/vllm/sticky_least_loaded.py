"""vllm-router's sticky_least_loaded: new sessions where the fewest sessions live, then they stay.

Source: `routers_sglang_vllm_aibrix_llmd.md` §2.10; read in vllm-project/router
`src/policies/sticky_least_loaded.rs` at 335c57e2 and held against vllm-router 0.1.17.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import NOWHERE, register
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.baselines.vllm.bindings import UNBOUND, bindings, with_sessions
from prefixgym.baselines.vllm.rendezvous_hash import weight
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View

_SWEEP_INTERVAL = 60.0


@register
@dataclass
class StickyLeastLoaded(ScoredRouter):
    """A session stays where it is; a new one goes to the instance with the fewest sessions.

    Equals by rendezvous hash of (session, instance). A session whose instance is away is a new one.
    Sessions unused for session_expiration are dropped, by a sweep at a decision at least 60 s after
    the last one. A session has no end that a router sees: the real one has an endpoint for it,
    which clients have to call.

    Attributes:
        session_expiration: seconds (environment variable VLLM_ROUTER_SLL_SESSION_EXPIRATION_IN_S).
    """

    name = "sticky_least_loaded"
    source = "vllm-project/router, sticky_least_loaded, vllm-router 0.1.17 (§2.10)"
    family = "vLLM"
    knows = ("ring", "history")

    session_expiration: float = 7200.0

    def __post_init__(self) -> None:
        self.require("session_expiration", self.session_expiration > 0, "above 0")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """No sessions."""
        super().reset(cluster, seeds)
        self._bindings = bindings(len(seeds))
        self._counts = np.zeros((len(seeds), len(cluster.instances)), np.int64)
        self._last_sweep = np.zeros(len(seeds))

    def hear(self, view: View) -> None:
        """Drop the expired sessions when it is time to sweep."""
        self._bindings = with_sessions(self._bindings, view.requests["session"])
        _sweep(
            view.requests, self._bindings, self._counts, self._last_sweep, self.session_expiration
        )

    def scores(self, view: View) -> NDArray[np.float64]:
        """Sessions that live there, less a weight below 1; -1 where this one does."""
        scores = np.empty(view.instances.shape)
        _scores(view.requests, view.instances, self._bindings, self._counts, self._keys, scores)
        return scores

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """The session lives there now."""
        _bind(view.requests, chosen, self._bindings, self._counts)

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """So do their sessions."""
        self._bindings = with_sessions(self._bindings, requests["session"])
        _bind(requests, chosen, self._bindings, self._counts)


@kernel
def _sweep(
    requests: NDArray[np.void],
    sessions: NDArray[np.void],
    counts: NDArray[np.int64],
    last_sweep: NDArray[np.float64],
    expiration: float,
) -> None:
    for e in range(len(requests)):
        now = requests[e]["time"]
        if now - last_sweep[e] < _SWEEP_INTERVAL:
            continue
        last_sweep[e] = now
        for s in range(sessions.shape[1]):
            row = sessions[e, s]
            if row["instance"] != UNBOUND and now - row["used"] >= expiration:
                counts[e, row["instance"]] -= 1
                row["instance"] = UNBOUND


@kernel
def _scores(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    sessions: NDArray[np.void],
    counts: NDArray[np.int64],
    keys: NDArray[np.uint64],
    scores: NDArray[np.float64],
) -> None:
    for e in range(len(requests)):
        session = requests[e]["session"]
        bound = sessions[e, session]["instance"]
        for i in range(instances.shape[1]):
            scores[e, i] = counts[e, i] - weight(keys[e], session, i)
        if bound != UNBOUND:
            scores[e, bound] = -1.0


@kernel
def _bind(
    requests: NDArray[np.void],
    chosen: NDArray[np.int64],
    sessions: NDArray[np.void],
    counts: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        if chosen[e] == NOWHERE:
            continue
        row = sessions[e, requests[e]["session"]]
        if row["instance"] != chosen[e]:
            if row["instance"] != UNBOUND:
                counts[e, row["instance"]] -= 1
            counts[e, chosen[e]] += 1
            row["instance"] = chosen[e]
        row["used"] = requests[e]["time"]
