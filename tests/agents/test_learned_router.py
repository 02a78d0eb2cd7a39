"""A learned router sees and does what its policy saw and would do in the environment."""

from typing import Any

import numpy as np
import pytest
import torch

from prefixgym.agents.instance_scorer import InstanceScorerPolicy
from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.vector import PrefixRoutingVectorEnv


def policy_for(env: PrefixRoutingVectorEnv) -> InstanceScorerPolicy:
    torch.manual_seed(0)
    observation_space: Any = env.single_observation_space
    action_space: Any = env.single_action_space
    policy = InstanceScorerPolicy(observation_space, action_space, lambda _: 1e-3)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter)
    return policy


@pytest.mark.parametrize("scenario", ["shared-prompts-8", "chat-16-mixed"])
def test_it_routes_as_the_policy_acts_in_the_environment(scenario: str) -> None:
    env = PrefixRoutingVectorEnv(3, scenario, rate=200.0, num_requests=60)
    policy = policy_for(env)
    router = LearnedRouter(policy.scorer)
    observation: Any = env.reset(seed=0)[0]
    router.reset(env.episodes.simulation.cluster, [0, 1, 2])
    generator = np.random.default_rng(0)
    chosen = []
    for _ in range(60):
        expected, _ = policy.predict(observation, deterministic=True)
        actions = router.route(env.episodes.simulation.view)
        assert actions.tolist() == expected.tolist()
        chosen.append(actions)
        observation = env.step(generator.integers(0, 8, 3))[0]
    assert len(np.unique(chosen)) > 1


def test_it_avoids_unavailable_instances() -> None:
    env = PrefixRoutingVectorEnv(2, num_requests=5)
    router = LearnedRouter(policy_for(env).scorer)
    simulation: Simulation = env.episodes.simulation
    env.reset(seed=0)
    router.reset(simulation.cluster, [0, 1])
    available = simulation.view.instances["available"]
    available[:] = 0
    available[0, 5] = 1
    available[1, [2, 3]] = 1
    actions = router.route(simulation.view)
    assert actions[0] == 5
    assert actions[1] in (2, 3)
    available[:] = 0  # then any must do
    assert router.route(simulation.view).shape == (2,)
