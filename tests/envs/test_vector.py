"""The vector environment: its three modes, and equality with single environments."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from prefixgym.envs import ROUTING_ID
from prefixgym.envs.routing import PrefixRoutingEnv
from prefixgym.envs.vector import PrefixRoutingVectorEnv
from prefixgym.envs.vector_checker import check_vector_env

ID = f"prefixgym:{ROUTING_ID}"
MODES = list(AutoresetMode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", ["shared-prompts-8", "chat-8"])
def test_the_checker_passes_and_singles_are_equal(scenario: str, mode: AutoresetMode) -> None:
    arguments: dict[str, Any] = {"scenario": scenario, "rate": 200.0, "num_requests": 8}
    check_vector_env(
        lambda num_envs: PrefixRoutingVectorEnv(num_envs, autoreset_mode=mode, **arguments),
        lambda: PrefixRoutingEnv(**arguments),
        num_envs=4,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reward", ["attributed", {"mode": "shaped", "tardiness": 0.25}])
def test_the_checker_passes_with_every_reward(reward: Any, mode: AutoresetMode) -> None:
    arguments: dict[str, Any] = {
        "rate": 200.0,
        "num_requests": 8,
        "reward": reward,
        "allow_reject": True,
        "discount_time": 10.0,
    }
    check_vector_env(
        lambda num_envs: PrefixRoutingVectorEnv(num_envs, autoreset_mode=mode, **arguments),
        lambda: PrefixRoutingEnv(**arguments),
        num_envs=3,
    )


def test_make_vec_takes_the_native_class_and_its_mode() -> None:
    for mode in MODES:
        env = gym.make_vec(ID, num_envs=2, autoreset_mode=mode, num_requests=3)
        assert type(env) is PrefixRoutingVectorEnv
        assert env.metadata["autoreset_mode"] is mode
        env.close()
    env = gym.make_vec(ID, num_envs=2, autoreset_mode="SameStep")
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert gym.make_vec(ID, num_envs=2).metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.spec is not None
    again = gym.make_vec(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert data_equivalence(again.reset(seed=1), env.reset(seed=1), exact=True)


def test_threads_change_no_bit() -> None:
    arguments: dict[str, Any] = {"num_requests": 20, "rate": 300.0, "autoreset_mode": "SameStep"}
    one = PrefixRoutingVectorEnv(7, threads=1, **arguments)
    two = PrefixRoutingVectorEnv(7, threads=2, **arguments)
    generator = np.random.default_rng(0)
    assert data_equivalence(two.reset(seed=9), one.reset(seed=9), exact=True)
    for _ in range(50):
        actions = generator.integers(0, 8, 7)
        for found, expected in zip(two.step(actions), one.step(actions), strict=True):
            assert data_equivalence(found, expected, exact=True)
    two.close()
    two.close()
    assert len(two.step(actions)[1]) == 7  # threads come back when needed
    two.close()


def test_without_copies_an_observation_lasts_one_more_step() -> None:
    env = PrefixRoutingVectorEnv(3, num_requests=10, copy=False)
    last, _ = env.reset(seed=0)
    arrays = set()
    for _ in range(8):
        kept = {name: values.copy() for name, values in last.items()}
        new = env.step(np.zeros(3, np.int64))[0]
        assert data_equivalence(last, kept, exact=True)
        arrays.add(new["request"].ctypes.data)
        last = new
    assert len(arrays) == 2


def test_a_bad_argument_gives_one_clear_error() -> None:
    with pytest.raises(ValueError, match="max_episode_steps: found 9, must be None"):
        PrefixRoutingVectorEnv(2, max_episode_steps=9)
    with pytest.raises(ValueError, match="'NextStop' is not a valid AutoresetMode"):
        PrefixRoutingVectorEnv(2, autoreset_mode="NextStop")
    with pytest.raises(ValueError, match="scenario: found 'chatt-8', allowed:"):
        PrefixRoutingVectorEnv(2, scenario="chatt-8")


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.array([8, 0]), "actions: found 0 to 8, allowed: 0 to 7"),
        (np.array([0, -1]), "actions: found -1 to 0, allowed: 0 to 7"),
        (np.array([0, 1, 2]), r"actions: found shape \(3,\), expected \(2,\)"),
    ],
)
def test_bad_actions_give_one_clear_error(actions: Any, message: str) -> None:
    env = PrefixRoutingVectorEnv(2, num_requests=5)
    with pytest.raises(gym.error.ResetNeeded, match="call reset before"):
        env.step(np.zeros(2, np.int64))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.step(actions)


@pytest.mark.parametrize(
    "mask", [[True, False], np.array([1, 0]), np.array([True]), np.array([False, False])]
)
def test_a_bad_reset_mask_gives_one_clear_error(mask: Any) -> None:
    env = PrefixRoutingVectorEnv(2, num_requests=5)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"options\['reset_mask'\]: found .* expected a bool"):
        env.reset(options={"reset_mask": mask})


def test_a_bad_seed_list_gives_one_clear_error() -> None:
    with pytest.raises(ValueError, match="seed: found 3 seeds, expected 2"):
        PrefixRoutingVectorEnv(2, num_requests=5).reset(seed=[1, 2, 3])
