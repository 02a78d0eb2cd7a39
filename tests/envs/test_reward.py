"""Rewards: what they add up to."""

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from prefixgym.envs.reward import REWARDS, make_reward
from prefixgym.envs.routing import PrefixRoutingEnv
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.simulation import Simulation

REQUESTS = 40
RATE = 60.0
SCENARIO = load_scenario("shared-prompts-8").with_num_requests(REQUESTS)
ENV = PrefixRoutingEnv(SCENARIO, rate=RATE)


def outcomes_of(seed: int, actions: list[int]) -> NDArray[np.void]:
    """What becomes of the requests of the episode that the environment plays for this seed."""
    train = SCENARIO.seeds.of("train")
    chosen = train[int(gym.utils.seeding.np_random(seed)[0].integers(len(train)))]
    simulation = Simulation(*SCENARIO.build(RATE), record=True)
    simulation.reset([chosen])
    for action in actions:
        simulation.step(np.array([action]))
    return simulation.outcomes(0)


def rewards_of(seed: int, actions: list[int]) -> list[float]:
    ENV.reset(seed=seed)
    return [ENV.step(np.int64(action))[1] for action in actions]


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**31),
    actions=st.lists(st.integers(0, 7), min_size=REQUESTS, max_size=REQUESTS),
)
def test_goodput_adds_up_to_the_good_requests(seed: int, actions: list[int]) -> None:
    rewards = rewards_of(seed, actions)
    outcomes = outcomes_of(seed, actions)
    assert len(outcomes) == REQUESTS
    met_ttft = outcomes["ttft"] <= SCENARIO.slos[0].ttft  # False where a request was rejected
    met = met_ttft & (outcomes["tpot"] <= SCENARIO.slos[0].tpot)
    assert sum(rewards) == outcomes["good"].sum() == met.sum()
    assert min(rewards) >= 0


def test_goodput_depends_on_the_decisions() -> None:
    spread = sum(rewards_of(7, [i % 8 for i in range(REQUESTS)]))
    heaped = sum(rewards_of(7, [0] * REQUESTS))
    assert 0 < heaped < spread


def test_goodput_is_paid_when_requests_end() -> None:
    """The first decisions earn nothing yet; what is in flight at the end is paid with the last."""
    rewards = rewards_of(7, [i % 8 for i in range(REQUESTS)])
    assert rewards[0] == 0.0
    assert rewards[-1] > 1.0


def test_an_unknown_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="reward: found 'good', allowed: goodput"):
        make_reward("good")
    assert list(REWARDS) == ["goodput"]
