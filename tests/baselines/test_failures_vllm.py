"""Failures that users of vLLM's routers report, as our routers have them.

Numbers F5 … are those of `routers_sglang_vllm_aibrix_llmd.md` §5. The figures in the docstrings are
what these runs give; the assertions leave some room.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from made_tapes import Sent, play
from made_views import decide, one_view, router_for
from numpy.typing import NDArray

from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.view.knowledge import Knowledge, Telemetry
from prefixgym.envs.view.view import View

UNIQUE = 10_000_000
"""First of the ids that only one prompt has."""


def unique_prompts(rate: float, seconds: float, blocks: int, output_tokens: int) -> list[Sent]:
    """Poisson arrivals that share nothing."""
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(1 / rate, int(rate * seconds))).tolist()
    return [
        Sent(time, range(UNIQUE + 100 * k, UNIQUE + 100 * k + blocks), output_tokens)
        for k, time in enumerate(times)
    ]


def loads_while(
    router: Router, requests: Sequence[Sent], knowledge: Knowledge | None = None
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Outcomes on 8 instances, and requests in flight at every decision, [decisions, 8]."""
    loads = []

    def look(view: View) -> None:
        loads.append(view.instances["requests"][0].copy())

    outcomes = play(router, requests, 8, knowledge=knowledge, look=look)
    return outcomes, np.array(loads)


def crowding(loads: NDArray[np.int64]) -> float:
    """Requests in flight on the busiest instance over the mean, on average, once warm."""
    warm = loads[len(loads) // 4 :]
    return float(np.mean(warm.max(axis=1) / warm.mean(axis=1)))


def largest_share(outcomes: NDArray[np.void]) -> float:
    """The share of requests that the most used of 8 instances got."""
    return float(np.bincount(outcomes["instance"], minlength=8).max() / len(outcomes))


def test_f5_polled_loads_make_a_herd() -> None:
    """VR#177, #178: with loads polled each 5 s, the best at a poll is the worst at the next one.

    At 60 requests/s the busiest of 8 instances has 2.1 times the mean in flight (at most 47), by
    the router's own counts 1.14 times (at most 19). It is worse than not looking: 1.5 times.
    """
    requests = unique_prompts(rate=60.0, seconds=40.0, blocks=2, output_tokens=200)
    _, polled = loads_while(
        make_router("power_of_two"), requests, Knowledge(telemetry=Telemetry(interval=5.0))
    )
    _, counted = loads_while(make_router("power_of_two", {"load": "ledger"}), requests)
    _, drawn = loads_while(make_router("random"), requests)
    assert crowding(polled) > 1.8
    assert crowding(counted) < 1.25
    assert crowding(counted) < crowding(drawn) < crowding(polled)


def test_f6_a_blind_load_counter_makes_two_choices_one() -> None:
    """smg#2146, VR#174, #198: where every load reads 0, the first drawn is taken: random.

    So it is in vllm-router 0.1.17's prefill-decode mode, as its parity test shows.
    On the requests of F5 the busiest instance has 1.55 times the mean in flight (random: 1.47, by
    counts: 1.14).
    """
    requests = unique_prompts(rate=60.0, seconds=40.0, blocks=2, output_tokens=200)
    _, blind = loads_while(
        make_router("power_of_two"), requests, Knowledge(telemetry=Telemetry(interval=1e6))
    )
    _, counted = loads_while(make_router("power_of_two", {"load": "ledger"}), requests)
    assert crowding(blind) > 1.35
    assert crowding(counted) < 1.25


def test_f9_the_first_owner_of_the_system_prompt_gets_everything() -> None:
    """VPS#957, AIB#917: one common block, and the first instance that was sent it keeps all.

    At 40 requests/s one of 8 instances gets 100 % and has up to 572 in flight; TTFT p90 is 15 s.
    The same load without the common block: 14 % at most, 0.08 s.
    """
    requests = [
        Sent(sent.time, [0, *sent.ids[1:]], sent.output_tokens)
        for sent in unique_prompts(rate=40.0, seconds=20.0, blocks=4, output_tokens=100)
    ]
    owned, loads = loads_while(make_router("prefixaware"), requests)
    spread, _ = loads_while(make_router("prefixaware"), unique_prompts(40.0, 20.0, 4, 100))
    assert largest_share(owned) == 1.0
    assert largest_share(spread) < 0.2
    assert loads.max() > 300
    assert np.quantile(owned["ttft"], 0.9) > 20 * np.quantile(spread["ttft"], 0.9)


def test_f13_all_sessions_of_a_dead_instance_go_to_one_other() -> None:
    """VR code: consistent_hash's stand-in for every home that is away is the first instance.

    Of 8 instances number 5 fails, which had 13.1 % of the sessions: instance 0 goes from 11.4 % to
    24.5 %, the others stay. Along the ring nobody takes more than 2.7 points.
    """

    def shares(failover: str, dead: int | None) -> NDArray[np.float64]:
        router = router_for(8, "consistent_hash", failover=failover)
        up = [int(i != dead) for i in range(8)]
        views = [one_view(8, request={"session": s}, available=up) for s in range(2000)]
        return np.bincount([decide(router, view) for view in views], minlength=8) / 2000

    before = shares("first", None)
    first, ring = (shares(failover, 5) - before for failover in ("first", "ring"))
    assert abs(first[0] - before[5]) < 1e-9
    assert not first[[1, 2, 3, 4, 6, 7]].any()
    assert ring[[0, 1, 2, 3, 4, 6, 7]].min() > 0
    assert ring.max() < 0.04


@dataclass
class Warmed(Router):
    """Sends the first requests to the instances in turn, and all others as `then` does."""

    name = "warmed"
    source = "this test"
    family = "tests"

    then: Router
    first: int

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        self.then.reset(cluster, seeds)

    def route(self, view: View) -> NDArray[np.int64]:
        index = view.requests["index"]
        chosen = self.then.route(view)
        return np.where(index < self.first, index % view.instances.shape[1], chosen)


def test_f16_a_second_holder_is_never_used() -> None:
    """VPS#884, #1035: all 8 instances have the hot prefix, and kvaware sends it all to the first.

    At 60 requests/s that one has up to 943 in flight, and TTFT p90 is 33 s. loadaware finds the
    same share of tokens cached (89 %), has 14 in flight at most, and 0.025 s.
    """
    warm = [Sent(0.1 * k, range(8)) for k in range(8)]
    later = unique_prompts(rate=60.0, seconds=20.0, blocks=1, output_tokens=150)
    hot = [Sent(10.0 + sent.time, [*range(8), *sent.ids], sent.output_tokens) for sent in later]

    def run(name: str) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        outcomes, loads = loads_while(Warmed(make_router(name), len(warm)), [*warm, *hot])
        return outcomes[len(warm) :], loads

    (first, crowd), (shared, even) = run("kvaware"), run("loadaware")
    assert largest_share(first) == 1.0
    assert largest_share(shared) < 0.15
    assert first["hit_tokens"].sum() == shared["hit_tokens"].sum()
    assert crowd.max() > 500 > 30 > even.max()
    assert np.quantile(first["ttft"], 0.9) > 100 * np.quantile(shared["ttft"], 0.9)
