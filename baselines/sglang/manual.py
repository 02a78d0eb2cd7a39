"""SGLang's manual policy: sticky sessions, assigned once and kept.

Source: `routers_sglang_vllm_aibrix_llmd.md` §1.9; read in sglang
`sgl-model-gateway/src/policies/manual.rs` at 0091690b, and held against sglang-router 0.3.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import NOWHERE, register
from prefixgym.baselines.scored import ScoredRouter, Ties
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.view.view import ENDED, View

AssignmentMode = Literal["random", "min_load", "min_group"]
_MODES = get_args(AssignmentMode)
_RANDOM, _MIN_LOAD, _MIN_GROUP = range(3)
_NO_HOME = -1
_START_SESSIONS = 64

KEY = np.dtype(
    [
        ("used", np.float64),  # s, last time
        ("count", np.int32),  # of instances that it remembers: 0, 1 or 2
        ("first", np.int32),
        ("second", np.int32),
    ],
    align=True,
)
"""What is kept of a routing key."""

FLIGHT = np.dtype(
    [("session", np.int64), ("instance", np.int32), ("is_live", np.int32)], align=True
)
"""A request in flight."""


@register
@dataclass
class Manual(ScoredRouter):
    """Every session keeps the instance that it was assigned at its first request.

    A key (the header X-SMG-Routing-Key, here the session) remembers up to two instances. The first
    of them that is available is taken. If none is, or the key is new, one is assigned by
    assignment_mode, equals at random, and remembered in place of the older one; so a session
    whose instance comes back returns to it.

        random     any available instance
        min_load   the one with the fewest of this router's requests in flight
        min_group  the one with the fewest different keys in flight

    Every eviction_interval_secs the keys that were not used for max_idle_secs are forgotten.
    Requests without a key go to a random instance there; here every request has a session.

    Attributes:
        assignment_mode: random, min_load or min_group.
        max_idle_secs: seconds; 0 never forgets.
        eviction_interval_secs: seconds; 0 never forgets (the Rust binary's default: 120).
    """

    name = "manual"
    source = "SGLang model gateway, manual, sglang-router 0.3.2 (§1.9)"
    family = "SGLang"
    knows = ("history", "ledger")
    ties: ClassVar[Ties] = "random"

    assignment_mode: str = "random"
    max_idle_secs: int = 14400
    eviction_interval_secs: int = 60

    def __post_init__(self) -> None:
        self.require("assignment_mode", self.assignment_mode in _MODES, ", ".join(_MODES))
        self.require("max_idle_secs", self.max_idle_secs >= 0, "at least 0")
        self.require("eviction_interval_secs", self.eviction_interval_secs >= 0, "at least 0")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """No keys."""
        super().reset(cluster, seeds)
        self._sessions = np.zeros((len(seeds), _START_SESSIONS), KEY)
        self._flights = np.zeros((len(seeds), 0), FLIGHT)
        self._groups = np.zeros((len(seeds), len(cluster.instances)), np.int64)
        forgets = self.max_idle_secs > 0 and self.eviction_interval_secs > 0
        self._interval = float(self.eviction_interval_secs) if forgets else math.inf

    def hear(self, view: View) -> None:
        """Requests that have ended no longer count for their key's group."""
        if self.assignment_mode == "min_group":
            if view.num_slots > self._flights.shape[1]:
                self._flights = widened(self._flights, view.num_slots)
            _leave(view.events, view.num_events, self._flights, self._groups)

    def scores(self, view: View) -> NDArray[np.float64]:
        """0 for the key's instance and inf for the others; by mode where it has none."""
        self._make_room(view.requests)
        scores = np.empty(view.instances.shape)
        _scores(
            view.requests,
            view.instances,
            self._sessions,
            self._groups,
            self._interval,
            float(self.max_idle_secs),
            _MODES.index(self.assignment_mode),
            scores,
        )
        return scores

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Remember the session's instance, and that the session was there."""
        _remember(view.requests, chosen, self._sessions, self._interval, float(self.max_idle_secs))
        if self.assignment_mode == "min_group":
            _join(view.requests, chosen, self._flights, self._groups)

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Remember their sessions' instances."""
        self._make_room(requests)
        _remember(requests, chosen, self._sessions, self._interval, float(self.max_idle_secs))

    def _make_room(self, requests: NDArray[np.void]) -> None:
        most = int(requests["session"].max())
        if most >= self._sessions.shape[1]:
            self._sessions = widened(self._sessions, max(most + 1, 2 * self._sessions.shape[1]))


@kernel
def _is_forgotten(key: Record, now: float, interval: float, max_idle: float) -> bool:
    """Whether one of the sweeps at interval, 2 · interval, … has found the key idle for so long."""
    last_sweep = math.floor(now / interval) * interval
    return bool(last_sweep - key["used"] >= max_idle)


@kernel
def _home(key: Record, instances: NDArray[np.void]) -> int:
    """The first remembered instance that is available, or _NO_HOME."""
    if key["count"] > 0 and instances[key["first"]]["available"] != 0:
        return int(key["first"])
    if key["count"] > 1 and instances[key["second"]]["available"] != 0:
        return int(key["second"])
    return _NO_HOME


@kernel
def _scores(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    sessions: NDArray[np.void],
    groups: NDArray[np.int64],
    interval: float,
    max_idle: float,
    mode: int,
    scores: NDArray[np.float64],
) -> None:
    for e in range(len(scores)):
        key = sessions[e, requests[e]["session"]]
        home = _NO_HOME
        if not _is_forgotten(key, requests[e]["time"], interval, max_idle):
            home = _home(key, instances[e])
        for i in range(scores.shape[1]):
            if home != _NO_HOME:
                scores[e, i] = 0.0 if i == home else np.inf
            elif mode == _MIN_LOAD:
                scores[e, i] = instances[e, i]["requests"]
            elif mode == _MIN_GROUP:
                scores[e, i] = groups[e, i]
            else:
                scores[e, i] = 0.0


@kernel
def _remember(
    requests: NDArray[np.void],
    chosen: NDArray[np.int64],
    sessions: NDArray[np.void],
    interval: float,
    max_idle: float,
) -> None:
    for e in range(len(chosen)):
        if chosen[e] == NOWHERE:
            continue
        key = sessions[e, requests[e]["session"]]
        if _is_forgotten(key, requests[e]["time"], interval, max_idle):
            key["count"] = 0
        key["used"] = requests[e]["time"]
        if key["count"] == 0:
            key["first"] = chosen[e]
            key["count"] = 1
        elif chosen[e] != key["first"] and (key["count"] == 1 or chosen[e] != key["second"]):
            if key["count"] == 2:
                key["first"] = key["second"]
            key["second"] = chosen[e]
            key["count"] = 2


@kernel
def _has_flight(flights: NDArray[np.void], session: int, instance: int) -> bool:
    for q in range(len(flights)):
        flight = flights[q]
        if flight["is_live"] and flight["session"] == session and flight["instance"] == instance:
            return True
    return False


@kernel
def _join(
    requests: NDArray[np.void],
    chosen: NDArray[np.int64],
    flights: NDArray[np.void],
    groups: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        if not _has_flight(flights[e], requests[e]["session"], chosen[e]):
            groups[e, chosen[e]] += 1
        flight = flights[e, requests[e]["slot"]]
        flight["session"] = requests[e]["session"]
        flight["instance"] = chosen[e]
        flight["is_live"] = 1


@kernel
def _leave(
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    flights: NDArray[np.void],
    groups: NDArray[np.int64],
) -> None:
    for e in range(len(num_events)):
        for k in range(num_events[e]):
            if events[e, k]["kind"] >= ENDED:  # finished, failed or cancelled
                flight = flights[e, events[e, k]["slot"]]
                flight["is_live"] = 0
                if not _has_flight(flights[e], flight["session"], flight["instance"]):
                    groups[e, flight["instance"]] -= 1
