"""The adapter to Stable-Baselines3: equal to its own DummyVecEnv, and fit to learn with."""

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from prefixgym.agents.sb3_vec_env import PrefixRoutingVecEnv
from prefixgym.envs.routing import PrefixRoutingEnv

ARGUMENTS: dict[str, Any] = {"scenario": "shared-prompts-8", "rate": 200.0, "num_requests": 12}


def make(num_envs: int = 4) -> PrefixRoutingVecEnv:
    return PrefixRoutingVecEnv(num_envs, **ARGUMENTS)


def test_it_equals_a_dummy_vec_env_of_single_environments() -> None:
    mine: Any = make(3)
    dummy: Any = DummyVecEnv([lambda: Monitor(PrefixRoutingEnv(**ARGUMENTS))] * 3)
    generator = np.random.default_rng(0)
    ends = 0
    for seed in (5, None, 6):  # None goes on with the generators as they are
        for env in (mine, dummy):
            if seed is not None:
                assert env.seed(seed) == [seed, seed + 1, seed + 2]
        assert data_equivalence(dict(mine.reset()), dict(dummy.reset()), exact=True)
        for _ in range(30):
            actions = generator.integers(0, 8, 3)
            observation, rewards, ended, infos = mine.step(actions)
            expected = dummy.step(actions)
            assert data_equivalence(dict(observation), dict(expected[0]), exact=True)
            assert data_equivalence(rewards, expected[1], exact=True)
            assert data_equivalence(ended, expected[2], exact=True)
            for i, info in enumerate(infos):
                if not ended[i]:
                    assert info == {}
                    continue
                ends += 1
                other = expected[3][i]
                final, other_final = info["terminal_observation"], other["terminal_observation"]
                assert data_equivalence(final, other_final, exact=True)
                assert info["TimeLimit.truncated"] is other["TimeLimit.truncated"] is False
                assert info["episode"].keys() == other["episode"].keys()
                assert info["episode"]["r"] == pytest.approx(other["episode"]["r"])
                assert info["episode"]["l"] == other["episode"]["l"] == 12
                assert type(info["episode"]["r"]) is float
    assert ends == 3 * 3 * 2


def test_infos_hold_what_was_asked_for() -> None:
    arguments = ARGUMENTS | {
        "reward": {"mode": "attributed", "tardiness": 0.25},
        "allow_reject": True,
        "discount_time": 10.0,
        "randomise": {"instances": 3, "slo": [1, 2]},
    }
    mine: Any = PrefixRoutingVecEnv(3, **arguments)
    dummy: Any = DummyVecEnv([lambda: Monitor(PrefixRoutingEnv(**arguments))] * 3)
    for env in (mine, dummy):
        env.seed(4)
    assert data_equivalence(dict(mine.reset()), dict(dummy.reset()), exact=True)
    generator = np.random.default_rng(0)
    ends = 0
    for _ in range(30):
        for found, expected in zip(mine.reset_infos, dummy.reset_infos, strict=True):
            assert found.keys() == {"randomisation"}
            drawn = expected["randomisation"]
            assert data_equivalence(found["randomisation"], drawn, exact=True)
        masks = mine.env_method("action_masks")
        actions = np.array([generator.choice(np.flatnonzero(mask)) for mask in masks])
        _, rewards, ended, infos = mine.step(actions)
        expected_infos = dummy.step(actions)[3]
        for i, info in enumerate(infos):
            told = {"discount", "attribution"}
            assert info.keys() & {*told, "episode"} == told | ({"episode"} if ended[i] else set())
            for key in told:
                assert info[key] == expected_infos[i][key]
            units = sum(units for _, units in info["attribution"])
            assert units == pytest.approx(rewards[i], abs=1e-6)
            ends += "episode" in info
    assert ends == 3 * 2


def test_staggering_heeds_masks() -> None:
    env = PrefixRoutingVecEnv(
        4, **ARGUMENTS, stagger=True, allow_reject=True, randomise={"instances": 1}
    )
    env.seed(0)
    env.reset()
    assert min(sum(mask) for mask in env.env_method("action_masks")) < 9


def test_staggered_episodes_end_one_after_the_other() -> None:
    env = PrefixRoutingVecEnv(4, **ARGUMENTS, stagger=True)
    ends: list[list[int]] = [[] for _ in range(4)]
    env.seed(0)
    first: Any = env.reset()
    # Environment 0 is at its start, where nothing is in flight, the others are not.
    in_flight = first["instances"].reshape(4, 8, -1)[:, :, 5].sum(1)
    assert (in_flight > 0).tolist() == [False, True, True, True]
    for k in range(1, 25):
        _, _, ended, infos = env.step(np.full(4, k % 8))
        for i in np.flatnonzero(ended).tolist():
            ends[i].append(k)
            assert infos[i]["episode"]["l"] == 12
    assert ends == [[12, 24], [9, 21], [6, 18], [3, 15]]
    env.seed(0)
    assert data_equivalence(env.reset(), first, exact=True)


def test_ppo_learns_predicts_and_logs_returns(tmp_path: Path) -> None:
    env = make()
    model = PPO(
        "MultiInputPolicy",
        env,
        n_steps=24,
        batch_size=48,
        n_epochs=1,
        seed=0,
        device="cpu",
        tensorboard_log=str(tmp_path),
    )
    before = [p.detach().clone() for p in model.policy.parameters()]
    model.learn(192, tb_log_name="run")
    assert any((a != b).any() for a, b in zip(before, model.policy.parameters(), strict=True))
    actions, _ = model.predict(env.reset(), deterministic=True)
    assert actions.shape == (4,)
    events = EventAccumulator(str(tmp_path / "run_1"))
    events.Reload()
    lengths = [event.value for event in events.Scalars("rollout/ep_len_mean")]
    rewards = [event.value for event in events.Scalars("rollout/ep_rew_mean")]
    assert lengths == [12.0, 12.0]
    assert all(0 < reward <= 12 for reward in rewards)


def test_training_twice_gives_the_same_network() -> None:
    def trained() -> list[float]:
        settings: dict[str, Any] = {"n_steps": 24, "batch_size": 48, "n_epochs": 1, "seed": 3}
        model = PPO("MultiInputPolicy", make(), device="cpu", **settings).learn(96)
        return [float(p.detach().double().sum()) for p in model.policy.parameters()]

    assert trained() == trained()


def test_dqn_stores_what_ends(tmp_path: Path) -> None:
    model = DQN("MultiInputPolicy", make(), buffer_size=400, learning_starts=20, device="cpu")
    model.learn(120)
    assert model.replay_buffer is not None
    assert model.replay_buffer.dones.sum() == 4 * (120 // 4 // 12)
    assert not model.replay_buffer.timeouts.any()


def test_maskable_ppo_asks_for_masks() -> None:
    contrib = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
    env = make()
    model = contrib.MaskablePPO(
        "MultiInputPolicy", env, n_steps=24, batch_size=48, n_epochs=1, seed=0, device="cpu"
    )
    model.learn(96)
    assert model.rollout_buffer.action_masks.size == 24 * 4 * 8
    assert (model.rollout_buffer.action_masks == 1).all()
    observation = env.reset()
    env.vector_env.episodes.simulation.arrays.knowledge.instances["available"][1, 2:] = 0
    masks = np.stack(env.env_method("action_masks"))
    assert masks.tolist() == [[1] * 8, [1, 1] + [0] * 6, [1] * 8, [1] * 8]
    chosen = [model.predict(observation, action_masks=masks)[0] for _ in range(20)]
    assert np.array(chosen).max(0)[1] < 2 < np.array(chosen).max()


@pytest.mark.parametrize("wrap", [VecMonitor, VecNormalize, lambda env: VecFrameStack(env, 2)])
def test_wrappers_of_stable_baselines_work_and_leave_empty_infos_empty(wrap: Any) -> None:
    inner = make()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The environment is already wrapped with a `Monitor`")
        env: VecEnv = wrap(inner)
    env.reset()
    ends = 0
    for _ in range(13):
        _, _, ended, infos = env.step(np.zeros(4, np.int64))
        ends += int(ended.sum())
        assert [i for i, info in enumerate(infos) if info] == np.flatnonzero(ended).tolist()
    assert ends == 4


def test_evaluate_policy_takes_returns_from_the_infos() -> None:
    env = make(2)
    model = PPO("MultiInputPolicy", env, n_steps=24, batch_size=48, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it warns of environments without Monitor
        returns, lengths = evaluate_policy(
            model, env, n_eval_episodes=4, return_episode_rewards=True
        )
    assert lengths == [12] * 4
    assert all(0 < value <= 12 for value in returns)  # type: ignore[union-attr]


def test_observations_are_new_in_every_step() -> None:
    env = make()
    first = env.reset()
    kept = copy.deepcopy(first)
    for _ in range(13):
        env.step(np.zeros(4, np.int64))
    assert data_equivalence(first, kept, exact=True)


def test_attributes_and_methods_of_the_environments() -> None:
    env = make(3)
    assert env.get_attr("render_mode") == [None] * 3
    assert len(env.get_attr("episodes", indices=[0, 2])) == 2
    assert env.has_attr("action_masks")
    assert not env.has_attr("altitude")
    assert len(env.env_method("action_masks", indices=1)) == 1
    assert env.env_is_wrapped(Monitor) == [True] * 3
    assert env.env_is_wrapped(VecMonitor, indices=[1]) == [False]  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="env_method: found 'fly', allowed: 'action_masks'"):
        env.env_method("fly")
    with pytest.raises(AttributeError, match="rate: cannot be set"):
        env.set_attr("rate", 3.0)
    env.close()
    env.close()


def test_a_bad_argument_gives_one_clear_error() -> None:
    with pytest.raises(ValueError, match="scenario: found 'chatt-8', allowed:"):
        PrefixRoutingVecEnv(2, scenario="chatt-8")
