"""One router of a `ReferenceSimulation`: what it has booked, holds back and has been told."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from reference_engine import Event, ReferenceEngine, Request

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.view.experience import MEMORY
from prefixgym.envs.view.view import (
    CANCELLED,
    ENDED,
    FAILED,
    FIRST_TOKEN,
    HOLD,
    PREFILLED,
    STARTED,
)

HEARD = {
    "prefilled": PREFILLED,
    "first token": FIRST_TOKEN,
    "end": ENDED,
    "failed": FAILED,
    "cancelled": CANCELLED,
}


class Telemetry(NamedTuple):
    """The state of an engine, as in INSTANCE_VIEW."""

    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    waiting_tokens: int = 0
    prefilling_tokens: int = 0
    throughput: float = 0.0


class Ledger(NamedTuple):
    """What a router has booked at an instance."""

    requests: int = 0
    prefill_requests: int = 0
    prefill_tokens: int = 0
    backlog: int = 0  # ticks
    context_tokens: int = 0


def total(ledgers: list[Ledger]) -> Ledger:
    return Ledger(*(sum(column) for column in zip(*ledgers, strict=True)))


@dataclass
class Booking:
    """A request in a router's ledger."""

    instance: int
    decoder: int | None  # if another one
    prompt_tokens: int
    new_tokens: int
    ticks: int
    routed: int  # tick
    expected: int  # ticks booked at the instance then, its own included
    answered: bool = False  # it has its first token, or has left for its decoder
    moved: bool = False
    batch: int | None = None  # number of the batch it left with, if those are counted
    started: bool = False  # in a batch of the engine, and no poll has told so yet


@dataclass
class Experience:
    """What it booked and heard lately of an instance, see `prefixgym.envs.view.experience`."""

    recent_prefill_seconds: float = 0.0
    recent_booked_seconds: float = 0.0
    recent_wait_seconds: float = 0.0
    recent_tokens: float = 0.0
    recent_decode_seconds: float = 0.0

    def fade(self, ticks: int) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value * math.exp(-ticks / (MEMORY * TICKS_PER_SECOND)))


@dataclass
class Turns:
    """Turns of one instance to tell one router what it holds, or how it does."""

    next: int
    interval: int

    def comes(self, now: int) -> bool:
        """Whether there is one now; then the next is due an interval later."""
        if self.next != now:
            return False
        self.next += self.interval
        return True


def turns(interval: int, replica: int, replicas: int, instances: int) -> list[Turns]:
    """Of all instances with one router, none if the interval is 0 (all is known at once)."""
    if interval == 0:
        return []
    slots = instances * replicas
    return [Turns(interval * (i * replicas + replica) // slots, interval) for i in range(instances)]


@dataclass
class ReferenceReplica:
    """Router `number` of those that share N engines."""

    number: int
    engines: list[ReferenceEngine]
    reports: list[Turns]
    polls: list[Turns]
    bookings: dict[int, Booking] = field(default_factory=dict)  # by row
    events: list[tuple[float, int, int, int]] = field(default_factory=list)
    batches: int = 0
    decided: int = 0  # tick of its last decision

    def __post_init__(self) -> None:
        count = len(self.engines)
        self.available = [True] * count
        self.reported: list[set[int]] = [set() for _ in range(count)]
        self.polled = [Telemetry()] * count
        self.holds: NDArray[np.void] = np.zeros(count, HOLD)
        self.held: list[list[Request]] = [[] for _ in range(count)]
        self.board = [Ledger()] * count  # its own ledgers, as all saw them last
        self.experience = [Experience() for _ in range(count)]

    # --- what it hears ---

    def hear(self, now: int, request: Request, kind: int) -> None:
        self.events.append((now / TICKS_PER_SECOND, request.row, request.instance, kind))

    def hear_start(self, now: int, request: Request) -> None:
        """It is in a batch: known at once, or with the next poll."""
        if self.polls:
            self.bookings[request.row].started = True
        else:
            self.hear(now, request, STARTED)

    def hear_response(self, now: int, event: Event) -> None:
        request, booking = event.request, self.bookings[event.request.row]
        self.hear(now, request, HEARD[event.kind])
        heard = self.experience[request.instance]
        if event.kind == "first token" and booking.moved:
            return
        if event.kind in ("first token", "prefilled"):
            booking.answered = True
            booking.moved = event.kind == "prefilled"
            heard.recent_booked_seconds += booking.expected / TICKS_PER_SECOND
            heard.recent_wait_seconds += (now - booking.routed) / TICKS_PER_SECOND
            return
        if event.kind == "end" and request.first_token is not None and request.output_tokens > 1:
            heard.recent_tokens += request.output_tokens - 1
            heard.recent_decode_seconds += (now - request.first_token) / TICKS_PER_SECOND
        del self.bookings[request.row]

    def decide(self, now: int) -> None:
        """A request has reached it."""
        for experience in self.experience:
            experience.fade(now - self.decided)
        self.decided = now

    def book(self, i: int, request: Request, hit: int, ticks: int) -> None:
        """It sends a request to instance i."""
        expected = self.ledger(i).backlog + ticks
        new_tokens = request.prompt_tokens - hit
        decoder = None if request.decoder == i else request.decoder
        self.bookings[request.row] = Booking(
            i, decoder, request.prompt_tokens, new_tokens, ticks, request.routed, expected
        )
        self.experience[i].recent_prefill_seconds += ticks / TICKS_PER_SECOND

    def report(self, i: int) -> None:
        self.reported[i] = set(self.engines[i].pool.cached)

    def poll(self, now: int, i: int) -> None:
        self.polled[i] = state_of(self.engines[i])
        for request in self.engines[i].running:
            if request.replica == self.number and self.bookings[request.row].started:
                self.bookings[request.row].started = False
                self.hear(now, request, STARTED)

    def known_blocks(self, i: int) -> set[int]:
        return self.reported[i] if self.reports else set(self.engines[i].pool.cached)

    def known_state(self, i: int) -> Telemetry:
        return self.polled[i] if self.polls else state_of(self.engines[i])

    # --- what it knows by itself ---

    def ledger(self, i: int) -> Ledger:
        mine = [
            booking
            for booking in self.bookings.values()
            if (booking.instance == i and not booking.moved) or booking.decoder == i
        ]
        unanswered = [booking for booking in mine if booking.instance == i and not booking.answered]
        return Ledger(
            requests=len(mine),
            prefill_requests=len(unanswered),
            prefill_tokens=sum(booking.new_tokens for booking in unanswered),
            backlog=sum(booking.ticks for booking in unanswered),
            context_tokens=sum(booking.prompt_tokens for booking in mine),
        )

    def departure(self, i: int) -> int | None:
        """When the next batch for instance i may leave; None: not yet known."""
        hold, waits = self.holds[i], self.bookings.values()
        out = {b.batch for b in waits if b.instance == i and not b.answered} - {None}
        if not self.held[i] or 0 < hold["most_batches"] <= len(out) or hold["release"] == np.inf:
            return None
        return int(np.rint(hold["release"] * TICKS_PER_SECOND))

    def let_go(self, i: int) -> list[Request]:
        """One batch leaves for instance i."""
        members = self.held[i][: self.holds[i]["size"] or None]
        del self.held[i][: len(members)]
        self.batches += 1
        for request in members:
            if self.holds[i]["most_batches"] > 0:
                self.bookings[request.row].batch = self.batches
        return members


def state_of(engine: ReferenceEngine) -> Telemetry:
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
