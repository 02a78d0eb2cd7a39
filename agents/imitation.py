"""Learning to decide as a teacher does: cross-entropy of an instance scorer on labelled decisions.

Shapes: D decisions, N instances, R and F columns as in `prefixgym.envs.observation`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from prefixgym.agents.scorer import InstanceScorer


@dataclass(frozen=True)
class Labels:
    """Decisions as they were observed, and where the teacher sends them.

    Attributes:
        requests: float32 [D, R].
        instances: float32 [D, N, F].
        actions: int64 [D].
    """

    requests: NDArray[np.float32]
    instances: NDArray[np.float32]
    actions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.actions)


def joined(parts: Sequence[Labels]) -> Labels:
    """All decisions; where there are fewer instances than elsewhere, unavailable ones follow."""
    most = max(part.instances.shape[1] for part in parts)
    return Labels(
        np.concatenate([part.requests for part in parts]),
        np.concatenate([_widened(part.instances, most) for part in parts]),
        np.concatenate([part.actions for part in parts]),
    )


def _widened(instances: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """With rows of zeros, which are unavailable instances, up to `count`."""
    return np.pad(instances, ((0, 0), (0, count - instances.shape[1]), (0, 0)))


def imitate(
    scorer: InstanceScorer,
    labels: Labels,
    *,
    epochs: int = 10,
    batch: int = 256,
    learning_rate: float = 2e-3,
    seed: int = 0,
) -> list[float]:
    """Fit the scorer by Adam, its learning rate falling to 0; returns each epoch's mean loss.

    Args:
        scorer: is changed.
        labels: where an unavailable instance is the action, there was no other.
        epochs: passes over all labels.
        batch: decisions of a step.
        learning_rate: of the first step.
        seed: of the order of the decisions.
    """
    requests, instances, actions = (
        torch.from_numpy(part) for part in (labels.requests, labels.instances, labels.actions)
    )
    steps = epochs * -(-len(labels) // batch)
    optimizer = torch.optim.Adam(scorer.parameters(), lr=learning_rate)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    order = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(epochs):
        total = 0.0
        for chosen in torch.split(torch.randperm(len(labels), generator=order), batch):
            scores = scorer(requests[chosen], instances[chosen])
            loss = functional.cross_entropy(scores, actions[chosen])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            falling.step()
            total += float(loss.detach()) * len(chosen)
        losses.append(total / len(labels))
    return losses


def fitted(
    labels: Labels,
    prior: Sequence[float],
    *,
    hidden: int,
    epochs: int,
    seed: int,
    batch: int = 256,
) -> tuple[InstanceScorer, list[float]]:
    """A new scorer, frozen, that `imitate` was applied to, and each epoch's mean loss.

    Args:
        labels: what to fit it to.
        prior: weights of the linear score that it corrects, [F].
        hidden: its width.
        epochs, seed, batch: as for `imitate`; the seed is also the scorer's.
    """
    torch.manual_seed(seed)
    scorer = InstanceScorer(hidden, prior=prior)
    losses = imitate(scorer, labels, epochs=epochs, batch=batch, seed=seed)
    scorer.requires_grad_(False)
    return scorer, losses


def agreement(scorer: InstanceScorer, labels: Labels) -> float:
    """Share of the decisions that the scorer takes as the teacher does."""
    with torch.no_grad():  # copies are aligned, so that the last bits are always the same
        scores = scorer(torch.tensor(labels.requests), torch.tensor(labels.instances))
    return float((scores.argmax(1).numpy() == labels.actions).mean())
