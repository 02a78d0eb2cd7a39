"""Look-ahead and oracle: decisions worked by hand, and what rollouts guarantee."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_cases import SLOS, Case, RequestDraw, Tapes, build_tape, cases

from prefixgym.baselines.references.rollout import BASES, VIRTUAL_NODES, decide
from prefixgym.baselines.references.upper_bound import upper_bound
from prefixgym.baselines.router import make_router, router_keys
from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.cluster.profiles import constant_profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.view.hash_ring import HashRing
from prefixgym.envs.workload.tape import Tape
from prefixgym.experiments.evaluate import begin, play

# 10 tokens of prompt a step of 10 ms: 1 ms a token.
INSTANCE = InstanceSpec(constant_profile(10.0, 1.0), 1000, max_batched_tokens=10, max_sequences=10)
LONG = RequestDraw(0, 0, 0, 0, 0, 100, 1, 1.0, True, 0)


def played(
    router: str, tape: Tape, slos: list[Slo], num_instances: int = 2, **parameters: Any
) -> tuple[list[int], list[bool]]:
    """Where each request went, and whether it was good."""
    cluster = ClusterSpec((INSTANCE,) * num_instances, tape.block_size)
    simulation = Simulation(cluster, Tapes((tape,)), slos, record=True)
    play(simulation, make_router(router, parameters), cluster, [0])
    outcomes = np.sort(simulation.outcomes(0), order="row")
    return outcomes["instance"].tolist(), (outcomes["good"] != 0).tolist()


def test_lookahead_keeps_an_instance_free_for_what_comes_next() -> None:
    # The first request leaves its prefix on an instance. Of two that come at once when it is over,
    # the first has that prefix and much to compute, for which there is time anywhere; the second
    # has time for a hit on an idle instance only.
    patient = replace(
        LONG,
        gap=200 * TICKS_PER_MS,
        base_back=1,
        shared_blocks=9,
        prompt_tokens=190,
        slo_class=1,
    )
    urgent = replace(LONG, base_back=2, shared_blocks=9, slo_class=2)
    tape = build_tape([LONG, patient, urgent], 10)
    slos = [Slo(0.1, 1.0), Slo(0.5, 1.0), Slo(0.05, 1.0)]
    (home, second, _), good = played("oracle_greedy", tape, slos)
    assert second == home
    assert good == [True, True, False]
    instances, good = played("lookahead", tape, slos, base="min_ttft", candidates=2)
    assert instances[1] != home
    assert instances[2] == home
    assert good == [True] * 3
    # One decision ahead is no further than greedy.
    _, good = played("lookahead", tape, slos, base="min_ttft", candidates=2, horizon=1)
    assert not good[2]


def test_tardiness_decides_where_nothing_is_in_time() -> None:
    # Nobody is in time: all 100 ms, the objective 50.
    tape = build_tape([LONG, replace(LONG, gap=TICKS_PER_MS)], 10)
    slos = [Slo(0.05, 1.0)]
    # `greedy_dump` sends the second to the busiest, and without a price for lateness that is fine.
    instances, _ = played("lookahead", tape, slos, base="greedy_dump", candidates=2)
    assert instances[0] == instances[1]
    instances, _ = played("lookahead", tape, slos, base="greedy_dump", candidates=2, tardiness=0.1)
    assert instances[0] != instances[1]


def attained(
    case: Case, router: str, **parameters: Any
) -> tuple[NDArray[np.float64], NDArray[np.void]]:
    """Attainment of each tape, and the outcomes of the first."""
    num_envs = len(case.tapes)
    simulation = Simulation(
        case.cluster, Tapes(case.tapes), SLOS, case.knowledge, num_envs, record=True
    )
    play(simulation, make_router(router, parameters), case.cluster, range(num_envs))
    shares = [simulation.outcomes(e)["good"].mean() for e in range(num_envs)]
    return np.array(shares), simulation.outcomes(0)


@settings(max_examples=15)
@given(case=cases(num_tapes=2, most_requests=20), base=st.sampled_from(BASES))
def test_a_whole_rollout_is_never_worse_than_its_base(case: Case, base: str) -> None:
    # With a horizon that sees the end, the plan of the best fork can always be kept to.
    before, _ = attained(case, base)
    second = next(name for name in BASES if name != base)
    candidates = max(2, len(case.cluster.instances))
    after, _ = attained(
        case, "lookahead", base=f"{base}+{second}", horizon=60, candidates=candidates
    )
    assert (after >= before).all()
    assert after[0] <= upper_bound(case.tapes[0], case.cluster, SLOS)


@settings(max_examples=10)
@given(
    case=cases(num_tapes=2, most_requests=20), name=st.sampled_from(["lookahead", "oracle_greedy"])
)
def test_environments_do_not_matter_to_each_other(case: Case, name: str) -> None:
    _, together = attained(case, name)
    _, alone = attained(replace(case, tapes=case.tapes[:1]), name)
    for field in ("row", "instance", "end"):
        assert together[field].tolist() == alone[field].tolist()


@settings(max_examples=10)
@given(case=cases(num_tapes=2, most_requests=30), seed=st.integers(0, 2**32 - 1))
def test_compiled_base_routers_decide_as_the_routers(case: Case, seed: int) -> None:
    # At every decision fresh routers and long-serving ones agree too: they remember nothing.
    simulation = Simulation(case.cluster, Tapes(case.tapes), SLOS, case.knowledge, 2)
    simulation.reset([0, 1])
    seeds, rng = [seed, seed + 1], np.random.default_rng(seed)
    ring = HashRing(len(case.cluster.instances), VIRTUAL_NODES)
    routers = [make_router(name) for name in BASES]
    for router in routers:
        router.reset(case.cluster, seeds)
    while not simulation.done.all():
        for base, router in enumerate(routers):
            expected = router.route(simulation.view)
            for e in np.flatnonzero(~simulation.done).tolist():
                found = decide(
                    simulation.arrays.knowledge,
                    e,
                    base,
                    case.cluster.block_size,
                    case.cluster.frontend_latency,
                    router_keys(seeds)[e],
                    ring.positions,
                    ring.owners,
                )
                assert found == expected[e]
        simulation.step(rng.integers(0, len(case.cluster.instances), 2))


@pytest.mark.parametrize("name", ["lookahead", "oracle_greedy"])
def test_references_ask_for_the_simulation(name: str) -> None:
    router = make_router(name)
    cluster = ClusterSpec((INSTANCE,) * 2, 10)
    with pytest.raises(ValueError, match=f"{name}: decides by the true state, but was shown no"):
        router.reset(cluster, [0])
    simulation = Simulation(cluster, Tapes((build_tape([LONG], 10),)), SLOS)
    begin(simulation, router, cluster, [0])
    assert router.route(simulation.view).shape == (1,)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"base": "kvaware"}, "lookahead.base: found 'kvaware', allowed: different ones of cache"),
        ({"base": "min_ttft+min_ttft"}, "lookahead.base: found 'min_ttft\\+min_ttft'"),
        ({"candidates": 1}, "lookahead.candidates: found 1, allowed: at least as many as base"),
        ({"horizon": 0}, "lookahead.horizon: found 0, allowed: at least 1"),
        ({"tardiness": -1.0}, "lookahead.tardiness: found -1.0, allowed: at least 0"),
        ({"threads": 0}, "lookahead.threads: found 0, allowed: at least 1"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_router("lookahead", parameters)
