"""The scorer treats instances alike, whatever their number, and never picks an unavailable one."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prefixgym.agents.scorer import COLUMNS, NEVER, ClusterEncoder, InstanceScorer
from prefixgym.envs.observation import REQUEST_FIELDS

PRIOR = [0.0] * len(COLUMNS)
PRIOR[COLUMNS.index("ttft")] = -4.0
PRIOR[COLUMNS.index("hit")] = 1.0


def scorer(**choices: Any) -> InstanceScorer:
    made = InstanceScorer(16, **choices)
    for parameter in made.parameters():  # the first scores are near 0, or the prior's
        torch.nn.init.normal_(parameter)
    return made.double()


def cluster(num_instances: int, num_available: int) -> tuple[Tensor, Tensor]:
    """Five requests [5, R] and clusters [5, N, F], whose first instances are available."""
    request = torch.rand(5, len(REQUEST_FIELDS), dtype=torch.float64)
    instances = torch.rand(5, num_instances, len(COLUMNS), dtype=torch.float64)
    instances[:, :, 0] = (torch.arange(num_instances) < num_available).double()
    return request, instances


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    num_available=st.integers(1, 12),
    padding=st.integers(0, 4),
    attention=st.booleans(),
    prior=st.sampled_from([None, PRIOR]),
)
def test_permuting_instances_permutes_scores_and_keeps_values(
    seed: int, num_available: int, padding: int, attention: bool, prior: list[float] | None
) -> None:
    torch.manual_seed(seed)
    network, critic = scorer(prior=prior, attention=attention), ClusterEncoder(16).double()
    request, instances = cluster(num_available + padding, num_available)
    order = torch.randperm(num_available + padding)
    scores = network(request, instances)
    torch.testing.assert_close(network(request, instances[:, order]), scores[:, order])
    torch.testing.assert_close(critic(request, instances[:, order]), critic(request, instances))
    # Unavailable rows never win, and the others' scores are as if they were not there.
    assert (scores[:, num_available:] == NEVER).all()
    assert (scores.argmax(1) < num_available).all()
    alone = instances[:, :num_available]
    torch.testing.assert_close(network(request, alone), scores[:, :num_available])
    torch.testing.assert_close(critic(request, alone), critic(request, instances))
    noise = torch.rand_like(instances) * (1 - instances[:, :, :1])
    noise[:, :, 0] = 0.0
    torch.testing.assert_close(network(request, instances + noise), scores)


@pytest.mark.parametrize("attention", [False, True])
def test_scores_depend_on_the_request_and_on_the_other_instances(attention: bool) -> None:
    torch.manual_seed(0)
    network = scorer(attention=attention)
    request, instances = cluster(6, 6)
    scores = network(request, instances)

    def changes(other: Tensor) -> Tensor:
        """More than a common shift, which no softmax and no argmax sees, [5]."""
        difference: Tensor = other - scores
        return difference[:, :-1].std(1)

    assert changes(network(1 - request, instances)).min() > 1e-3
    instances[:, -1, 1:] = 1 - instances[:, -1, 1:]
    assert changes(network(request, instances)).min() > 1e-3


@pytest.mark.parametrize("attention", [False, True])
def test_untrained_with_a_prior_it_is_the_linear_score(attention: bool) -> None:
    network = InstanceScorer(prior=PRIOR, attention=attention).double()
    request, instances = cluster(8, 8)
    expected = instances @ torch.tensor(PRIOR, dtype=torch.float64)
    torch.testing.assert_close(network(request, instances), expected)
    assert "prior" not in dict(network.named_parameters())
    network(request, instances).softmax(1)[:, 0].sum().backward()
    assert network.head.weight.grad is not None
    assert network.head.weight.grad.abs().max() > 0


def test_where_no_instance_is_available_all_scores_are_equal_and_finite() -> None:
    request, instances = cluster(4, 0)
    for attention in (False, True):
        scores = scorer(prior=PRIOR, attention=attention)(request, instances)
        assert (scores == NEVER).all()
    assert ClusterEncoder(16).double()(request, instances).isfinite().all()


def test_a_population_of_networks_scores_as_each_of_them() -> None:
    networks = [scorer(prior=PRIOR, attention=True) for _ in range(3)]
    request, instances = cluster(5, 4)
    stacked, _ = torch.func.stack_module_state(networks)
    buffers = dict(networks[0].named_buffers())

    def score(parameters: dict[str, Tensor]) -> Any:
        return torch.func.functional_call(
            networks[0], {**parameters, **buffers}, (request, instances)
        )

    together = torch.vmap(score)(stacked)
    for network, scores in zip(networks, together, strict=True):
        torch.testing.assert_close(scores, network(request, instances))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"hidden": 0}, "hidden: found 0, must be at least 1"),
        ({"prior": [1.0, 2.0]}, "prior: found 2 weights, expected 20: available, hit"),
    ],
)
def test_wrong_arguments_are_named(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InstanceScorer(**choices)
