"""Training writes what it learned, and the comparison is fair and repeatable."""

from pathlib import Path

import pytest
from stable_baselines3 import PPO
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.experiments.train import Training, compare, train


@pytest.fixture
def training(tiny: Path) -> Training:
    scenario = load_scenario(str(tiny)).with_num_requests(40)
    return Training(scenario, 20.0, steps=100, num_envs=2, rollout=20, batch=20, epochs=1)


def test_it_writes_events_and_a_model_that_loads(training: Training, tmp_path: Path) -> None:
    told: list[int] = []
    model = train(training, tmp_path / "run", told.append)
    assert training.rollouts == 3
    assert told == [40] * 3
    assert model.num_timesteps == 120
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    # One of the two clusters is half an episode ahead, so one ends with every rollout of 20.
    assert len(events.Scalars("rollout/ep_rew_mean")) == 3
    assert events.Scalars("rollout/ep_len_mean")[0].value == 40
    loaded = PPO.load(tmp_path / "run" / "model.zip", device="cpu")
    expected = compare(model, training, (20, 21))
    assert compare(loaded, training, (20, 21)).equals(expected)
    assert expected["router"].to_list() == [
        name for name in ("learned", "round_robin", "min_ttft") for _ in range(2)
    ]
    assert expected["requests"].to_list() == [40] * 6


def test_training_twice_learns_the_same(training: Training, tmp_path: Path) -> None:
    first, second = (train(training, tmp_path / name, lambda _: None) for name in "ab")
    for one, other in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
        assert one.equal(other)
