"""LinUCB is ridge regression on what its decisions paid, and learns within an episode."""

from typing import Any

import numpy as np
import pytest

from prefixgym.agents.lin_ucb import LinUcb
from prefixgym.baselines.router import make_router
from prefixgym.envs.observation import INSTANCE_FIELDS
from prefixgym.envs.vector import PrefixRoutingVectorEnv
from prefixgym.envs.view.view import FAILED, FIRST_TOKEN

COLUMNS = [field.name for field in INSTANCE_FIELDS]


def test_its_weights_are_those_of_ridge_regression_on_what_it_heard() -> None:
    env = PrefixRoutingVectorEnv(2, "chat-8", rate=60.0, num_requests=300)
    simulation = env.episodes.simulation
    router = LinUcb(alpha=0.2, ridge=3.0, tardiness=0.5)
    observation: Any = env.reset(seed=0)[0]
    router.reset(simulation.cluster, [0, 1])
    prior = np.array([{"available": 1.0, "ttft": -1.0}.get(name, 0.0) for name in COLUMNS])
    matrices = np.tile(3.0 * np.eye(len(COLUMNS)), (2, 1, 1))
    sums = np.tile(3.0 * prior, (2, 1))
    pulls: list[dict[int, Any]] = [{}, {}]
    rewards = []
    for _ in range(300):
        view = simulation.view
        for e in range(2):
            for event in view.events[e][: view.num_events[e]]:
                if event["kind"] not in (FIRST_TOKEN, FAILED):
                    continue
                routed, slo, row = pulls[e].pop(int(event["slot"]))
                late = (event["time"] - routed) / slo - 1
                rewards.append(1.0 if late <= 0 else -0.5 * min(late, 8.0))
                matrices[e] += np.outer(row, row)
                sums[e] += rewards[-1] * row
        rows = observation["instances"].reshape(2, -1, len(COLUMNS)).astype(np.float64)
        inverse = np.linalg.inv(matrices)
        theta = np.einsum("eij,ej->ei", inverse, sums)
        spread = np.sqrt(np.einsum("enj,ejk,enk->en", rows, inverse, rows))
        scores = np.einsum("enj,ej->en", rows, theta) + 0.2 * spread
        chosen = router.route(view)
        assert router.weights == pytest.approx(theta, abs=1e-6)
        assert scores[[0, 1], chosen] == pytest.approx(scores.max(1), abs=1e-6)
        for e in range(2):
            shown = view.requests[e]
            row = rows[e, chosen[e]].copy()
            pulls[e][int(shown["slot"])] = (float(shown["time"]), float(shown["slo_ttft"]), row)
        observation = env.step(chosen)[0]
    assert len(rewards) > 200
    assert min(rewards) < 0 < max(rewards)


def test_it_learns_that_a_busy_instance_pays_less() -> None:
    env = PrefixRoutingVectorEnv(8, "chat-8", rate=35.0, num_requests=600)
    simulation = env.episodes.simulation
    router = LinUcb()
    env.reset(seed=0)
    router.reset(simulation.cluster, list(range(8)))
    before = router.weights
    for _ in range(600):
        env.step(router.route(simulation.view))
    assert (router.weights != before).any(1).all()
    busy = [COLUMNS.index(column) for column in ("backlog", "ttft", "prefill_requests", "queue")]
    assert np.median(router.weights[:, busy].sum(1)) < 0


def test_it_is_a_router_with_parameters() -> None:
    assert make_router("lin_ucb", {"alpha": "0.5"}) == LinUcb(alpha=0.5)
    for name, value in (("alpha", -1.0), ("ridge", 0.0), ("tardiness", np.inf)):
        with pytest.raises(ValueError, match=rf"lin_ucb\.{name}: found "):
            make_router("lin_ucb", {name: value})
