"""Our routers decide as those of the wheel sglang-router 0.3.2 do, request by request.

Every policy that `sglang-router launch` offers. Ours are shown what the real ones know: the
wheel's workers in the wheel's order, its counts of requests in flight, the same prefixes. Where a
real router breaks an exact tie at random, its choice has to be among ours, and ours is made to
follow it.

What the wheel counts: requests in flight only under cache_aware and manual in its HTTP mode, so
that power_of_two there compares zeros (smg#2146); under every policy in its PD mode.
"""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from made_views import one_view, router_for
from mixed_prefixes import CHARS, CHARS_PER_TOKEN, MixedPrefixes, Path, shares
from mock_workers import MockWorkers
from real_router import Flight, RealRouter, require_package

import prefixgym.baselines  # noqa: F401  (fills the registry)
from prefixgym.baselines.router import Router
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.baselines.sglang.cache_aware import CacheAware
from prefixgym.envs.view.view import ENDED, EVENT_VIEW, View

REQUESTS = 1000
DRAWS = 60
"""Enough draws to see all of four instances: one is missed with probability 1e-7."""
LAUNCH = [
    *("sglang-router", "launch", "--disable-retries", "--disable-circuit-breaker"),
    *("--worker-startup-check-interval", "1", "--health-check-interval-secs", "1"),
    *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
    *("--health-check-timeout-secs", "20"),
]


@pytest.fixture(autouse=True)
def _wheel() -> None:
    require_package("sglang-router", "0.3.2")


class Twin:
    """Our router beside the real one, over the same workers.

    Args:
        name: of our router.
        num_workers: how many there are.
        parameters: of our router.

    Attributes:
        pool: the number of the worker that each of our instances stands for; to be set.
        equal: decisions that were the same, or among the same equals.
        tied: of those, the ones with a choice among equals.
        different: what was decided otherwise: request, ours, theirs.
        choices: what the real router chose, as our instances.
    """

    def __init__(self, name: str, num_workers: int, **parameters: Any) -> None:
        self.router: Router = router_for(num_workers, name, **parameters)
        self.pool: list[int] = []
        self.equal = self.tied = 0
        self.different: list[tuple[int, set[int], int]] = []
        self.choices: list[int] = []
        # Compile before there is a real router whose health checks would wait for it.
        view = one_view(num_workers)
        self.router.route(view)
        self.router.reset(view.cluster, [0])

    def compare(self, view: View, worker: int) -> None:
        """Count the real router's decision for `worker`, and follow it."""
        theirs = self.pool.index(worker)
        ours = self._ours(view)
        if theirs in ours:
            self.equal += 1
            self.tied += len(ours) > 1
        else:
            self.different.append((int(view.requests["index"][0]), ours, theirs))
        self.choices.append(theirs)
        if isinstance(self.router, ScoredRouter):
            self.router.commit(view, np.array([theirs]))

    def _ours(self, view: View) -> set[int]:
        """What our router may choose: more than one instance only among exact equals."""
        if isinstance(self.router, ScoredRouter):
            self.router.hear(view)
            available = np.flatnonzero(view.available[0])
            scores = self.router.scores(view)[0, available]
            # bucket takes the first of equals, the real one the first of a hash table.
            return set(available[scores == scores.min()].tolist())
        return set(self.router.route(view).tolist())

    def report(self) -> str:
        """One line for people."""
        total = len(self.choices)
        return f"{self.router.name}: {self.equal} of {total} equal, {self.tied} among equals"


class DrawingTwin(Twin):
    """For routers that draw and remember nothing: whatever ours may draw is allowed."""

    def _ours(self, view: View) -> set[int]:
        index = int(view.requests["index"][0])
        drawn = set()
        for k in range(DRAWS):
            view.requests["index"] = k
            drawn.add(int(self.router.route(view)[0]))
        view.requests["index"] = index
        return drawn


class PairTwin(DrawingTwin):
    """power_of_two between the two workers that the real router says it drew.

    Args:
        tokens: what each worker answers to `/get_load`, the present numbers.
    """

    def __init__(self, name: str, num_workers: int, tokens: dict[int, int]) -> None:
        super().__init__(name, num_workers, load="tokens")
        self._tokens = tokens
        self._decisions: list[tuple[View, int]] = []

    def compare(self, view: View, worker: int) -> None:
        """Keep the decision until the pair is known."""
        # The wheel counts -1 where a worker does not answer.
        view.instances["waiting_tokens"] = [self._tokens.get(w, -1) for w in self.pool]
        self._decisions.append((view, worker))

    def settle(self, log: str, urls: list[str]) -> None:
        """Compare all decisions with the pairs that the real router printed."""
        pairs = re.findall(r"Power-of-two selection: (\S+)=\S+ vs (\S+)=", log)
        assert len(pairs) == len(self._decisions)
        for (view, worker), pair in zip(self._decisions, pairs, strict=True):
            drawn = [self.pool.index(urls.index(url)) for url in pair]
            assert view.available[0, drawn].all()
            view.instances["available"] = 0
            view.instances["available"][0, drawn] = 1
            super().compare(view, worker)


class Traffic:
    """Requests with mixed prefixes, sessions and overlaps, sent one after the other."""

    def __init__(self, router: RealRouter, workers: MockWorkers, counts: bool, seed: int) -> None:
        self._router, self._workers, self._counts = router, workers, counts
        self._rng = random.Random(seed)
        self._prompts = MixedPrefixes(seed)
        self._flights: list[tuple[Flight, int]] = []
        self._ended: list[tuple[int, int]] = []
        self._slots: list[int] = []
        self._num_slots = 0
        self._index = 0
        self.loads: Counter[int] = Counter()

    async def send(self, twins: Sequence[Twin], at: float) -> None:
        """One request, compared by every twin; `at` is its time in their views, in s."""
        path = self._prompts.draw()
        session = min(int(self._rng.expovariate(0.05)), 99)
        flight = await self._router.send(
            {"text": self._prompts.text(path)},
            headers={"x-smg-routing-key": f"session {session}"},
            arrivals=len(twins),
        )
        slot = self._take_slot()
        for twin in twins:
            worker = next(a.worker for a in flight.arrivals if a.worker in twin.pool)
            twin.compare(self._view(twin, path, session, slot, at), worker)
        self._ended.clear()
        self._index += 1
        self._flights.append((flight, slot))
        self.loads.update(arrival.worker for arrival in flight.arrivals)

    async def finish_to(self, in_flight: int) -> None:
        """End requests, in any order, until at most so many are in flight."""
        if len(self._flights) <= in_flight:
            return
        while len(self._flights) > in_flight:
            flight, slot = self._flights.pop(self._rng.randrange(len(self._flights)))
            await flight.finish()
            for arrival in flight.arrivals:
                self.loads[arrival.worker] -= 1
                self._ended.append((slot, arrival.worker))
            self._slots.append(slot)
        counted = self.loads if self._counts else Counter[int]()
        await self._router.settled(counted)

    def _take_slot(self) -> int:
        if self._slots:
            return self._slots.pop()
        self._num_slots += 1
        return self._num_slots - 1

    def _view(self, twin: Twin, path: Path, session: int, slot: int, at: float) -> View:
        counted = self.loads if self._counts else Counter[int]()
        view = one_view(
            len(twin.pool),
            self._prompts.block_ids(path),
            request={"index": self._index, "time": at, "session": session, "slot": slot},
            requests=[counted[worker] for worker in twin.pool],
            available=[self._workers.healthy[worker] for worker in twin.pool],
        )
        view.num_slots = self._num_slots
        ended = [(s, twin.pool.index(w)) for s, w in self._ended if w in twin.pool]
        view.events = np.array([[(at, s, i, ENDED) for s, i in ended]], EVENT_VIEW)
        view.num_events[0] = len(ended)
        return view

    async def burst(self, twins: Sequence[Twin], requests: int, at: float, seconds: float) -> None:
        """Up to so many requests at that time, as many as really go into so many seconds."""
        end = time.monotonic() + seconds
        for _ in range(requests):
            if time.monotonic() > end:
                break
            await self.finish_to(self._rng.choice([3, 10]))
            await self.send(twins, at)

    async def run(self, twins: Sequence[Twin], requests: int, at: float = 0.0) -> None:
        """So many requests at that time, with few to many in flight at once."""
        for k in range(requests):
            if k % 50 == 0:
                in_flight = self._rng.choice([1, 5, 30, 150])
            await self.finish_to(in_flight)
            await self.send(twins, at)


def options_of(**parameters: Any) -> list[str]:
    """The command line's words for these parameters."""
    words = ((f"--{name.replace('_', '-')}", str(value)) for name, value in parameters.items())
    return [word for pair in words for word in pair]


SMALL_THRESHOLDS: dict[str, Any] = {
    "balance_abs_threshold": 4,
    "balance_rel_threshold": 1.2,
    "cache_threshold": 0.6,
}


class Case(NamedTuple):
    """A policy of the wheel and what it is compared with."""

    policy: str
    ours: str
    twin: type[Twin] = Twin
    parameters: Mapping[str, Any] = MappingProxyType({})  # of ours
    options: Mapping[str, Any] = MappingProxyType({})  # of the wheel
    counts: bool = False  # requests in flight
    outage: bool = True  # one worker is down for a quarter of the requests


CHARACTERS = {"chars_per_token": CHARS_PER_TOKEN}
CASES = {
    "round_robin": Case("round_robin", "round_robin"),
    "random": Case("random", "random", DrawingTwin),
    "cache_aware": Case("cache_aware", "cache_aware", parameters=CHARACTERS, counts=True),
    # Without an outage: when a worker's history is forgotten, and several others hold a prefix of
    # its, the real router takes the first of a hash table for the owner and ours the first in order
    # (3 % of the requests of such a run).
    "cache_aware, small thresholds": Case(
        "cache_aware",
        "cache_aware",
        parameters=CHARACTERS | SMALL_THRESHOLDS,
        options=SMALL_THRESHOLDS,
        counts=True,
        outage=False,
    ),
    **{
        f"manual, {mode}": Case(
            "manual",
            "manual",
            parameters={"assignment_mode": mode},
            options={"assignment_mode": mode},
            counts=True,
        )
        for mode in ("random", "min_load", "min_group")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_regular_mode(name: str) -> None:
    case = CASES[name]
    twin = case.twin(case.ours, 4, **case.parameters)

    async def play() -> None:
        async with MockWorkers(4) as workers:
            command = [*LAUNCH, "--policy", case.policy, *options_of(**case.options)]
            command += ["--worker-urls", *workers.urls]
            async with RealRouter(command, workers) as router:
                twin.pool = [row["worker"] for row in await router.listed()]
                traffic = Traffic(router, workers, case.counts, seed=len(name))
                await traffic.run([twin], REQUESTS // 2)
                for healthy in (not case.outage, True):
                    workers.healthy[twin.pool[1]] = healthy
                    await router.health_is(workers.healthy)
                    await traffic.run([twin], REQUESTS // 4)
                await traffic.finish_to(0)

    asyncio.run(play())
    print(twin.report())
    assert twin.different == []
    assert len(twin.choices) == REQUESTS
    if name == "random":
        assert abs(shares(twin.choices[: REQUESTS // 2], 4) - 0.25).max() < 0.08


def test_power_of_two() -> None:
    tokens: dict[int, int] = {}
    twin = PairTwin("power_of_two", 4, tokens)

    async def play() -> None:
        async with MockWorkers(4) as workers:
            workers.loads = tokens
            command = [*LAUNCH, "--policy", "power_of_two", "--log-level", "debug"]
            command += ["--worker-urls", *workers.urls]
            async with RealRouter(command, workers) as router:
                twin.pool = [row["worker"] for row in await router.listed()]
                traffic = Traffic(router, workers, counts=False, seed=0)
                # Nobody answers, a full order, equals, one does not answer.
                for loads in ({}, {0: 3, 1: 1, 2: 0, 3: 2}, {0: 5, 1: 5, 2: 5, 3: 9}, {0: 1, 1: 2}):
                    tokens.clear()
                    tokens.update(loads)
                    # Polled each second; a poll may be under way.
                    await router.printed("Fetched loads", router.log().count("Fetched loads") + 2)
                    await traffic.run([twin], REQUESTS // 4)
                await traffic.finish_to(0)
                twin.settle(router.log(), workers.urls)

    asyncio.run(play())
    print(twin.report())
    assert twin.different == []
    assert len(twin.choices) == REQUESTS
    assert REQUESTS / 4 < twin.tied < REQUESTS / 2 + 50


# Every prefill and every decode policy. That of power_of_two is compared in regular mode; here no
# worker answers its polls, so that whichever worker it draws first is taken.
PD_POLICIES: dict[str, tuple[type[Twin], dict[str, Any]]] = {
    "random": (DrawingTwin, {}),
    "round_robin": (Twin, {}),
    "cache_aware": (DrawingTwin, {"has_tree": False, **SMALL_THRESHOLDS}),
    "power_of_two": (DrawingTwin, {"load": "tokens"}),
    "manual": (Twin, {}),
    "bucket": (
        Twin,
        {
            "chars_per_token": CHARS_PER_TOKEN,
            "bucket_adjust_interval_secs": 1000,
            "balance_abs_threshold": SMALL_THRESHOLDS["balance_abs_threshold"],
            "balance_rel_threshold": SMALL_THRESHOLDS["balance_rel_threshold"],
        },
    ),
}


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("bucket", "cache_aware"),
        ("cache_aware", "manual"),
        ("manual", "power_of_two"),
        ("power_of_two", "round_robin"),
        ("round_robin", "random"),
        ("random", "round_robin"),
    ],
)
def test_prefill_and_decode_mode(prefill: str, decode: str) -> None:
    twins = []
    for name, num_workers in ((prefill, 4), (decode, 3)):
        twin_class, parameters = PD_POLICIES[name]
        twins.append(twin_class(name, num_workers, **parameters))

    async def play() -> None:
        async with MockWorkers(7) as workers:
            command = [*LAUNCH, "--pd-disaggregation", "--log-level", "debug"]
            command += ["--prefill-policy", prefill, "--decode-policy", decode]
            command += options_of(bucket_adjust_interval_secs=1000, **SMALL_THRESHOLDS)
            for url in workers.urls[:4]:
                command += ["--prefill", url]
            for url in workers.urls[4:]:
                command += ["--decode", url]
            async with RealRouter(command, workers) as router:
                # Prefill workers come in the order of /workers, decode workers as registered.
                listed = [row["worker"] for row in await router.listed()]
                registered = re.findall(r"Registered worker (\S+)", router.log())
                order = [workers.urls.index(url) for url in registered]
                twins[0].pool = [w for w in listed if w < 4]
                twins[1].pool = [w for w in order if w >= 4]
                if "power_of_two" in (prefill, decode):
                    await router.printed("Fetched loads", 1)
                traffic = Traffic(router, workers, counts=True, seed=len(prefill + decode))
                await traffic.run(twins, REQUESTS)
                await traffic.finish_to(0)
                for twin in twins:
                    if twin.router.name == "cache_aware":
                        # It says so itself whenever it draws.
                        assert router.log().count("using random worker selection") == twin.tied

    asyncio.run(play())
    for twin in twins:
        print(twin.report())
        assert twin.different == []
        assert len(twin.choices) == REQUESTS


# The two tests below have real clocks in them. A burst of requests follows each tick of the real
# router's clock, which it prints, and is over long before the next; ours is told the number of the
# tick as its time.


SEED_THAT_COUNTS = 5
"""Of traffic in which a counter that starts one or two higher or lower changes decisions."""


def start_count(twin: Twin, log: str) -> None:
    """Let ours count from where the real one does, which depends on a race.

    Whenever it registers a worker, it inserts nothing for all that it knows by then: 1 + 2 inserts
    with two workers, as ours counts, but 2 + 2 if both are known before the first insert.
    """
    known = re.findall(r"Initializing cache-aware policy with (\d+) workers", log)
    assert isinstance(twin.router, CacheAware)
    twin.router._history.arrays.trees["counter"] = sum(map(int, known))


def test_cache_aware_eviction() -> None:
    small = {"max_tree_size": 20 * CHARS, "balance_abs_threshold": 2}
    # Two workers: with more, what an evicted owner leaves to several others is the first in a hash
    # table's order there (1 % of the requests of such a run with three).
    twin = Twin("cache_aware", 2, eviction_interval=2, **small, **CHARACTERS)
    tick = "Cache eviction completed"

    async def play() -> None:
        async with MockWorkers(2) as workers:
            command = [*LAUNCH, "--policy", "cache_aware", "--log-level", "debug"]
            command += options_of(eviction_interval_secs=2, **small)
            command += ["--worker-urls", *workers.urls]
            async with RealRouter(command, workers) as router:
                twin.pool = [row["worker"] for row in await router.listed()]
                start_count(twin, router.log())
                traffic = Traffic(router, workers, counts=True, seed=SEED_THAT_COUNTS)
                for sweeps in range(10):
                    await router.printed(tick, router.log().count(tick) + 1)
                    await traffic.burst([twin], 100, at=2 * sweeps + 0.5, seconds=1.0)
                await traffic.finish_to(0)

    asyncio.run(play())
    print(twin.report())
    assert twin.different == []


def test_bucket_ranges() -> None:
    interval = 3
    parameters = {"bucket_adjust_interval_secs": interval, "balance_abs_threshold": 10**9}
    twin = Twin("bucket", 4, **parameters, **CHARACTERS)
    others = DrawingTwin("random", 2)
    adjusts, keeps = "After adjusting boundary", "No need to adjust"

    async def play() -> None:
        async with MockWorkers(6) as workers:
            command = [*LAUNCH, "--pd-disaggregation", *options_of(**parameters)]
            command += ["--prefill-policy", "bucket", "--decode-policy", "random"]
            for url in workers.urls[:4]:
                command += ["--prefill", url]
            for url in workers.urls[4:]:
                command += ["--decode", url]
            async with RealRouter(command, workers) as router:
                (boundary,) = re.findall(r"Init boundary:(.*)", router.log())[-1:]
                urls = re.findall(r'url: "(.*?)"', boundary)
                twin.pool = [workers.urls.index(url) for url in urls]
                others.pool = [4, 5]
                traffic = Traffic(router, workers, counts=True, seed=2)
                await traffic.burst([twin, others], 1, at=0.5, seconds=1.0)
                for ticks, requests in zip((2, 4, 6, 8, 10), (15, 150, 20, 70, 30), strict=True):
                    while router.log().count(adjusts) + router.log().count(keeps) < ticks:
                        await asyncio.sleep(0.01)
                    at = interval * ticks + 0.5
                    await traffic.burst([twin, others], requests, at, seconds=interval / 2)
                await traffic.finish_to(0)
                assert 2 <= router.log().count(adjusts) < 6

    asyncio.run(play())
    print(twin.report())
    assert twin.different == []
    assert set(twin.choices) == {0, 1, 2, 3}
