"""Prefill as a service with queues: what the capacity model leaves out, event by event.

A request waits for a prefill instance of the cluster that its length sends it to, one at a time on
each, first come first served. KV of remote prefills waits for the link, which sends one after the
other. Then a request takes a decode slot for a fixed time. Its first token comes when it has one.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prefixgym.experiments.paper.prfaas_model import Floats, Lengths

REMOTE, LOCAL, LINK, DECODE = range(4)
_ARRIVAL = 4


@dataclass(frozen=True)
class Plant:
    """What requests wait for.

    Attributes:
        remote: prefill instances of the remote cluster.
        local: those of the local one.
        slots: requests that decode at once.
        decode_seconds: how long each does.
    """

    remote: int
    local: int
    slots: int
    decode_seconds: float


@dataclass(frozen=True)
class Jobs:
    """R requests in order of arrival; all arrays are [R].

    Attributes:
        arrival: s.
        tokens: l.
        remote: s of prefill in the remote cluster.
        local: s of prefill in the local one.
        sending: s on the link.
    """

    arrival: Floats
    tokens: Floats
    remote: Floats
    local: Floats
    sending: Floats


def poisson_jobs(lengths: Lengths, count: int, seed: int) -> tuple[Floats, Floats]:
    """Arrivals at one request/s and lengths [count]: with any rate, the same requests.

    Returns:
        Arrivals (divide them by the rate) and prompt lengths.
    """
    generator = np.random.default_rng(seed)
    arrival = np.cumsum(generator.exponential(size=count))
    return arrival, lengths.quantiles(generator.random(count))


@dataclass(frozen=True)
class Sight:
    """What a threshold may be chosen by.

    Attributes:
        now: s.
        sent_seconds: how long the link has sent so far, counted when a transfer ends.
        link_wait: s of sending that waits for the link.
        local_wait: s of prefill that waits for a local instance, by instance.
    """

    now: float
    sent_seconds: float
    link_wait: float
    local_wait: float


class Threshold(Protocol):
    """Decides which requests are prefilled remotely: those with more tokens than it says."""

    def at(self, sight: Sight) -> float:
        """The threshold in tokens."""


@dataclass(frozen=True)
class Fixed:
    """The same threshold always."""

    tokens: float

    def at(self, sight: Sight) -> float:
        """The threshold."""
        return self.tokens


@dataclass
class Congested:
    """The threshold rises while the link is congested and falls back to its start afterwards.

    The source says no more than that egress utilisation and queue depth are watched. Here, every
    `window` seconds: utilisation ≥ `utilisation` or a wait ≥ `wait` multiplies it by 1 + `step`;
    else it is divided by that, down to `start`.

    Attributes:
        start: tokens, the optimum without congestion.
        most: tokens, an upper end.
        window: s.
        utilisation: share of the window that the link sent.
        wait: s of sending.
        step: relative.
        both_sides: it does not rise, but falls, where local prefill has the longer wait.
    """

    start: float
    most: float
    window: float = 5.0
    utilisation: float = 0.95
    wait: float = 2.0
    step: float = 0.02
    both_sides: bool = False
    _tokens: float = field(init=False)
    _since: float = field(init=False, default=0.0)
    _sent: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._tokens = self.start

    def at(self, sight: Sight) -> float:
        """The threshold, after what has been seen since it was last changed."""
        elapsed = sight.now - self._since
        if elapsed >= self.window:
            used = (sight.sent_seconds - self._sent) / elapsed
            congested = used >= self.utilisation or sight.link_wait >= self.wait
            if self.both_sides and sight.local_wait > sight.link_wait:
                congested = False
            if congested:
                self._tokens = min(self.most, self._tokens * (1 + self.step))
            else:
                self._tokens = max(self.start, self._tokens / (1 + self.step))
            self._since, self._sent = sight.now, sight.sent_seconds
        return self._tokens


@dataclass(frozen=True)
class Played:
    """What became of R requests; times in s.

    Attributes:
        arrival: as given.
        away: which were prefilled remotely.
        prefilled: when the prefill was done.
        first_token: when a decode slot took it.
        end: when it left the slot.
        threshold: that each met, tokens.
        link_seconds: how long the link sent.
    """

    arrival: Floats
    away: NDArray[np.bool_]
    prefilled: Floats
    first_token: Floats
    end: Floats
    threshold: Floats
    link_seconds: float

    def ttft(self, warm_up: float = 0.1) -> Floats:
        """Times to first token of all but the first share of requests, which find no queues."""
        found: Floats = (self.first_token - self.arrival)[int(warm_up * len(self.arrival)) :]
        return found


class _Station:
    """Servers with one queue, first come first served."""

    def __init__(self, servers: int, seconds: list[float]) -> None:
        self.servers = self.free = servers
        self.seconds = seconds  # of service, by request
        self.waiting: deque[int] = deque()
        self.work = 0.0  # s of service that wait

    @property
    def wait(self) -> float:
        """s of service that wait, by server."""
        return self.work / max(1, self.servers)

    def join(self, request: int) -> bool:
        """True if it is served at once."""
        if self.free == 0:
            self.waiting.append(request)
            self.work += self.seconds[request]
            return False
        self.free -= 1
        return True

    def leave(self) -> int | None:
        """A server is done: the request that it takes next, if there is one."""
        if not self.waiting:
            self.free += 1
            return None
        request = self.waiting.popleft()
        self.work -= self.seconds[request]
        return request


def play(jobs: Jobs, plant: Plant, threshold: Threshold) -> Played:
    """All requests from arrival to end.

    Raises:
        ValueError: a request is sent to a cluster that has no instance.
    """
    count = len(jobs.arrival)
    stations = [
        _Station(plant.remote, jobs.remote.tolist()),
        _Station(plant.local, jobs.local.tolist()),
        _Station(1, jobs.sending.tolist()),
        _Station(plant.slots, [plant.decode_seconds] * count),
    ]
    arrival, tokens = jobs.arrival.tolist(), jobs.tokens.tolist()
    done = np.full((3, count), np.nan)  # prefill, first token, end
    met = np.empty(count)
    away = np.zeros(count, bool)
    order = itertools.count()
    events: list[tuple[float, int, int, int]] = []
    link_seconds = 0.0

    def begin(now: float, place: int, request: int) -> None:
        if place == DECODE:
            done[1, request] = now
        heapq.heappush(
            events, (now + stations[place].seconds[request], next(order), place, request)
        )

    def enter(now: float, place: int, request: int) -> None:
        if stations[place].join(request):
            begin(now, place, request)

    if count:
        heapq.heappush(events, (arrival[0], next(order), _ARRIVAL, 0))
    while events:
        now, _, place, request = heapq.heappop(events)
        if place == _ARRIVAL:
            waits = stations[LINK].wait, stations[LOCAL].wait
            limit = threshold.at(Sight(now, link_seconds, *waits))
            met[request] = limit
            away[request] = tokens[request] > limit
            target = REMOTE if away[request] else LOCAL
            if (plant.remote, plant.local)[target] == 0:
                raise ValueError(
                    f"threshold: found {limit:g}, sends {tokens[request]:g} tokens to a cluster "
                    "without prefill instances"
                )
            enter(now, target, request)
            if request + 1 < count:
                heapq.heappush(events, (arrival[request + 1], next(order), _ARRIVAL, request + 1))
            continue
        following = stations[place].leave()
        if following is not None:
            begin(now, place, following)
        if place == DECODE:
            done[2, request] = now
        elif place == LINK:
            link_seconds += stations[LINK].seconds[request]
            enter(now, DECODE, request)
        else:
            done[0, request] = now
            enter(now, LINK if place == REMOTE else DECODE, request)
    return Played(jobs.arrival, away, done[0], done[1], done[2], met, link_seconds)
