"""Our routers decide as those of the wheel vllm-router 0.1.17 do, request by request.

Every policy that its command line offers, in regular mode and for the two stages of its
prefill-decode mode. Ours are shown what the real ones know: the wheel's workers in the wheel's
order, its counts of requests in flight, the same prefixes, the same cached blocks. Prompts are
token ids, for which the wheel needs no tokenizer.

Equal decisions are required one by one but for draws: of `random` and of kv_aware with a
temperature only the frequencies can be compared, and power_of_two is shown the pair that the wheel
drew. Hashes are the wheel's own (`furc_hash`): they are put on our ring, and sessions are numbered
so that ours hash to the same places.
"""

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from furc_hash import hash_of
from kv_events import KvEvents
from made_views import BLOCK, one_view, router_for
from mixed_prefixes import MixedPrefixes, Path, shares
from mock_workers import MODEL, MockWorkers
from real_router import Flight, RealRouter, require_package

from prefixgym.baselines.choosing import draw_two
from prefixgym.baselines.router import Router, router_keys
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.view.hash_ring import HashRing
from prefixgym.envs.view.view import ENDED, EVENT_VIEW, View

REQUESTS = 1000
WORKERS = 4
TOKENS = 16
"""Tokens in a block; in our views there are `BLOCK`."""
LAUNCH = [
    *("vllm-router", "--disable-retries", "--disable-circuit-breaker"),
    *("--worker-startup-check-interval", "1", "--health-check-interval-secs", "1"),
    *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
]
COUNTING = ("cache_aware", "kv_aware", "power_of_two")
"""Policies under which the wheel counts requests in flight in regular mode."""
POLL_SECONDS = 1.0


@pytest.fixture(autouse=True)
def _wheel() -> None:
    require_package("vllm-router", "0.1.17")


class Request:
    """What is sent: a prompt of whole blocks of one of the sessions."""

    def __init__(self, path: Path, ids: list[int], session: int, stream: bool) -> None:
        self.path, self.ids, self.session, self.stream = path, ids, session, stream

    @property
    def token_ids(self) -> list[int]:
        return [number * TOKENS + k for number in self.path for k in range(TOKENS)]

    @property
    def body(self) -> dict[str, Any]:
        prompt = {"model": MODEL, "prompt": self.token_ids, "max_tokens": 4}
        return prompt | ({"stream": True} if self.stream else {})

    @property
    def headers(self) -> dict[str, str]:
        return {"x-session-id": f"s{self.session}"}


class Twin:
    """Our router beside the wheel's policy for the same workers.

    Attributes:
        pool: the number of the worker that each of our instances stands for.
        cached: ids of the blocks that the wheel was told each instance has cached.
        choices: what the wheel chose, as our instances.
        different: what was decided otherwise: request, ours, theirs.
        log: what the wheel has printed, at the end.
        at_once: whether the workers answer at once, so that nothing is in flight at a decision.
    """

    def __init__(self, name: str, pool: list[int], **parameters: Any) -> None:
        self.router: Router = router_for(len(pool), name, **parameters)
        self.pool = pool
        self.cached: list[set[int]] = [set() for _ in pool]
        self.choices: list[int] = []
        self.different: list[tuple[int, set[int], int]] = []
        self.log = ""
        self.at_once = False
        self._requests = np.zeros(len(pool), np.int64)
        self._prefill_tokens = np.zeros(len(pool), np.int64)
        self._booked: dict[int, tuple[int, int]] = {}  # slot: instance and tokens to prefill
        self._ended: list[tuple[int, int]] = []  # slot and instance

    def view(self, request: Request, slot: int, healthy: Sequence[bool]) -> View:
        """What the wheel knows at its next decision."""
        view = one_view(
            len(self.pool),
            request.ids,
            {
                "index": len(self.choices),
                "time": len(self.choices) * 1e-3,
                "session": request.session,
                "slot": slot,
            },
            requests=self._requests,
            prefill_tokens=self._prefill_tokens,
            hit_tokens=[self._hit(request, i) for i in range(len(self.pool))],
            available=[healthy[worker] for worker in self.pool],
        )
        view.num_slots = slot + 1
        events = [(0.0, s, i, ENDED) for s, i in self._ended]
        view.events = np.array([events], EVENT_VIEW)
        view.num_events[0] = len(events)
        self._ended = []
        return view

    def _hit(self, request: Request, i: int) -> int:
        blocks = 0
        while blocks < len(request.ids) - 1 and request.ids[blocks] in self.cached[i]:
            blocks += 1
        return blocks * BLOCK

    def ours(self, view: View) -> set[int]:
        """What our router may choose: more than one instance only among equals."""
        if not isinstance(self.router, ScoredRouter):
            return set(self.router.route(view).tolist())
        self.router.hear(view)
        available = np.flatnonzero(view.available[0])
        scores = self.router.scores(view)[0, available]
        equals = available[scores == scores.min()].tolist()
        return set(equals) if self.router.ties == "random" else {equals[0]}

    def compare(self, view: View, request: Request, worker: int) -> None:
        """Hold the wheel's decision against ours, and follow it."""
        theirs, ours = self.pool.index(worker), self.ours(view)
        if theirs not in ours:
            self.different.append((len(self.choices), ours, theirs))
        self.choices.append(theirs)
        if isinstance(self.router, ScoredRouter):
            self.router.commit(view, np.array([theirs]))
        slot, row = int(view.requests["slot"][0]), view.instances[0, theirs]
        tokens = int(view.requests["prompt_tokens"][0] - row["hit_tokens"])
        self._booked[slot] = theirs, tokens
        self._requests[theirs] += 1
        self._prefill_tokens[theirs] += tokens
        if self.at_once:
            self.end(slot)

    def first_token(self, slot: int) -> None:
        """The request in `slot` has answered."""
        i, tokens = self._booked[slot]
        self._prefill_tokens[i] -= tokens
        self._booked[slot] = i, 0

    def end(self, slot: int) -> None:
        """The request in `slot` is over."""
        if slot not in self._booked:
            return
        self.first_token(slot)
        i, _ = self._booked.pop(slot)
        self._requests[i] -= 1
        self._ended.append((slot, i))


class AnyTwin(Twin):
    """A policy that draws: any instance may be its choice."""

    def __init__(self, urls: Sequence[str], pool: list[int]) -> None:
        super().__init__("random", pool)

    def ours(self, view: View) -> set[int]:
        return set(range(len(self.pool)))


class Traffic:
    """Requests with mixed prefixes, sessions and overlaps, sent one after the other."""

    def __init__(
        self, router: RealRouter, workers: MockWorkers, twins: Sequence[Twin], counts: bool
    ) -> None:
        self._router, self._workers, self._twins, self._counts = router, workers, twins, counts
        self._rng = random.Random(1)
        self._prompts = MixedPrefixes(1)
        self._flights: list[tuple[Flight, int]] = []
        self._slots: list[int] = []
        self._num_slots = 0
        self.streams = 0.0
        """Share of requests that ask for a stream, of which the first token is seen."""

    def draw(self) -> Request:
        """A request of one of 40 sessions, a few of them much more common."""
        path = self._prompts.draw()
        session = min(int(self._rng.expovariate(0.1)), 39)
        stream = self._rng.random() < self.streams
        return Request(path, self._prompts.block_ids(path), session, stream)

    async def send(self, request: Request) -> None:
        """One request, compared by every twin."""
        if not self._slots:
            self._slots, self._num_slots = [self._num_slots], self._num_slots + 1
        slot = self._slots.pop()
        views = [twin.view(request, slot, self._workers.healthy) for twin in self._twins]
        flight = await self._router.send(
            request.body, "/v1/completions", request.headers, len(self._twins)
        )
        for twin, view in zip(self._twins, views, strict=True):
            (worker,) = {arrival.worker for arrival in flight.arrivals} & set(twin.pool)
            twin.compare(view, request, worker)
        self._flights.append((flight, slot))
        if request.stream and self._rng.random() < 0.7:
            await flight.start()
            for twin in self._twins:
                twin.first_token(slot)

    async def finish_to(self, in_flight: int) -> None:
        """End requests, in any order, until at most so many are in flight."""
        while len(self._flights) > in_flight:
            flight, slot = self._flights.pop(self._rng.randrange(len(self._flights)))
            await flight.finish()
            for twin in self._twins:
                twin.end(slot)
            self._slots.append(slot)
        if self._counts:
            loads = dict.fromkeys(range(len(self._workers.urls)), 0)
            for flight, _ in self._flights:
                loads[flight.arrivals[-1].worker] += 1
            await self._router.settled(loads)

    async def run(self, requests: int) -> None:
        """So many requests, with few to many in flight at once."""
        for k in range(requests):
            if k % 50 == 0:
                in_flight = self._rng.choice([1, 5, 20, 60])
            await self.finish_to(in_flight - 1)
            await self.send(self.draw())


TwinOf = Callable[[Sequence[str], list[int]], "Twin"]
"""Makes a twin for workers at these URLs, of which the pool is the given ones."""


def named(name: str, **parameters: Any) -> TwinOf:
    """A plain twin: our router called `name`."""
    return lambda urls, pool: Twin(name, pool, **parameters)


def warm_up(twin_of: TwinOf, workers: MockWorkers) -> None:
    """Compile what a twin needs while nobody waits for the workers."""
    twin = twin_of(workers.urls, list(range(len(workers.urls))))
    for slot in range(2):
        request = Request((0, 0), [0, 1], 0, False)
        twin.compare(twin.view(request, slot, workers.healthy), request, 0)
    twin.end(1)
    twin.compare(twin.view(request, 1, workers.healthy), request, 0)


async def _regular(
    policy: str,
    twin_of: TwinOf,
    options: Sequence[str] = (),
    down: int = 1,
    polled: Sequence[int] = (),
) -> Twin:
    """REQUESTS requests in regular mode; `down` workers are down for a quarter of them.

    Worker k says that its load is `polled[k]`; without that it has no such endpoint.
    """
    async with MockWorkers(WORKERS) as workers:
        workers.loads.update(enumerate(polled))
        workers.load_answer = lambda load: {"load": load}
        warm_up(twin_of, workers)
        command = [*LAUNCH, "--policy", policy, *options, "--worker-urls", *workers.urls]
        async with RealRouter(command, workers) as router:
            twin = twin_of(workers.urls, [row["worker"] for row in await router.listed()])
            traffic = Traffic(router, workers, [twin], policy in COUNTING)
            if polled:
                await asyncio.sleep(2 * POLL_SECONDS)
            await traffic.run(REQUESTS // 2)
            for worker in twin.pool[1 : 1 + down]:
                workers.healthy[worker] = False
            await router.health_is(workers.healthy)
            await traffic.run(REQUESTS // 4)
            workers.healthy[:] = [True] * WORKERS
            await router.health_is(workers.healthy)
            await traffic.run(REQUESTS // 4)
            await traffic.finish_to(0)
            twin.log = router.log()
    return twin


def options_of(**parameters: Any) -> list[str]:
    """The command line's words for these parameters."""
    words = ((f"--{name.replace('_', '-')}", str(value)) for name, value in parameters.items())
    return [word for pair in words for word in pair]


def test_round_robin() -> None:
    twin = asyncio.run(_regular("round_robin", named("round_robin"), down=0))
    assert twin.different == []


def test_random_is_uniform() -> None:
    twin = asyncio.run(_regular("random", AnyTwin, down=0))
    assert twin.different == []
    assert abs(shares(twin.choices, WORKERS) - 1 / WORKERS).max() < 0.06  # 4 standard deviations


@pytest.mark.parametrize(
    "parameters",
    [{}, {"balance_abs_threshold": 4, "balance_rel_threshold": 1.2, "cache_threshold": 0.6}],
)
def test_cache_aware(parameters: dict[str, Any]) -> None:
    twin_of = named("vllm_cache_aware", **parameters)
    twin = asyncio.run(_regular("cache_aware", twin_of, options_of(**parameters)))
    assert twin.different == []


# --- hashes ------------------------------------------------------------------------------------


def _unxorshift(word: int, shift: int) -> int:
    """The x of word = x ^ (x >> shift)."""
    result = word
    for _ in range(64 // shift):
        result = word ^ (result >> shift)
    return result


def session_at(position: int, key: np.uint64) -> int:
    """The session that our hash rings put at `position` under an environment's `key`.

    `random_word` is a bijection of the session: SplitMix64's finalizer after a multiplication.
    """
    word = _unxorshift(position, 31)
    word = _unxorshift(word * pow(0x94D049BB133111EB, -1, 2**64) % 2**64, 27)
    word = _unxorshift(word * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64, 30)
    counter = (word - int(key)) * pow(0x9E3779B97F4A7C15, -1, 2**64) % 2**64
    return (counter - 1) % 2**64 - (2**64 if counter > 2**63 else 0)


class HashTwin(Twin):
    """consistent_hash, with the wheel's points on our ring and its hash of each session."""

    def __init__(self, urls: Sequence[str], pool: list[int]) -> None:
        super().__init__("consistent_hash", pool)
        points = {
            hash_of(f"{urls[worker]}:{k}"): i for i, worker in enumerate(pool) for k in range(160)
        }
        ring = HashRing(len(pool), 160)
        ring.positions = np.array(sorted(points), np.uint64)
        ring.owners = np.array([points[position] for position in sorted(points)])
        router: Any = self.router
        router._ring = ring

    def view(self, request: Request, slot: int, healthy: Sequence[bool]) -> View:
        view = super().view(request, slot, healthy)
        position = hash_of(f"header:x-session-id:s{request.session}")
        view.requests["session"] = session_at(position, router_keys([0])[0])
        return view


class StickyTwin(Twin):
    """sticky_least_loaded; which of several least loaded is the wheel's hash to say."""

    def __init__(self, urls: Sequence[str], pool: list[int]) -> None:
        super().__init__("sticky_least_loaded", pool)
        self._urls = urls
        self._session = 0

    def view(self, request: Request, slot: int, healthy: Sequence[bool]) -> View:
        self._session = request.session
        return super().view(request, slot, healthy)

    def ours(self, view: View) -> set[int]:
        assert isinstance(self.router, ScoredRouter)
        self.router.hear(view)
        available = np.flatnonzero(view.available[0])
        scores = np.ceil(self.router.scores(view)[0, available])  # counts without our own weights
        equals = available[scores == scores.min()].tolist()

        def weight(i: int) -> int:
            return hash_of(f"s{self._session}:{self._urls[self.pool[i]]}")

        return {max(equals, key=weight)}


@pytest.mark.parametrize("policy", ["consistent_hash", "sticky_least_loaded"])
def test_hashes(policy: str) -> None:
    kind = HashTwin if policy == "consistent_hash" else StickyTwin
    twin = asyncio.run(_regular(policy, kind))
    assert twin.different == []
    assert len(set(twin.choices)) == WORKERS


# --- power_of_two ------------------------------------------------------------------------------


class PowerOfTwoTwin(Twin):
    """power_of_two, shown the pair that the wheel has drawn and printed, with its loads."""

    def __init__(
        self, urls: Sequence[str], pool: list[int], polled: Sequence[int] | None = None
    ) -> None:
        load = "ledger" if polled is None else "telemetry"
        super().__init__("power_of_two", pool, load=load)
        self._polled = polled
        self._number = {urls[worker]: i for i, worker in enumerate(pool)}
        self._views: list[View] = []
        (key,) = router_keys([0])
        picks = np.arange(len(pool))
        # A decision of ours for each pair that can be drawn.
        self._decisions = {draw_two(key, k, picks, len(pool)): k for k in reversed(range(500))}

    def ours(self, view: View) -> set[int]:
        if self._polled is not None:
            view.instances["waiting"] = [self._polled[worker] for worker in self.pool]
        self._views.append(view)
        return set(range(len(self.pool)))  # wait for the log

    def check(self) -> None:
        """Every decision that the wheel has printed is ours."""
        line = re.compile(r"selection: (\S+)=(\d+) vs (\S+)=(\d+) -> selected (\S+)")
        printed = [found for found in line.findall(self.log) if found[0] in self._number]
        assert len(printed) == len(self._views)
        for (*pair, selected), view in zip(printed, self._views, strict=True):
            first, second = self._number[pair[0]], self._number[pair[2]]
            loads = view.instances["requests" if self._polled is None else "waiting"][0]
            assert [int(pair[1]), int(pair[3])] == [loads[first], loads[second]]
            view.requests["index"] = self._decisions[first, second]
            assert self.router.route(view).tolist() == [self._number[selected]]


def test_power_of_two() -> None:
    """vLLM's engines have no /get_load, so requests in flight decide."""
    twin = asyncio.run(_regular("power_of_two", PowerOfTwoTwin, down=0))
    assert isinstance(twin, PowerOfTwoTwin)
    twin.check()


def test_power_of_two_by_polled_loads() -> None:
    """Where workers do answer, requests in flight are not added to what they said."""
    loads = [30, 5, 7, 7]

    def twin_of(urls: Sequence[str], pool: list[int]) -> Twin:
        return PowerOfTwoTwin(urls, pool, loads)

    twin = asyncio.run(_regular("power_of_two", twin_of, down=0, polled=loads))
    assert isinstance(twin, PowerOfTwoTwin)
    twin.check()


# --- kv_aware ----------------------------------------------------------------------------------


async def _kv_aware(router: RealRouter, twin: Twin, traffic: Traffic, events: KvEvents) -> None:
    """REQUESTS requests while blocks come and go in the workers' caches, whoever was sent them."""
    rng = random.Random(2)
    for k in range(REQUESTS):
        if k % 10 == 0:
            for i, worker in enumerate(twin.pool):
                for _ in range(3):
                    seen = traffic.draw()
                    await events.stored(worker, seen.ids, None, seen.token_ids, TOKENS)
                    twin.cached[i].update(seen.ids)
                gone = [block for block in sorted(twin.cached[i]) if rng.random() < 0.1]
                if gone:  # the wheel distrusts an engine that removes nothing, and forgets it all
                    await events.removed(worker, gone)
                    twin.cached[i].difference_update(gone)
                if rng.random() < 0.02:
                    await events.cleared(worker)
                    twin.cached[i].clear()
            await router.printed("kv_index live sequence advanced", events.published)
        if k % 50 == 0:
            in_flight = rng.choice([1, 5, 20, 60])
        await traffic.finish_to(in_flight - 1)
        await traffic.send(traffic.draw())


async def _with_events(options: Sequence[str], twin_of: TwinOf) -> Twin:
    """REQUESTS requests in regular mode under kv_aware."""
    with KvEvents(WORKERS) as events:
        async with MockWorkers(WORKERS) as workers:
            sources = []
            for url, endpoint in zip(workers.urls, events.endpoints, strict=True):
                sources += ["--kv-event-source", f"{url}={endpoint}"]
            command = [*LAUNCH, "--log-level", "debug", "--policy", "kv_aware", *sources]
            command += ["--kv-event-model", MODEL, *options, "--worker-urls", *workers.urls]
            warm_up(twin_of, workers)
            async with RealRouter(command, workers) as router:
                twin = twin_of(workers.urls, [row["worker"] for row in await router.listed()])
                traffic = Traffic(router, workers, [twin], counts=True)
                traffic.streams = 0.5
                await events.subscribed()
                await _kv_aware(router, twin, traffic, events)
                await traffic.finish_to(0)
                twin.log = router.log()
    return twin


def test_kv_aware() -> None:
    twin = asyncio.run(_with_events([], named("kv_aware")))
    assert twin.different == []


def test_kv_aware_with_session_affinity() -> None:
    parameters = {"kv_aware_session_affinity_ttl_secs": 3600}
    twin = asyncio.run(_with_events(options_of(**parameters), named("kv_aware", **parameters)))
    assert twin.different == []


TEMPERATURE = 300.0
"""Token-requests."""


class TemperatureTwin(Twin):
    """kv_aware at a temperature: how often should the wheel draw each rank of cost?"""

    def __init__(self, urls: Sequence[str], pool: list[int]) -> None:
        super().__init__("kv_aware", pool)
        self.drawn = np.zeros(len(pool))
        self.expected = np.zeros(len(pool))
        self.variance = np.zeros(len(pool))
        self._ranks = np.zeros(len(pool), np.int64)

    def ours(self, view: View) -> set[int]:
        assert isinstance(self.router, ScoredRouter)
        costs = self.router.scores(view)[0] * (TOKENS / BLOCK)
        order = np.argsort(costs, kind="stable")
        self._ranks = np.argsort(order)
        likely = np.exp((costs.min() - costs[order]) / TEMPERATURE)
        likely /= likely.sum()
        self.expected += likely
        self.variance += likely * (1 - likely)
        return set(range(len(costs)))

    def compare(self, view: View, request: Request, worker: int) -> None:
        super().compare(view, request, worker)
        self.drawn[self._ranks[self.choices[-1]]] += 1


def test_kv_aware_with_temperature() -> None:
    options = options_of(router_temperature=TEMPERATURE)
    twin = asyncio.run(_with_events(options, TemperatureTwin))
    assert isinstance(twin, TemperatureTwin)
    assert (twin.expected > 30).all()
    assert (abs(twin.drawn - twin.expected) < 4 * np.sqrt(twin.variance)).all()


# --- prefill-decode mode -----------------------------------------------------------------------


async def _disaggregated(prefill: str, decode: str, prefill_of: TwinOf, decode_of: TwinOf) -> Any:
    """REQUESTS requests through two prefill and four decode workers."""
    num_prefill = 2
    with KvEvents(num_prefill) as events:
        async with MockWorkers(num_prefill + WORKERS, range(num_prefill, 6)) as workers:
            command = [*LAUNCH, "--log-level", "debug", "--vllm-pd-disaggregation"]
            command += ["--prefill-policy", prefill]
            command += ["--decode-policy", decode]
            for url, endpoint in zip(workers.urls, events.endpoints, strict=False):
                command += ["--prefill", url]
                if prefill == "kv_aware":
                    command += ["--pd-kv-events", f"{url}={endpoint}"]
            for url in workers.urls[num_prefill:]:
                command += ["--decode", url]
            pools = list(range(num_prefill)), list(range(num_prefill, 6))
            warm_up(prefill_of, workers)
            warm_up(decode_of, workers)
            async with RealRouter(command, workers) as router:
                # Here the wheel keeps the order of its command line.
                twins = [prefill_of(workers.urls, pools[0]), decode_of(workers.urls, pools[1])]
                twins[0].at_once = True
                traffic = Traffic(router, workers, twins, counts=True)
                if prefill == "kv_aware":
                    await events.subscribed()
                    await _kv_aware(router, twins[0], traffic, events)
                else:
                    await traffic.run(REQUESTS)
                await traffic.finish_to(0)
                for twin in twins:
                    twin.log = router.log()
    return twins


def blind(urls: Sequence[str], pool: list[int]) -> Twin:
    """power_of_two that reads every load as 0, as the wheel's does in this mode (VR#198)."""
    return PowerOfTwoTwin(urls, pool, [0] * len(urls))


# Under kv_aware decode workers are told apart by requests in flight only, and equals are drawn.
PD_CASES: list[tuple[str, TwinOf, str, TwinOf]] = [
    ("round_robin", named("round_robin"), "cache_aware", named("vllm_cache_aware")),
    ("cache_aware", named("vllm_cache_aware"), "round_robin", named("round_robin")),
    ("kv_aware", named("kv_aware"), "consistent_hash", HashTwin),
    ("consistent_hash", HashTwin, "sticky_least_loaded", StickyTwin),
    ("sticky_least_loaded", StickyTwin, "random", AnyTwin),
    ("random", AnyTwin, "kv_aware", named("least_load")),
    ("power_of_two", blind, "power_of_two", blind),
]


@pytest.mark.parametrize("case", PD_CASES, ids=lambda case: f"{case[0]} and {case[2]}")
def test_prefill_and_decode(case: tuple[str, TwinOf, str, TwinOf]) -> None:
    prefill, prefill_of, decode, decode_of = case
    twins = asyncio.run(_disaggregated(prefill, decode, prefill_of, decode_of))
    assert [twin.different for twin in twins] == [[], []]
    for twin in twins:
        if isinstance(twin, PowerOfTwoTwin):
            twin.check()
