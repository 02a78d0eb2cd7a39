"""A scorer learns what its labels show."""

import numpy as np
import pytest
import torch

from prefixgym.agents.imitation import Labels, agreement, imitate, joined
from prefixgym.agents.scorer import COLUMNS, InstanceScorer
from prefixgym.envs.observation import REQUEST_FIELDS


def labels_of(decisions: int, seed: int) -> Labels:
    """The rule: most `hit` for short prompts, least `backlog` for long ones."""
    rng = np.random.default_rng(seed)
    requests = rng.random((decisions, len(REQUEST_FIELDS)), np.float32)
    instances = rng.random((decisions, 4, len(COLUMNS)), np.float32)
    instances[:, :, COLUMNS.index("available")] = 1
    hit, backlog = (instances[:, :, COLUMNS.index(name)] for name in ("hit", "backlog"))
    actions = np.where(requests[:, 0] < 0.5, hit.argmax(1), backlog.argmin(1))
    return Labels(requests, instances, actions)


def test_it_learns_a_rule_and_keeps_it_on_decisions_that_it_never_saw() -> None:
    torch.manual_seed(0)
    scorer = InstanceScorer(16)
    training, unseen = labels_of(4000, 0), labels_of(1000, 1)
    assert agreement(scorer, unseen) < 0.5
    losses = imitate(scorer, training, epochs=12, learning_rate=1e-2)
    assert losses[-1] < losses[0] / 2
    assert agreement(scorer, unseen) > 0.85


def test_the_same_seed_gives_the_same_network() -> None:
    def learned(seed: int) -> list[float]:
        torch.manual_seed(0)
        scorer = InstanceScorer(4)
        imitate(scorer, labels_of(300, 0), epochs=2, seed=seed)
        return torch.cat([p.detach().flatten() for p in scorer.parameters()]).tolist()

    assert learned(0) == learned(0)
    assert learned(0) != learned(1)


def test_labels_join_in_order() -> None:
    one, other = labels_of(3, 0), labels_of(2, 1)
    both = joined([one, other])
    assert len(both) == 5
    assert both.actions.tolist() == [*one.actions, *other.actions]
    assert both.requests[3:] == pytest.approx(other.requests)
