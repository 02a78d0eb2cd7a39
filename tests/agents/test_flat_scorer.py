"""The flat scorer is a plain network: one number of instances, whose order it is not told."""

import pytest
import torch

from prefixgym.agents.flat_scorer import FlatScorer
from prefixgym.agents.scorer import COLUMNS, NEVER
from prefixgym.envs.observation import REQUEST_FIELDS


def test_an_unavailable_instance_is_scored_never() -> None:
    torch.manual_seed(0)
    request, instances = torch.rand(5, len(REQUEST_FIELDS)), torch.rand(5, 8, len(COLUMNS))
    instances[:, :, COLUMNS.index("available")] = 1.0
    network = FlatScorer(8)
    scores = network(request, instances)
    assert scores.shape == (5, 8)
    assert (scores > NEVER).all()
    instances[1, 3, COLUMNS.index("available")] = 0.0
    left_out = torch.zeros(5, 8, dtype=torch.bool)
    left_out[1, 3] = True
    assert (network(request, instances) == NEVER).equal(left_out)


def test_every_column_of_every_instance_and_of_the_request_counts() -> None:
    torch.manual_seed(0)
    request = torch.rand(1, len(REQUEST_FIELDS), requires_grad=True)
    instances = torch.rand(1, 4, len(COLUMNS), requires_grad=True)
    first = FlatScorer(4)(request, instances)[0, 0]
    for gradient in torch.autograd.grad(first, (request, instances)):
        assert (gradient != 0).all()


def test_another_number_of_instances_is_refused() -> None:
    with pytest.raises(ValueError, match="instances: found 4, this flat network is for 8 only"):
        FlatScorer(8)(torch.rand(2, len(REQUEST_FIELDS)), torch.rand(2, 4, len(COLUMNS)))
    with pytest.raises(ValueError, match="num_instances, hidden: found 0, 64, must be at least 1"):
        FlatScorer(0)
