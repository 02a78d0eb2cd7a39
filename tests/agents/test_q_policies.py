"""Action values from the shared scorer: equivariant, learned by DQN and QRDQN, good to route by."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sb3_contrib import QRDQN
from stable_baselines3 import DQN

from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.q_policies import InstanceQPolicy, InstanceQuantilePolicy, InstanceValues
from prefixgym.agents.sb3_vec_env import PrefixRoutingVecEnv
from prefixgym.agents.scorer import COLUMNS, NEVER
from prefixgym.envs.observation import REQUEST_FIELDS

PRIOR = [-6.0 if column == "ttft" else 0.0 for column in COLUMNS]
ALGORITHMS = [
    (DQN, InstanceQPolicy, {"prior": PRIOR}),
    (DQN, InstanceQPolicy, {"hidden": 8, "attention": True}),
    (QRDQN, InstanceQuantilePolicy, {"n_quantiles": 5}),
]


@pytest.mark.parametrize("quantiles", [1, 5])
@pytest.mark.parametrize("prior", [None, PRIOR])
def test_values_are_equivariant_and_do_not_see_unavailable_instances(
    quantiles: int, prior: list[float] | None
) -> None:
    torch.manual_seed(0)
    values = InstanceValues(quantiles, 16, prior).double()
    for parameter in values.parameters():
        torch.nn.init.normal_(parameter)
    request = torch.rand(4, len(REQUEST_FIELDS), dtype=torch.float64)
    instances = torch.rand(4, 7, len(COLUMNS), dtype=torch.float64)
    instances[:, :, 0] = (torch.arange(7) < 5).double()
    found = values.quantiles(request, instances)
    assert found.shape == (4, quantiles, 7)
    assert (found[:, :, 5:] == NEVER).all()
    assert found[:, :, :5].std() > 0.1
    order = torch.randperm(7)
    torch.testing.assert_close(values.quantiles(request, instances[:, order]), found[:, :, order])
    alone = values.quantiles(request, instances[:, :5])
    torch.testing.assert_close(alone, found[:, :, :5])
    torch.testing.assert_close(values(request, instances[:, :5]), found.mean(1)[:, :5])
    # A state from which no instance can be chosen still has a value to look ahead to.
    assert values.quantiles(request, 0 * instances).abs().max() < 1e4


@pytest.mark.parametrize(("algorithm", "policy_class", "choices"), ALGORITHMS)
def test_it_learns_survives_a_file_and_routes(
    algorithm: Any, policy_class: Any, choices: dict[str, Any], tmp_path: Path
) -> None:
    env = PrefixRoutingVecEnv(4, num_requests=12, rate=200.0)
    settings = {"learning_starts": 40, "train_freq": 4, "target_update_interval": 32}
    model = algorithm(
        policy_class,
        env,
        policy_kwargs=choices,
        buffer_size=400,
        gradient_steps=4,
        device="cpu",
        seed=0,
        **settings,
    )
    before = {name: p.detach().clone() for name, p in model.policy.named_parameters()}
    model.learn(160)
    frozen = [name for name, p in model.policy.named_parameters() if p.equal(before[name])]
    # Of the advantages only differences count: a bias that all instances share cannot be learned.
    common = ("scorer.head.bias", "attention.1.bias", "spread.bias")
    assert {n for n in frozen if not n.endswith(common)} == set()
    model.save(tmp_path / "model.zip")
    observation: Any = env.reset()
    for _ in range(4):  # until the instances differ: equal ones may differ by rounding
        observation = env.step(np.arange(4))[0]
    expected = model.predict(observation, deterministic=True)[0].tolist()
    again = algorithm.load(tmp_path / "model.zip", device="cpu")
    simulation = env.vector_env.episodes.simulation
    router = LearnedRouter(again.policy.scorer)
    router.reset(simulation.cluster, range(4))
    assert router.route(simulation.view).tolist() == expected


def test_rejection_is_refused() -> None:
    env = PrefixRoutingVecEnv(2, num_requests=12, allow_reject=True)
    with pytest.raises(ValueError, match="allow_reject: found True"):
        DQN(InstanceQPolicy, env, buffer_size=10)
