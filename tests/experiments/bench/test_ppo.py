"""The yardstick that PPO is measured against."""

import numpy as np
import pytest
from stable_baselines3 import PPO

from prefixgym.agents.sb3_vec_env import PrefixRoutingVecEnv
from prefixgym.experiments.bench import ppo


def test_the_trivial_environment_is_one_with_the_same_spaces() -> None:
    real = PrefixRoutingVecEnv(2, num_requests=5)
    trivial = ppo.TrivialVecEnv(real)
    assert trivial.observation_space == real.observation_space
    assert trivial.action_space == real.action_space
    model = PPO("MultiInputPolicy", trivial, n_steps=4, batch_size=8, device="cpu").learn(16)
    assert model.num_timesteps == 16
    observation, rewards, ended, infos = trivial.step(np.zeros(2, np.int64))
    assert isinstance(observation, dict)
    for i in range(2):
        mine = {name: values[i] for name, values in observation.items()}
        assert real.observation_space.contains(mine)
    assert rewards.dtype == np.float32
    assert ended.dtype == np.bool_
    assert infos == [{}, {}]


def test_the_ratio_is_of_the_two_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "EPISODE", 64)
    monkeypatch.setattr(ppo, "FRAMES", 1)  # one rollout
    ours, trivial, ratio = ppo.ppo_through_adapter(repeats=1)
    assert ours.unit == trivial.unit == "frames/s"
    assert ratio.value == pytest.approx(ours.value / trivial.value)
    assert ratio.met is (ratio.value >= 0.8)
