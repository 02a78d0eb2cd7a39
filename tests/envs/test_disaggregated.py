"""DisaggregatedRouting-v0: pairs of instances, a table for each pool, the same simulation."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from prefixgym.baselines.router import make_router
from prefixgym.baselines.split.halves import Halves
from prefixgym.envs import DISAGGREGATED_ID
from prefixgym.envs.disaggregated import DisaggregatedRoutingEnv, DisaggregatedRoutingVectorEnv
from prefixgym.envs.observation import DECODE_COLUMNS, INSTANCE_FIELDS, PREFILL_COLUMNS
from prefixgym.envs.routing import PrefixRoutingEnv
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.vector import PrefixRoutingVectorEnv
from prefixgym.experiments.evaluate import play


def test_it_is_a_gymnasium_environment() -> None:
    env = gym.make(DISAGGREGATED_ID, num_requests=50)
    assert env.action_space == gym.spaces.MultiDiscrete([6, 2])
    check_env(env.unwrapped, skip_render_check=True)


def test_a_random_agent_is_paid_for_every_good_request() -> None:
    env = gym.make(DISAGGREGATED_ID, num_requests=200)
    _, info = env.reset(seed=3)
    env.action_space.seed(3)
    total, terminated = 0.0, False
    while not terminated:
        assert info["action_mask"].tolist() == [1] * 8
        _, reward, terminated, _, info = env.step(env.action_space.sample())
        total += float(reward)
    assert 0 < total <= 200


def test_each_table_holds_the_columns_of_its_pool() -> None:
    vector = DisaggregatedRoutingVectorEnv(3, num_requests=120)
    observation, _ = vector.reset(seed=1)
    rng = np.random.default_rng(0)
    for _ in range(60):
        observation, *_ = vector.step(
            np.stack([rng.integers(6, size=3), rng.integers(2, size=3)], 1)
        )
    names = [field.name for field in INSTANCE_FIELDS]
    s = vector.episodes.simulation
    prefill = observation["prefill"].reshape(3, 6, len(PREFILL_COLUMNS))
    decode = observation["decode"].reshape(3, 2, len(DECODE_COLUMNS))
    shown = s.view.instances
    requests = shown["requests"] / (shown["requests"] + 16)
    np.testing.assert_allclose(decode[..., DECODE_COLUMNS.index("requests")], requests[:, 6:], 1e-6)
    waiting = shown["prefill_requests"] / (shown["prefill_requests"] + 4)
    found = prefill[..., PREFILL_COLUMNS.index("prefill_requests")]
    np.testing.assert_allclose(found, waiting[:, :6], 1e-6)
    assert found.any()
    assert set(PREFILL_COLUMNS) | set(DECODE_COLUMNS) <= set(names)
    vector.close()


def test_a_batch_equals_its_members_alone() -> None:
    vector = gym.make_vec(DISAGGREGATED_ID, 2, num_requests=60)
    together, _ = vector.reset(seed=5)
    rng = np.random.default_rng(0)
    actions = [np.stack([rng.integers(6, size=2), rng.integers(2, size=2)], 1) for _ in range(60)]
    seen = [together]
    paid = []
    for pair in actions:
        together, rewards, *_ = vector.step(pair)
        seen.append(together)
        paid.append(rewards)
    for e in range(2):
        env = DisaggregatedRoutingEnv(num_requests=60)
        alone, _ = env.reset(seed=5 + e)
        for k, pair in enumerate(actions):
            for name, values in alone.items():
                np.testing.assert_array_equal(values, seen[k][name][e])
            alone, reward, terminated, _, _ = env.step(pair[e])
            assert reward == paid[k][e]
        assert terminated


def test_it_plays_what_the_routers_of_the_halves_play() -> None:
    scenario = load_scenario("split-8").with_num_requests(150)
    setup = scenario.build(scenario.rates[2])
    simulation = Simulation(**setup._asdict(), num_envs=1, record=True)
    pairs: list[Any] = []
    router = Halves(make_router("loadaware"), make_router("least_load"))
    # The first training seed that an environment of this seed draws.
    env = DisaggregatedRoutingEnv(scenario)
    env.reset(seed=11)
    seeds = env.episodes._train
    drawn = seeds[int(gym.utils.seeding.np_random(11)[0].integers(len(seeds)))]
    play(simulation, router, setup.cluster, [drawn], lambda view, chosen, _: pairs.append(chosen))
    total = 0.0
    for pair in pairs:
        _, reward, terminated, _, _ = env.step(pair[0] - np.array([0, 6]))
        total += float(reward)
    assert terminated
    assert total == simulation.outcomes(0)["good"].sum()


def test_what_is_not_allowed_gives_one_clear_error() -> None:
    env = DisaggregatedRoutingEnv(num_requests=10)
    env.reset(seed=0)
    for pair, message in [
        ([6, 0], "found 6, allowed: 0 to 5"),
        ([0, -1], "found -1, allowed: 0 to 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            env.step(np.array(pair))
    vector = DisaggregatedRoutingVectorEnv(2, num_requests=10)
    vector.reset(seed=0)
    with pytest.raises(ValueError, match=r"found shape \(2,\), expected \(2, 2\)"):
        vector.step(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="actions: found 0 to 2, allowed: 0 to 1"):
        vector.step(np.array([[0, 0], [0, 2]]))
    for make in (PrefixRoutingEnv, PrefixRoutingVectorEnv):
        with pytest.raises(ValueError, match=r"have roles: make prefixgym/DisaggregatedRouting-v0"):
            make(scenario="split-8")
    with pytest.raises(ValueError, match=r"have no roles: make prefixgym/PrefixRouting-v0"):
        DisaggregatedRoutingEnv("chat-8")
    with pytest.raises(ValueError, match=r"randomise\.instances: found a number"):
        DisaggregatedRoutingEnv(randomise={"instances": 4})
