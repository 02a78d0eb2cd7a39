"""A whole episode in plain Python: clusters of `ReferenceEngine` and what their router may know.

At one instant steps end first, then instances report, then what the router held back leaves, then
requests arrive (follow-ups before roots, by row), then steps start; instances in order of their
index. A rejected request ends when it comes to its instance, if it is too large for that, or at its
arrival, if the router turns it away.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from random_cases import SLOS, Case
from reference_engine import Event, ReferenceEngine, Request

from prefixgym.envs.clock import TICKS_PER_SECOND, to_seconds, to_ticks
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.cluster.state import NONE
from prefixgym.envs.cluster.step_time import step_ticks
from prefixgym.envs.decisions import FINISHED, OUTCOME, REJECTED
from prefixgym.envs.simulation import INSTANCE_TOTALS
from prefixgym.envs.slo import Slo
from prefixgym.envs.view.knowledge import Knowledge
from prefixgym.envs.view.view import (
    DISPATCHED,
    ENDED,
    FIRST_TOKEN,
    HOLD,
    INSTANCE_VIEW,
    REQUEST_VIEW,
    STARTED,
)
from prefixgym.envs.workload.tape import NO_ROW, Tape


class Telemetry(NamedTuple):
    """The state of an engine, as in INSTANCE_VIEW."""

    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    waiting_tokens: int = 0
    prefilling_tokens: int = 0
    throughput: float = 0.0


@dataclass
class Booking:
    """A request in the router's ledger."""

    instance: int
    prompt_tokens: int
    new_tokens: int
    ticks: int
    answered: bool = False
    batch: int | None = None  # number of the batch it left with, if those are counted
    started: bool = False  # in a batch of the engine, and no poll has told so yet


@dataclass
class Decision:
    """What the router saw at an arrival."""

    time: int
    row: int
    request: NDArray[np.void]  # REQUEST_VIEW []
    instances: NDArray[np.void]  # INSTANCE_VIEW [N]
    block_ids: list[int]
    caches: list[list[int | None]]  # keys of each instance's unused blocks, LRU first
    reported: list[set[int]]  # keys that each instance last reported
    events: list[tuple[float, int, int, int]]  # time (s), row, instance, kind


@dataclass
class Report:
    """Turns of one instance to tell what it holds, or how it does."""

    next: int
    interval: int


@dataclass
class ReferenceSimulation:
    """Play `tape` with fixed decisions; results are in `decisions`, `outcomes`, `totals`."""

    cluster: ClusterSpec
    tape: Tape
    slos: Sequence[Slo]
    knowledge: Knowledge
    actions: Sequence[int]
    orders: NDArray[np.void] | None  # as in `Case`, of this tape
    decisions: list[Decision] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.cluster.block_size
        self.engines = [
            ReferenceEngine(
                spec.profile.step_cost(self.cluster.kv_blocks(i) * size),
                self.cluster.kv_blocks(i),
                size,
                spec.max_batched_tokens,
                spec.max_sequences,
            )
            for i, spec in enumerate(self.cluster.instances)
        ]
        count = len(self.engines)
        self.now = 0
        rows = self.tape.requests
        self.waits_for: list[int] = rows["waits_for"].tolist()
        self.arrivals = [  # (time, 0 for follow-ups and 1 for roots, row)
            (int(rows["arrival"][row]), 1, row)
            for row in np.flatnonzero(rows["parent"] == NO_ROW).tolist()
        ]
        self.bookings: dict[int, Booking] = {}
        self.instance_of: dict[int, int] = {}
        self.reported: list[set[int]] = [set() for _ in range(count)]
        self.polled: list[Telemetry] = [Telemetry()] * count
        self.events: list[tuple[float, int, int, int]] = []
        self.holds = np.zeros(count, HOLD)
        self.held: list[list[Request]] = [[] for _ in range(count)]
        self.batches = 0
        self.reports = self._turns(self.knowledge.report_interval)
        self.polls = self._turns(self.knowledge.telemetry_interval)
        self.running_ticks = [0] * count
        self.waiting_ticks = [0] * count
        self.enqueued: list[Event] = []  # rejections, of which the router hears next
        while self.arrivals or any(self.held) or any(e.step_end is not None for e in self.engines):
            self._next_instant()

    def _turns(self, interval: float) -> list[Report]:
        ticks, count = int(to_ticks(interval)), len(self.engines)
        return [Report(ticks * i // count, ticks) for i in range(count)] if ticks > 0 else []

    # --- one instant ---

    def _next_instant(self) -> None:
        ends = [engine.step_end for engine in self.engines if engine.step_end is not None]
        times = [time for time, _, _ in self.arrivals] + ends
        departure = self._first_departure()
        times += [] if departure is None else [max(departure, self.now)]
        is_over = not times  # what the router would hold back for ever leaves now
        turns = [] if is_over else [turn.next for turn in self.reports + self.polls]
        now = min(times + turns, default=self.now)
        for i, engine in enumerate(self.engines):
            self.running_ticks[i] += len(engine.running) * (now - self.now)
            self.waiting_ticks[i] += len(engine.waiting) * (now - self.now)
        self.now = now
        for engine in self.engines:
            if engine.step_end == now:
                self._notice(engine.end_step(now))
        for i, engine in enumerate(self.engines):
            if self.reports and self.reports[i].next == now:
                self.reported[i] = set(engine.pool.cached)
                self.reports[i].next += self.reports[i].interval
            if self.polls and self.polls[i].next == now:
                self.polled[i] = self._state(engine)
                for request in engine.running:
                    if self.bookings[request.row].started:
                        self.bookings[request.row].started = False
                        self._hear(request, STARTED)
                self.polls[i].next += self.polls[i].interval
        self._depart(is_over)
        while self.arrivals and min(self.arrivals)[0] == now:
            arrival = min(self.arrivals)
            self.arrivals.remove(arrival)
            self._arrive(arrival[2])
            self._depart()
        for engine in self.engines:
            if engine.step_end is None:
                for request, _ in engine.start_step(now):
                    if self.polls:
                        self.bookings[request.row].started = True
                    else:
                        self._hear(request, STARTED)

    def _notice(self, events: list[Event]) -> None:
        """Responses reach the router; an end releases the follow-ups."""
        for request, kind in events:
            self.bookings[request.row].answered = True
            if self.instance_of[request.row] != NONE:
                self._hear(request, ENDED if kind == "end" else FIRST_TOKEN)
            if kind == "end":
                del self.bookings[request.row]
                self.ended.append(request)
                child = int(self.tape.requests["first_child"][request.row])
                while child != NO_ROW:
                    self._release(child)
                    child = int(self.tape.requests["next_sibling"][child])
                if self.tape.requests["then"][request.row] != NO_ROW:
                    self._release(int(self.tape.requests["then"][request.row]))

    def _hear(self, request: Request, kind: int) -> None:
        instance = self.instance_of[request.row]
        self.events.append((self.now / TICKS_PER_SECOND, request.row, instance, kind))

    # --- what the router holds back ---

    def _departure(self, i: int) -> int | None:
        """When the next batch for instance i may leave; None: not yet known."""
        hold, waits = self.holds[i], self.bookings.values()
        out = {b.batch for b in waits if b.instance == i and not b.answered} - {None}
        if not self.held[i] or 0 < hold["most_batches"] <= len(out) or hold["release"] == np.inf:
            return None
        return int(np.rint(hold["release"] * TICKS_PER_SECOND))

    def _first_departure(self) -> int | None:
        times = [self._departure(i) for i in range(len(self.engines))]
        return min((time for time in times if time is not None), default=None)

    def _depart(self, is_over: bool = False) -> None:
        """Everything leaves that may leave now; then what was rejected is heard of."""
        for i in range(len(self.engines)):
            while self.held[i] and (is_over or self._may_leave(i)):
                self._leave(i)
        if self.enqueued:
            events, self.enqueued = self.enqueued, []
            self._notice(events)
            self._depart()

    def _may_leave(self, i: int) -> bool:
        time = self._departure(i)
        return time is not None and time <= self.now

    def _leave(self, i: int) -> None:
        """One batch leaves for instance i."""
        members = self.held[i][: self.holds[i]["size"] or None]
        del self.held[i][: len(members)]
        self.batches += 1
        for request in members:
            if self.holds[i]["most_batches"] > 0:
                self.bookings[request.row].batch = self.batches
            self._dispatch(i, request)

    def _dispatch(self, i: int, request: Request) -> None:
        self._hear(request, DISPATCHED)
        self.enqueued += self.engines[i].enqueue(request, self.now)

    def _release(self, row: int) -> None:
        """One more of the ends that `row` waits for has come."""
        self.waits_for[row] -= 1
        if self.waits_for[row] == 0:
            think = int(self.tape.requests["arrival"][row])
            self.arrivals.append((self.now + think, 0, row))

    def _arrive(self, row: int) -> None:
        request, ids = self.tape.requests[row], self.tape.block_ids(row).tolist()
        decision = self._present(row)
        action = int(self.actions[len(self.decisions)])
        if self.orders is not None:
            self.holds = self.orders[len(self.decisions)].copy()
            self.holds["release"] += self.now / TICKS_PER_SECOND
        self.events = []
        self.decisions.append(decision)
        if action == len(self.engines):
            self._turn_away(row)
            return
        hit = int(decision.instances["hit_tokens"][action])
        prompt = int(request["prompt_tokens"])
        self.bookings[row] = Booking(
            action, prompt, prompt - hit, self._prefill_known(action, hit, prompt)
        )
        self.instance_of[row] = action
        flight = Request(
            row=row,
            arrival=self.now,
            prompt_tokens=prompt,
            output_tokens=int(request["output_tokens"]),
            keys=ids[: request["cacheable_blocks"]],
            expected=prompt - hit,
        )
        self.held[action].append(flight)

    def _turn_away(self, row: int) -> None:
        request = self.tape.requests[row]
        prompt, output = int(request["prompt_tokens"]), int(request["output_tokens"])
        self.bookings[row] = Booking(NONE, prompt, 0, 0)
        self.instance_of[row] = NONE
        flight = Request(row, self.now, prompt, output, keys=[])
        flight.rejected, flight.end, flight.hit_tokens = True, self.now, 0
        self._notice([Event(flight, "end")])

    # --- the router's view ---

    def _state(self, engine: ReferenceEngine) -> Telemetry:
        return Telemetry(
            waiting=len(engine.waiting),
            running=len(engine.running),
            kv_usage=1.0 - len(engine.pool.unused) / engine.num_blocks,
            waiting_tokens=sum(request.expected for request in engine.waiting),
            prefilling_tokens=sum(
                request.num_tokens - request.computed
                for request in engine.running
                if request.prefilling
            ),
            throughput=float(np.float32(engine.throughput)) * TICKS_PER_SECOND,
        )

    def _prefill_known(self, i: int, computed: int, tokens: int) -> int:
        """The tokens from `computed` to `tokens`, alone and in chunks of the budget."""
        total = 0
        while computed < tokens:
            chunk = min(tokens - computed, self.engines[i].max_batched_tokens)
            work = chunk * (computed + chunk / 2)
            total += step_ticks(self.engines[i].cost, chunk, work, 0, 0, 1)
            computed += chunk
        return total

    def _present(self, row: int) -> Decision:
        request = self.tape.requests[row]
        size, prompt = self.tape.block_size, int(request["prompt_tokens"])
        ids = self.tape.block_ids(row)[: request["num_blocks"]].tolist()
        shown = np.zeros((), REQUEST_VIEW)
        shown["time"] = self.now / TICKS_PER_SECOND
        if self.decisions:
            shown["gap"] = (self.now - self.decisions[-1].time) / TICKS_PER_SECOND
        shown["prompt_tokens"] = prompt
        shown["num_blocks"] = len(ids)
        shown["session"] = request["session"]
        shown["slo_class"] = request["slo_class"]
        slo = self.slos[request["slo_class"]]
        shown["slo_ttft"] = to_seconds(_most_ttft(slo, prompt))
        shown["slo_tpot"] = to_seconds(to_ticks(slo.tpot))
        shown["index"] = len(self.decisions)
        instances = np.zeros(len(self.engines), INSTANCE_VIEW)
        for i, engine in enumerate(self.engines):
            known = self.reported[i] if self.reports else set(engine.pool.cached)
            depth = 0
            while depth < min(len(ids), (prompt - 1) // size) and ids[depth] in known:
                depth += 1
            mine = [booking for booking in self.bookings.values() if booking.instance == i]
            unanswered = [booking for booking in mine if not booking.answered]
            telemetry = self.polled[i] if self.polls else self._state(engine)
            instances[i]["available"] = 1
            instances[i]["hit_tokens"] = depth * size
            instances[i]["prefill_seconds"] = (
                self._prefill_known(i, depth * size, prompt) / TICKS_PER_SECOND
            )
            instances[i]["requests"] = len(mine)
            instances[i]["prefill_requests"] = len(unanswered)
            instances[i]["prefill_tokens"] = sum(booking.new_tokens for booking in unanswered)
            backlog = sum(booking.ticks for booking in unanswered)
            instances[i]["backlog_seconds"] = backlog / TICKS_PER_SECOND
            instances[i]["context_tokens"] = sum(booking.prompt_tokens for booking in mine)
            for name, value in telemetry._asdict().items():
                instances[i][name] = value
            instances[i]["held"] = len(self.held[i])
            if self.held[i]:
                instances[i]["held_since"] = self.held[i][0].arrival / TICKS_PER_SECOND
        return Decision(
            self.now,
            row,
            shown,
            instances,
            ids,
            self.caches(),
            list(self.reported),
            self.events,
        )

    # --- results ---

    def caches(self) -> list[list[int | None]]:
        """For every instance the keys of its blocks without users, least recently used first."""
        return [[block.key for block in engine.pool.unused] for engine in self.engines]

    @property
    def outcomes(self) -> NDArray[np.void]:
        """OUTCOME records in the order of the requests' ends."""
        outcomes = np.zeros(len(self.ended), OUTCOME)
        frontend = int(to_ticks(self.cluster.frontend_latency))
        for outcome, request in zip(outcomes, self.ended, strict=True):
            row = self.tape.requests[request.row]
            slo = self.slos[row["slo_class"]]
            outcome["arrival"] = request.arrival / TICKS_PER_SECOND
            outcome["end"] = _known(request.end) / TICKS_PER_SECOND
            outcome["prompt_tokens"] = request.prompt_tokens
            outcome["output_tokens"] = request.output_tokens
            outcome["hit_tokens"] = _known(request.hit_tokens)
            outcome["instance"] = self.instance_of[request.row]
            outcome["session"] = row["session"]
            outcome["slo_class"] = row["slo_class"]
            outcome["row"] = request.row
            outcome["status"] = REJECTED if request.rejected else FINISHED
            outcome["ttft"] = np.nan
            if not request.rejected:
                ttft = _known(request.first_token) - request.arrival + frontend
                decoding = _known(request.end) - _known(request.first_token)
                tokens = request.output_tokens - 1
                outcome["ttft"] = ttft / TICKS_PER_SECOND
                if tokens > 0:
                    outcome["tpot"] = decoding / TICKS_PER_SECOND / tokens
                outcome["good"] = (
                    ttft <= _most_ttft(slo, request.prompt_tokens)
                    and decoding <= to_ticks(slo.tpot) * tokens
                )
        return outcomes

    @property
    def totals(self) -> NDArray[np.void]:
        """INSTANCE_TOTALS records [N]."""
        totals = np.zeros(len(self.engines), INSTANCE_TOTALS)
        columns: dict[str, list[Any]] = {
            "running_seconds": [ticks / TICKS_PER_SECOND for ticks in self.running_ticks],
            "waiting_seconds": [ticks / TICKS_PER_SECOND for ticks in self.waiting_ticks],
            "busy_seconds": [engine.busy_ticks / TICKS_PER_SECOND for engine in self.engines],
            "prefilled_tokens": [engine.prefilled_tokens for engine in self.engines],
            "preemptions": [engine.preemptions for engine in self.engines],
            "steps": [engine.steps for engine in self.engines],
        }
        for name, values in columns.items():
            totals[name] = values
        return totals


def play_reference(case: Case, tape: int = 0) -> ReferenceSimulation:
    """Tape number `tape` of a case."""
    return ReferenceSimulation(
        case.cluster,
        case.tapes[tape],
        SLOS,
        case.knowledge,
        case.actions[tape].tolist(),
        None if case.orders is None else case.orders[tape],
    )


def _most_ttft(slo: Slo, prompt_tokens: int) -> int:
    """Ticks."""
    return int(to_ticks(slo.ttft)) + int(to_ticks(slo.ttft_per_token)) * prompt_tokens


def _known(number: int | None) -> int:
    assert number is not None
    return number
