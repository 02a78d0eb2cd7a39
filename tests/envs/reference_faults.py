"""What happens to the instances of a `ReferenceSimulation`, and how its routers find out."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np
from reference_engine import ReferenceEngine, Request
from reference_replica import ReferenceReplica

from prefixgym.envs.clock import to_ticks
from prefixgym.envs.cluster.faults import Autoscaler, Fault
from prefixgym.envs.view.knowledge import Knowledge


class Phase(Enum):
    SERVING = auto()
    DRAINING = auto()  # serves what it has; routers know
    DOWN = auto()  # and everybody knows
    LOST = auto()  # down without a word


@dataclass
class Instance:
    """An engine, and whether it is there."""

    engine: ReferenceEngine
    cost: np.void  # STEP_COST record of nominal speed
    phase: Phase = Phase.SERVING
    incarnation: int = 0  # how often it has gone down or come back
    limbo: list[Request] = field(default_factory=list)  # hang in a lost one
    found: set[int] = field(default_factory=set)  # routers that have noticed the loss
    is_silent: bool = False
    is_starting: bool = False  # the autoscaler has called for it
    rest: int | None = None  # ticks that it stays away once drained; None: for ever


class Timers:
    """What will happen at known times; at equal times in the order in which it was announced."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = itertools.count()

    def add(self, time: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time, next(self._serial), action))

    def times(self) -> list[int]:
        """When the next one is due; nothing if there is none."""
        return [self._heap[0][0]] if self._heap else []

    def run(self, now: int) -> None:
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)[2]()


class Host(Protocol):
    """The simulation to which all this happens."""

    now: int
    replicas: list[ReferenceReplica]
    timers: Timers
    corners: set[str]

    def fail(self, request: Request) -> None:
        """The attempt ends without an answer."""

    def end_cancelled(self, request: Request) -> None:
        """The request ends because its client has gone."""


class ReferenceFaults:
    """The lives of the instances, by `faults` and `autoscaler`."""

    def __init__(
        self,
        host: Host,
        instances: list[Instance],
        knowledge: Knowledge,
        faults: Sequence[Fault],
        autoscaler: Autoscaler | None,
    ) -> None:
        self.host, self.instances, self.autoscaler = host, instances, autoscaler
        self.forgets = knowledge.index.forget_down
        self.check_interval = _ticks(knowledge.health.interval)
        self.failures = knowledge.health.failures
        absent: set[int] = set()
        if autoscaler is not None:
            absent |= set(range(autoscaler.first, len(instances)))
        for fault in faults:
            chosen = fault.instances or tuple(range(len(instances)))
            for j, i in enumerate(chosen):
                if fault.kind == "join":
                    absent.add(i)
                self._schedule(fault, i, _ticks(fault.at) + j * _ticks(fault.stagger))
        for i in absent:
            self.instances[i].phase = Phase.DOWN
            self._mark_all(i, available=False)
        if autoscaler is not None:
            self.host.timers.add(_ticks(autoscaler.interval), self._scale)

    # --- faults ---

    def _schedule(self, fault: Fault, i: int, at: int) -> None:
        x, timers, begun = self.instances[i], self.host.timers, [-1]

        def begin() -> None:
            serves = x.phase in (Phase.SERVING, Phase.DRAINING)
            if fault.kind == "restart" and serves:
                if x.phase is Phase.DRAINING:
                    self.host.corners.add("restart of a draining one")
                self._go_down(i)
                begun[0] = x.incarnation
            elif fault.kind == "crash" and serves:
                self._crash(i)
                begun[0] = x.incarnation
            elif fault.kind == "drain" and x.phase is Phase.SERVING:
                rest = None if fault.lasts is None else _ticks(fault.lasts)
                self._drain(i, _ticks(fault.grace), rest)
            elif fault.kind == "join" and x.incarnation == 0:
                self._serve(i)
            elif fault.kind == "slow":
                x.engine.cost = slowed(x.cost, fault.factor)
            elif fault.kind == "flush" and serves:
                x.engine.pool.flush()
            elif fault.kind == "silence":
                x.is_silent = True

        def end() -> None:
            if fault.kind == "restart" and x.incarnation == begun[0]:
                self._serve(i)
            elif fault.kind == "crash" and x.incarnation == begun[0]:
                self._return(i)
            elif fault.kind == "slow":
                x.engine.cost = x.cost
            elif fault.kind == "silence":
                x.is_silent = False

        timers.add(at, begin)
        if fault.lasts is not None and fault.kind != "drain":
            timers.add(at + _ticks(fault.lasts), end)

    def _enter(self, i: int, phase: Phase) -> None:
        x = self.instances[i]
        x.phase, x.incarnation, x.is_starting = phase, x.incarnation + 1, False
        x.found.clear()

    def _mark_all(self, i: int, *, available: bool) -> None:
        for replica in self.host.replicas:
            replica.available[i] = available

    def _forget(self, replica: ReferenceReplica, i: int) -> None:
        if self.forgets:
            replica.reported[i] = set()

    def _go_down(self, i: int) -> None:
        """Everybody hears of it; what was there fails."""
        lost = self.instances[i].engine.go_down(self.host.now)
        self._enter(i, Phase.DOWN)
        self._mark_all(i, available=False)
        for replica in self.host.replicas:
            self._forget(replica, i)
        for request in lost:
            if request.is_abandoned:
                self.host.end_cancelled(request)
            else:
                self.host.fail(request)

    def _serve(self, i: int) -> None:
        """It is back, or there at last, and everybody knows."""
        self._enter(i, Phase.SERVING)
        self._mark_all(i, available=True)

    # --- without a word ---

    def _crash(self, i: int) -> None:
        x, corners = self.instances[i], self.host.corners
        if x.engine.step_end is not None:
            prefills = any(request.prefilling for request in x.engine.running)
            corners.add("crash in a prefill" if prefills else "crash while decoding")
        if x.incarnation > 0:
            corners.add("crash of one that was away before")
        if any(replica.held[i] for replica in self.host.replicas):
            corners.add("crash while requests for it are held")
        lost = x.engine.go_down(self.host.now)
        self._enter(i, Phase.LOST)
        x.limbo = [request for request in lost if not request.is_abandoned]
        for replica in self.host.replicas:
            first = self._first_check(replica.number, i, self.host.now + 1)
            found = first + (self.failures - 1) * self.check_interval
            self.host.timers.add(found, self._finding(replica, i, x.incarnation))
        for request in lost:
            if request.is_abandoned:
                self.host.end_cancelled(request)

    def _first_check(self, replica: int, i: int, time: int) -> int:
        """When the replica checks instance i first, not before `time`."""
        count = len(self.host.replicas)
        places = len(self.instances) * count
        phase = self.check_interval * (i * count + replica) // places
        return phase + max(0, -(-(time - phase) // self.check_interval)) * self.check_interval

    def _finding(self, replica: ReferenceReplica, i: int, incarnation: int) -> Callable[[], None]:
        def find() -> None:
            x = self.instances[i]
            if x.incarnation != incarnation:
                return
            x.found.add(replica.number)
            replica.available[i] = False
            self._forget(replica, i)
            mine = [request for request in x.limbo if request.replica == replica.number]
            if mine:
                self.host.corners.add("found dead")
            for request in mine:
                x.limbo.remove(request)
                self.host.fail(request)

        return find

    def _return(self, i: int) -> None:
        """It is back: connections break, and health checks will succeed."""
        x = self.instances[i]
        limbo, x.limbo = x.limbo, []
        if limbo:
            self.host.corners.add("back before it was found dead")
        self._enter(i, Phase.SERVING)
        for replica in self.host.replicas:
            if not replica.available[i]:
                check = self._first_check(replica.number, i, self.host.now)
                self.host.timers.add(check, self._success(replica, i, x.incarnation))
        for request in limbo:
            self.host.fail(request)

    def _success(self, replica: ReferenceReplica, i: int, incarnation: int) -> Callable[[], None]:
        def succeed() -> None:
            x = self.instances[i]
            if x.incarnation == incarnation and x.phase is Phase.SERVING:
                replica.available[i] = True
                self.host.corners.add("trusted again")

        return succeed

    # --- in good order ---

    def _drain(self, i: int, grace: int, rest: int | None) -> None:
        x = self.instances[i]
        x.phase, x.rest = Phase.DRAINING, rest
        self._mark_all(i, available=False)
        incarnation = x.incarnation

        def leave() -> None:
            if x.incarnation == incarnation:
                self.host.corners.add("grace runs out")
                self._leave(i)

        self.host.timers.add(self.host.now + grace, leave)
        self.check_drained(i)
        if x.incarnation > incarnation:
            self.host.corners.add("idle when drained")

    def check_drained(self, i: int) -> None:
        """A draining instance leaves as soon as it has nothing to do."""
        x = self.instances[i]
        if x.phase is Phase.DRAINING and not x.engine.running and not x.engine.waiting:
            self._leave(i)

    def _leave(self, i: int) -> None:
        x = self.instances[i]
        self._go_down(i)
        if x.rest is not None:
            self._serve_later(i, x.rest)

    def _serve_later(self, i: int, delay: int) -> None:
        incarnation = self.instances[i].incarnation

        def serve() -> None:
            if self.instances[i].incarnation == incarnation:
                self._serve(i)

        self.host.timers.add(self.host.now + delay, serve)

    # --- the autoscaler ---

    def _scale(self) -> None:
        scaler, instances = self.autoscaler, self.instances
        assert scaler is not None
        serving = [i for i, x in enumerate(instances) if x.phase is Phase.SERVING]
        engines = [instances[i].engine for i in serving]
        inside = sum(len(engine.running) + len(engine.waiting) for engine in engines)
        load = inside / len(serving) if serving else np.inf
        absent = [i for i, x in enumerate(instances) if x.phase is Phase.DOWN and not x.is_starting]
        if load > scaler.high and absent:
            instances[absent[0]].is_starting = True
            self.host.corners.add("scaled out")
            self._serve_later(absent[0], _ticks(scaler.startup))
        elif load < scaler.low and len(serving) > scaler.least:
            self._drain(serving[-1], _ticks(scaler.grace), None)
            self.host.corners.add("scaled in")
        self.host.timers.add(self.host.now + _ticks(scaler.interval), self._scale)


def slowed(cost: np.void, factor: float) -> np.void:
    """A STEP_COST record with all times multiplied."""
    found = cost.copy()
    times = ("h0", "h1", "t0", "a", "b", "t_experts", "table")
    for name in (*times, "p0", "p1", "p2", "d0", "d1", "d2"):
        found[name] = cost[name] * factor
    found["decode_slope"] = round(int(cost["decode_slope"]) * factor)
    return found


def _ticks(seconds: Any) -> int:
    return int(to_ticks(seconds))
