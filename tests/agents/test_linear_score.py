"""The linear score decides by the environment's observation, and its weights survive a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from prefixgym.agents.files import checksum
from prefixgym.agents.linear_score import (
    WEIGHED_COLUMNS,
    LinearScore,
    card_of,
    highest_score,
    linear_score,
    load_weights,
    save_weights,
    weight_row,
    weights_of,
)
from prefixgym.agents.scorer import InstanceScorer
from prefixgym.baselines.router import make_router, router_names
from prefixgym.envs.observation import INSTANCE_FIELDS, instance_constants
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.vector import PrefixRoutingVectorEnv
from prefixgym.experiments.evaluate import evaluate_router


def random_weights(seed: int) -> dict[str, float]:
    drawn = np.random.default_rng(seed).normal(size=len(WEIGHED_COLUMNS))
    return dict(zip(WEIGHED_COLUMNS, drawn.tolist(), strict=True))


@pytest.mark.parametrize("scenario", ["shared-prompts-8", "chat-16-mixed"])
def test_it_takes_the_highest_weighted_sum_of_the_environments_observation(scenario: str) -> None:
    env = PrefixRoutingVectorEnv(3, scenario, rate=200.0, num_requests=60)
    weights = random_weights(0)
    router = linear_score(weights)
    observation: Any = env.reset(seed=0)[0]
    router.reset(env.episodes.simulation.cluster, [0, 1, 2])
    generator = np.random.default_rng(0)
    chosen = []
    for _ in range(60):
        rows = observation["instances"].reshape(3, -1, len(INSTANCE_FIELDS))
        scores = rows.astype(np.float64) @ weight_row(weights)
        actions = router.route(env.episodes.simulation.view)
        best = scores.max(1)
        assert scores[np.arange(3), actions] == pytest.approx(best, abs=1e-12)
        chosen.append(actions)
        observation = env.step(generator.integers(0, env.single_action_space.n, 3))[0]  # type: ignore[attr-defined]
    assert len(np.unique(chosen)) > 1


def test_it_is_the_prior_of_an_untrained_network() -> None:
    env = PrefixRoutingVectorEnv(4, "chat-8", rate=60.0, num_requests=40)
    weights = random_weights(1)
    router, scorer = linear_score(weights), InstanceScorer(prior=weight_row(weights).tolist())
    observation: Any = env.reset(seed=0)[0]
    router.reset(env.episodes.simulation.cluster, [0, 1, 2, 3])
    for _ in range(40):
        rows = observation["instances"].reshape(4, -1, len(INSTANCE_FIELDS))
        with torch.no_grad():
            scores = scorer(torch.tensor(observation["request"]), torch.tensor(rows)).numpy()
        actions = router.route(env.episodes.simulation.view)
        assert scores[np.arange(4), actions] == pytest.approx(scores.max(1), abs=1e-5)
        observation = env.step(actions)[0]


def test_equals_go_to_the_lowest_index_and_unavailable_instances_get_nothing() -> None:
    env = PrefixRoutingVectorEnv(2, num_requests=5)
    env.reset(seed=0)
    router = linear_score(dict.fromkeys(WEIGHED_COLUMNS, 0.0))
    simulation = env.episodes.simulation
    router.reset(simulation.cluster, [0, 1])
    assert router.route(simulation.view).tolist() == [0, 0]
    available = simulation.view.instances["available"]
    available[:] = 0
    available[0, [5, 6]] = 1
    assert router.route(simulation.view).tolist() == [5, 0]


def test_each_block_of_environments_may_have_weights_of_its_own() -> None:
    env = PrefixRoutingVectorEnv(4, "chat-8", rate=60.0, num_requests=30)
    env.reset(seed=0)
    simulation = env.episodes.simulation
    constants = instance_constants(simulation.cluster)
    rows = np.array([weight_row(random_weights(seed)) for seed in (2, 3)])
    differs = False
    for _ in range(30):
        together = highest_score(simulation.view, constants, rows)
        alone = [highest_score(simulation.view, constants, row[None]) for row in rows]
        assert together.tolist() == [*alone[0][:2], *alone[1][2:]]
        differs |= (alone[0] != alone[1]).any()
        env.step(together)
    assert differs


def test_weights_come_back_from_their_file_with_the_card(tmp_path: Path) -> None:
    path, weights = tmp_path / "w.safetensors", random_weights(4)
    save_weights(path, weights, {"seed": 4, "scenario": "chat-8"})
    assert load_weights(path) == weights
    assert card_of(path) == {"seed": 4, "scenario": "chat-8"}
    router = make_router("linear_score", {"weights": str(path)})
    assert isinstance(router, LinearScore)
    assert weights_of(router) == weights


def test_other_files_give_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with pytest.raises(OSError, match=r"w\.safetensors"):
        load_weights(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"w\.safetensors: is no safetensors file"):
        load_weights(path)
    save_file({"bias": np.zeros(2)}, path)
    with pytest.raises(ValueError, match="found bias, expected the tensor 'weights'"):
        load_weights(path)
    save_file({"weights": np.zeros(1)}, path, {"columns": '["luck"]'})
    with pytest.raises(ValueError, match="found weights of luck, allowed: hit, "):
        load_weights(path)
    with pytest.raises(ValueError, match=r"linear_score\.hit: found inf, allowed: a finite"):
        LinearScore(hit=np.inf)


def test_it_has_a_name_like_every_router() -> None:
    assert "linear_score" in router_names()


def test_a_file_of_weights_is_a_router_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    weights = dict.fromkeys(WEIGHED_COLUMNS, 0.0) | {"ttft": -1.0, "hit": 0.25}
    save_weights(path, weights, {"scenario": "made up"})
    by_name = make_router(f"learned:{path}")
    scenario = load_scenario("chat-8", {}).with_num_requests(60)
    frames = [
        evaluate_router(router, scenario, 60.0, [0, 1]).drop("router")
        for router in (by_name, linear_score(weights))
    ]
    assert frames[0].equals(frames[1])
    digits = checksum(path)
    pinned: Any = make_router(f"learned:{path}", {"weights": digits[:6]})
    assert pinned.weights == digits
    with pytest.raises(ValueError, match=f"weights: found 'abc', allowed: {digits}"):
        make_router(f"learned:{path}", {"weights": "abc"})
