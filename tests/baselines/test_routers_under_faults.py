"""Every router, while instances fail, leave, come and stall and clients go away and try again."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from made_tapes import MadeWorkload, Sent, tape_of
from numpy.typing import NDArray

import prefixgym.baselines  # noqa: F401  (fills the registry)
from prefixgym.baselines.replicated import Replicated
from prefixgym.baselines.router import Router, make_router, router_names
from prefixgym.envs.clients import Clients
from prefixgym.envs.cluster.faults import Fault
from prefixgym.envs.cluster.profiles import constant_profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.view.knowledge import Health, Knowledge, Replicas, Telemetry
from prefixgym.envs.view.view import View
from prefixgym.experiments.evaluate import begin

N, BLOCK = 4, 16
REQUESTS, LATE = 120, 12

BAD_DAY = (
    Fault(kind="join", at=0.2, instances=(3,)),
    Fault(kind="crash", at=0.3, instances=(0,), lasts=0.4),
    Fault(kind="drain", at=0.5, instances=(1,), grace=0.05, lasts=0.1),
    Fault(kind="restart", at=0.8, lasts=0.1),  # all of them
    Fault(kind="slow", at=1.0, lasts=0.3, instances=(2,), factor=3.0),
    Fault(kind="silence", at=1.0, lasts=0.2, instances=(1,)),
    Fault(kind="flush", at=1.1),
)
IMPATIENT = Clients(
    timeout=0.1, cancel=0.3, cancel_after=0.05, retries=2, retry_delay=0.01, leak=0.3
)


def simulation_of(clients: Clients, routers: int = 1) -> Simulation:
    """1.5 s in which steps of 10 ms serve prompts that share prefixes, then a few requests more."""
    rng = np.random.default_rng(5)
    times = np.sort(rng.uniform(0, 1.5, REQUESTS - LATE))
    requests = []
    for time in times.tolist():
        prefix = 1000 * int(rng.integers(0, 6))
        requests.append(Sent(time, range(prefix, prefix + int(rng.integers(1, 9))), 10))
    requests += [Sent(3.0 + 0.1 * k, range(8), 1) for k in range(LATE)]
    instance = InstanceSpec(constant_profile(10.0, 5.0), kv_blocks=60, max_sequences=8)
    cluster = ClusterSpec((instance,) * N, BLOCK)
    knowledge = Knowledge(
        telemetry=Telemetry(interval=0.02),
        health=Health(interval=0.05, failures=2),
        replicas=Replicas(count=routers),
    )
    workload = MadeWorkload(tape_of(requests, BLOCK))
    return Simulation(
        cluster,
        workload,
        (Slo(ttft=0.1, tpot=0.05),),
        knowledge,
        2,
        faults=BAD_DAY,
        clients=clients,
        record=True,
    )


def check(view: View, chosen: NDArray[np.int64], router: Router) -> None:
    rows = np.arange(len(chosen))
    rejected = chosen == N
    assert router.may_reject or not rejected.any()
    up = view.available[rows, np.where(rejected, 0, chosen)]
    assert (rejected | up | ~view.available.any(axis=1)).all()


@pytest.fixture(scope="module", params=[1, 3])
def simulation(request: pytest.FixtureRequest) -> Simulation:
    """One router, or three."""
    return simulation_of(IMPATIENT, request.param)


@pytest.mark.parametrize("name", router_names())
def test_every_router_gets_through_a_bad_day(name: str, simulation: Simulation) -> None:
    router = make_router(name)
    decider = begin(simulation, router, simulation.cluster, [0, 0])
    nobody_there = 0
    while not simulation.done.all():
        view = simulation.view
        nobody_there += not view.available.any()
        chosen = decider.route(view)
        check(view, chosen, router)
        simulation.step(chosen)
    assert nobody_there > 0
    for e in range(2):
        outcomes = simulation.outcomes(e)
        assert sorted(outcomes["row"]) == list(range(REQUESTS))
        assert len(set(outcomes["status"].tolist())) >= 3  # finished, failed and cancelled


BOOKS: list[tuple[str, dict[str, Any], Callable[[Any], NDArray[Any]]]] = [
    ("dynamo", {}, lambda r: r._sequences.workers["requests"]),
    ("dynamo", {}, lambda r: r._sequences.workers["blocks"]),
    ("dynamo", {}, lambda r: r._sequences.workers["prefill_tokens"]),
    ("kv_aware", {"kv_aware_session_affinity_ttl_secs": 1}, lambda r: r._bindings["in_flight"]),
    ("ttft", {}, lambda r: r._work),
    ("manual", {"assignment_mode": "min_group"}, lambda r: r._groups),
    ("lodestar", {}, lambda r: r._flights.decode["requests"]),
    ("flexlb", {}, lambda r: r._books.endpoints["members"] + r._books.endpoints["queued"]),
    ("flexlb_decode", {}, lambda r: r._reserved["prompt"]),
    ("preble", {}, lambda r: r._memory.flights["node"] > 0),
]
"""Routers that count by `View.events`, and what they count."""


@pytest.fixture(scope="module", params=[1, 3])
def calm(request: pytest.FixtureRequest) -> Simulation:
    """Nothing leaks; one router, or three."""
    return simulation_of(IMPATIENT.model_copy(update={"leak": 0.0}), request.param)


@pytest.mark.parametrize(("name", "parameters", "books"), BOOKS)
def test_whatever_becomes_of_a_request_it_leaves_the_books(
    name: str, parameters: dict[str, Any], books: Callable[[Any], NDArray[Any]], calm: Simulation
) -> None:
    """At its last decision a router has heard of all ends: on its books is that one request."""
    router = begin(calm, make_router(name, parameters), calm.cluster, [0, 0])
    copies = router.routers if isinstance(router, Replicated) else [router]
    most = 0
    while not calm.done.all():
        chosen = router.route(calm.view)
        most = max(most, *(int(np.count_nonzero(books(copy)[0])) for copy in copies))
        calm.step(chosen)
    assert most > 1
    for copy in copies:
        assert np.count_nonzero(books(copy)[0]) <= 1
