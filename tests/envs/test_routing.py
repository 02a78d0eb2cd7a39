"""The single environment keeps Gymnasium's and Stable-Baselines3's contracts."""

import copy
import pickle
import subprocess
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence

from prefixgym.envs import ROUTING_ID
from prefixgym.envs.routing import PrefixRoutingEnv

ID = f"prefixgym:{ROUTING_ID}"
REQUESTS = 12

Env = gym.Env[Any, Any]


def make(**arguments: Any) -> Env:
    env: Env = gym.make(ID, **{"num_requests": REQUESTS, **arguments})
    return env


def episode(env: Env, seed: int | None = None) -> list[Any]:
    """All that an episode returns when instances take turns."""
    returned: list[Any] = [env.reset(seed=seed)]
    while len(returned) == 1 or not returned[-1][2]:
        returned.append(env.step(np.int64(len(returned) % 8)))
    return returned


@pytest.mark.parametrize("scenario", ["shared-prompts-8", "chat-16-mixed"])
def test_both_checkers_pass_without_a_warning(
    scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # the checker renders in every mode
    sb3_checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make(scenario=scenario)
        check_env(env.unwrapped)
        sb3_checker.check_env(env.unwrapped)
        sb3_checker.check_env(env)


@pytest.mark.parametrize(
    "arguments",
    [
        {"reward": {"mode": "goodput", "tardiness": 0.25, "cap": 8}, "allow_reject": True},
        {"reward": "attributed", "discount_time": 10.0},
        {"reward": {"mode": "shaped", "gamma": 0.997, "tardiness": 0.25}, "allow_reject": True},
        {"randomise": {"load": [0.5, 2], "kv_blocks": [0.5, 1], "slo": [1, 2]}},
    ],
)
def test_both_checkers_pass_with_every_reward_and_option(arguments: dict[str, Any]) -> None:
    sb3_checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = make(**arguments)
        check_env(env.unwrapped, skip_render_check=True)
        sb3_checker.check_env(env)
        assert env.spec is not None
        again: Env = gym.make(EnvSpec.from_json(env.spec.to_json()))
        assert data_equivalence(episode(env, seed=1), episode(again, seed=1), exact=True)


def test_a_request_turned_away_counts_as_one_that_was_never_answered() -> None:
    env = make(scenario="chat-8", allow_reject=True, reward="attributed").unwrapped
    assert env.action_space == gym.spaces.Discrete(9)
    _, info = env.reset(seed=0)
    for k in range(REQUESTS):
        assert info["action_mask"].tolist() == [1] * 9
        _, reward, terminated, _, info = env.step(np.int64(8))
        assert reward == 0.0
        assert info["attribution"] == [(k, 0.0)]
    assert terminated  # follow-ups of what was turned away came too
    with pytest.raises(ValueError, match="action: found 9, allowed: 0 to 8"):
        env.step(9)


def test_a_fresh_interpreter_finds_the_environment_by_its_id() -> None:
    script = (
        f"import gymnasium as gym; env = gym.make({ID!r}, num_requests=2); env.reset(seed=3);"
        "print([env.step(i)[2] for i in range(2)])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "[False, True]"


@pytest.mark.parametrize("context", ["spawn", None])
def test_worker_processes_make_the_environment(context: str | None) -> None:
    workers = gym.make_vec(
        ID, 2, vectorization_mode="async", vector_kwargs={"context": context}, num_requests=4
    )
    native = gym.make_vec(ID, 2, num_requests=4)
    assert type(workers) is gym.vector.AsyncVectorEnv
    try:
        assert data_equivalence(workers.reset(seed=5), native.reset(seed=5), exact=True)
        for i in range(9):  # over an episode's end
            actions = np.array([i % 8, 3])
            for found, expected in zip(workers.step(actions), native.step(actions), strict=True):
                assert data_equivalence(found, expected, exact=True)
    finally:
        workers.close()
        native.close()


def test_a_spec_survives_json() -> None:
    env = make(rate=90.0, scenario="chat-8")
    assert env.spec is not None
    again: Env = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert data_equivalence(episode(env, seed=1), episode(again, seed=1), exact=True)


def test_equal_seeds_give_equal_episodes_and_others_do_not() -> None:
    env, other = make(), make()
    first = episode(env, seed=4)
    following = episode(env)
    assert data_equivalence(episode(other, seed=4), first, exact=True)
    assert data_equivalence(episode(other), following, exact=True)
    assert not data_equivalence(following, first, exact=True)
    assert not data_equivalence(episode(env, seed=5), first, exact=True)
    assert data_equivalence(episode(env, seed=4), first, exact=True)


def test_an_episode_ends_with_its_last_request() -> None:
    returned = episode(make(), seed=0)
    assert [step[2] for step in returned[1:]] == [False] * (REQUESTS - 1) + [True]
    assert [step[3] for step in returned[1:]] == [False] * REQUESTS
    times = [returned[0][1]["time"], *(step[4]["time"] for step in returned[1:-1])]
    assert times == sorted(set(times))


def test_a_step_after_the_end_asks_for_a_reset() -> None:
    env = make().unwrapped
    episode(env, seed=0)
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        env.step(np.int64(0))
    env.reset()
    env.step(np.int64(0))


def test_masks_come_by_info_and_by_method() -> None:
    env = make()
    _, info = env.reset(seed=0)
    masks = env.get_wrapper_attr("action_masks")
    for action in range(4):
        assert info["action_mask"].dtype == np.int8
        assert info["action_mask"].tolist() == masks().tolist() == [1] * 8
        assert info["action_mask"] is not masks()
        assert env.action_space.contains(env.action_space.sample(mask=info["action_mask"]))
        info = env.step(np.int64(action))[4]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_from_where_it_was_made(duplicate: Any) -> None:
    env = make().unwrapped
    env.reset(seed=2)
    for i in range(5):
        env.step(np.int64(i))
    twin = duplicate(env)
    for i in range(5, REQUESTS):
        assert data_equivalence(twin.step(np.int64(i % 8)), env.step(np.int64(i % 8)), exact=True)
    assert data_equivalence(twin.reset(), env.reset(), exact=True)


def test_closing_twice_is_harmless() -> None:
    env = make()
    env.reset(seed=0)
    env.close()
    env.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scenario": "chatt-8"}, r"scenario: found 'chatt-8', allowed: .*chat-8"),
        ({"rate": 0.0}, r"rate: found 0.0, must be finite and above 0"),
        ({"num_requests": 0}, r"num_requests: found 0, must be between 1"),
        ({"num_requests": 2.5}, r"num_requests: found 2.5, must be a whole number"),
        ({"reward": "good"}, r"reward: found 'good', allowed: goodput"),
    ],
)
def test_a_bad_argument_gives_one_clear_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrefixRoutingEnv(**arguments)


@pytest.mark.parametrize("action", [8, -1])
def test_a_bad_action_gives_one_clear_error(action: int) -> None:
    env = make().unwrapped
    env.reset(seed=0)
    with pytest.raises(ValueError, match=f"action: found {action}, allowed: 0 to 7"):
        env.step(action)
