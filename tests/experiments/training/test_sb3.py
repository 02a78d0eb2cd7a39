"""What is kept of a policy chooses as the policy does."""

from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO

from prefixgym.agents.flat_scorer import FlatScorer
from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.sb3_vec_env import PrefixRoutingVecEnv
from prefixgym.experiments.training.sb3 import scorer_of


def test_a_flat_scorer_routes_as_the_plain_policy_that_it_was_taken_from() -> None:
    env = PrefixRoutingVecEnv(4, num_requests=40, rate=200.0)
    model = PPO("MultiInputPolicy", env, n_steps=16, seed=0, device="cpu")
    policy: Any = model.policy
    for parameter in policy.parameters():  # the first logits are nearly equal
        torch.nn.init.normal_(parameter)
    scorer = scorer_of(policy)
    assert isinstance(scorer, FlatScorer)
    assert (scorer.num_instances, scorer.hidden) == (8, 64)
    router = LearnedRouter(scorer)
    observation: Any = env.reset()
    simulation = env.vector_env.episodes.simulation
    router.reset(simulation.cluster, range(4))
    chosen = set()
    for i in range(30):
        expected = model.predict(observation, deterministic=True)[0].tolist()
        assert router.route(simulation.view).tolist() == expected
        chosen |= {*expected}
        observation = env.step(np.arange(i, i + 4) % 8)[0]
    assert len(chosen) > 1
    # It is a copy: what is learned later leaves what is kept as it is.
    before = [parameter.clone() for parameter in scorer.parameters()]
    for parameter in policy.parameters():
        torch.nn.init.zeros_(parameter)
    pairs = zip(scorer.parameters(), before, strict=True)
    assert all(parameter.equal(was) for parameter, was in pairs)
