"""The policies of Stable-Baselines3's actor-critics treat instances alike and learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, PPO

from prefixgym.agents.instance_scorer import InstanceScorerPolicy, MaskableInstanceScorerPolicy
from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.sb3_vec_env import PrefixRoutingVecEnv
from prefixgym.agents.scorer import COLUMNS
from prefixgym.envs.observation import INSTANCE_FIELDS, observation_space

FIELDS = len(INSTANCE_FIELDS)


@pytest.fixture
def policy() -> InstanceScorerPolicy:
    torch.manual_seed(0)
    env = PrefixRoutingVecEnv(1, num_requests=2)
    made = InstanceScorerPolicy(env.observation_space, env.action_space, lambda _: 1e-3)  # type: ignore[arg-type]
    for parameter in made.parameters():  # the first scores are near 0
        torch.nn.init.normal_(parameter)
    return made


def observations(num_instances: int) -> dict[str, torch.Tensor]:
    space = observation_space(num_instances)
    space.seed(1)
    samples: list[Any] = [space.sample() for _ in range(5)]
    return {key: torch.from_numpy(np.stack([s[key] for s in samples])) for key in samples[0]}


def scores(policy: InstanceScorerPolicy, observation: dict[str, torch.Tensor]) -> torch.Tensor:
    distribution: Any = policy.get_distribution(observation).distribution
    logits: torch.Tensor = distribution.logits
    return logits


def test_permuted_instances_have_permuted_scores_and_the_same_value(
    policy: InstanceScorerPolicy,
) -> None:
    observation = observations(8)
    order = torch.tensor([3, 0, 7, 1, 2, 6, 5, 4])
    table = observation["instances"].reshape(5, 8, FIELDS)
    permuted = observation | {"instances": table[:, order].reshape(5, -1)}
    found, expected = scores(policy, permuted), scores(policy, observation)[:, order]
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(expected, scores(policy, observation))
    values = policy.predict_values(observation)
    torch.testing.assert_close(policy.predict_values(permuted), values)
    assert len(set(values.flatten().tolist())) == 5


def test_one_network_serves_any_number_of_instances(policy: InstanceScorerPolicy) -> None:
    for num_instances in (1, 3, 16):
        assert scores(policy, observations(num_instances)).shape == (5, num_instances)


PRIOR = [-6.0 if column == "ttft" else 0.0 for column in COLUMNS]


@pytest.mark.parametrize(
    ("algorithm", "policy_class"),
    [
        (PPO, InstanceScorerPolicy),
        (A2C, InstanceScorerPolicy),
        (MaskablePPO, MaskableInstanceScorerPolicy),
    ],
)
@pytest.mark.parametrize("choices", [{}, {"prior": PRIOR, "attention": True, "hidden": 8}])
def test_all_parameters_learn_and_survive_a_file(
    algorithm: Any, policy_class: Any, choices: dict[str, Any], tmp_path: Path
) -> None:
    env = PrefixRoutingVecEnv(4, num_requests=12, rate=200.0)
    model = algorithm(policy_class, env, n_steps=16, seed=0, device="cpu", policy_kwargs=choices)
    before = {name: p.detach().clone() for name, p in model.policy.named_parameters()}
    model.learn(192)
    frozen = [name for name, p in model.policy.named_parameters() if p.equal(before[name])]
    # A common shift of all scores, or of all of a query's weights, changes nothing.
    assert set(frozen) <= {n for n in before if n.endswith(("head.bias", "attention.1.bias"))}
    model.save(tmp_path / "model.zip")
    model.policy.save(str(tmp_path / "policy.pt"))
    observation: Any = env.reset()
    for _ in range(4):  # until the instances differ: equal ones may differ by rounding
        observation = env.step(np.arange(4))[0]
    expected = model.predict(observation, deterministic=True)[0].tolist()
    again = algorithm.load(tmp_path / "model.zip", device="cpu")
    assert again.predict(observation, deterministic=True)[0].tolist() == expected
    policy = policy_class.load(str(tmp_path / "policy.pt"), device="cpu")
    assert policy.predict(observation, deterministic=True)[0].tolist() == expected
    simulation = env.vector_env.episodes.simulation
    router = LearnedRouter(policy.scorer)
    router.reset(simulation.cluster, range(4))
    assert router.route(simulation.view).tolist() == expected


def test_an_untrained_policy_with_a_prior_decides_as_it() -> None:
    env = PrefixRoutingVecEnv(4, num_requests=12, rate=200.0)
    choices = {"prior": PRIOR}
    model = PPO(InstanceScorerPolicy, env, n_steps=16, device="cpu", policy_kwargs=choices)
    observation: Any = env.reset()
    for _ in range(8):
        table = observation["instances"].reshape(4, 8, FIELDS)
        expected = table[:, :, COLUMNS.index("ttft")].argmin(1)
        chosen = model.predict(observation, deterministic=True)[0]
        assert chosen.tolist() == expected.tolist()
        observation = env.step(chosen)[0]


def test_an_unavailable_instance_is_never_chosen(policy: InstanceScorerPolicy) -> None:
    observation = observations(8)
    table = observation["instances"].reshape(5, 8, FIELDS).clone()
    table[:, [2, 5]] = 0.0
    table[:, [0, 1, 3, 4, 6, 7], 0] = 1.0
    chances = scores(policy, observation | {"instances": table.reshape(5, -1)}).softmax(1)
    assert (chances[:, [2, 5]] == 0).all()
    assert (chances[:, [0, 1, 3, 4, 6, 7]] > 0).all()


def test_it_learns_where_instances_come_and_go_and_requests_may_be_rejected() -> None:
    torch.manual_seed(0)
    env = PrefixRoutingVecEnv(
        2, num_requests=20, allow_reject=True, randomise={"instances": 2}, reward="goodput"
    )
    policy: Any = InstanceScorerPolicy
    model = PPO(policy, env, n_steps=16, batch_size=32, n_epochs=1, device="cpu", seed=0)
    model.learn(64)
    observation: Any = env.reset()
    chances = scores(model.policy, model.policy.obs_to_tensor(observation)[0])  # type: ignore[arg-type]
    assert chances.shape == (2, 9)
    masks = np.asarray(env.env_method("action_masks"))
    assert (chances.softmax(1).detach().numpy()[masks == 0] == 0).all()
    assert (chances.softmax(1)[:, 8] > 0.01).all()
