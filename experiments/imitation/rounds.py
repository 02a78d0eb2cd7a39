"""Rounds of DAgger: round 0 clones the teacher, each later one labels what the learner gets into.

Labels cost far more than fitting, above all those of `lookahead`. They are kept in a file a round;
a network is fitted anew in every round, to all labels so far. So a run that was killed reads its
labels, fits the same networks again and goes on as it would have gone on.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prefixgym.agents.imitation import Labels, agreement, imitate, joined
from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.scorer import InstanceScorer
from prefixgym.baselines.router import Router
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evaluate import played
from prefixgym.experiments.imitation.labelling import label
from prefixgym.experiments.whole_files import replaced


@dataclass(frozen=True)
class Imitation:
    """Everything that decides what is learned, the teacher apart.

    Attributes:
        scenario: what training episodes are of.
        validation: what validation episodes are of.
        rate: requests/s.
        prior: weights of the linear score that the network corrects, [F].
        rounds: rounds of DAgger after the cloning.
        episodes: labelled in each round.
        hidden: width of the network.
        epochs: passes over all labels in each round.
        validation_episodes: how many.
        seed: of the networks; the training episodes are the first ones.
    """

    scenario: Scenario
    validation: Scenario
    rate: float
    prior: tuple[float, ...]
    rounds: int = 2
    episodes: int = 4
    hidden: int = 32
    epochs: int = 10
    validation_episodes: int = 4
    seed: int = 0


@dataclass(frozen=True)
class Round:
    """What came of one round.

    Attributes:
        number: 0 is the cloning.
        scorer: the network.
        labels: decisions that it was fitted to.
        loss: mean cross-entropy over the last epoch.
        agreement: share of these decisions that it takes as the teacher does.
        attainment, ttft_p99: means over the validation episodes; s.
    """

    number: int
    scorer: InstanceScorer
    labels: int
    loss: float
    agreement: float
    attainment: float
    ttft_p99: float

    def figures(self) -> dict[str, float]:
        """All numbers but the round's own, by the names that TensorBoard shows."""
        return {
            "imitation/labels": float(self.labels),
            "imitation/loss": self.loss,
            "imitation/agreement": self.agreement,
            "validation/attainment": self.attainment,
            "validation/ttft_p99": self.ttft_p99,
        }


def learn(
    imitation: Imitation, teacher: Router, folder: Path, on_round: Callable[[Round], None]
) -> list[Round]:
    """All rounds.

    Args:
        imitation: what to learn.
        teacher: whose decisions.
        folder: of the labels; must exist, and be of the same imitation and teacher.
        on_round: told of every round.
    """
    found: list[Round] = []
    parts: list[Labels] = []
    for number in range(imitation.rounds + 1):
        actor = LearnedRouter(found[-1].scorer) if found else None
        parts.append(_labels(imitation, teacher, actor, number, folder))
        found.append(_fitted(imitation, joined(parts), number))
        on_round(found[-1])
    return found


def _labels(
    imitation: Imitation, teacher: Router, actor: Router | None, number: int, folder: Path
) -> Labels:
    path = folder / f"labels-{number}.npz"
    if path.exists():
        with np.load(path) as kept:
            return Labels(**kept)
    first = number * imitation.episodes
    seeds = imitation.scenario.seeds.of("train")[first : first + imitation.episodes]
    made = label(teacher, actor, imitation.scenario, imitation.rate, seeds)
    with replaced(path) as partial, partial.open("wb") as file:
        columns: dict[str, Any] = vars(made)
        np.savez_compressed(file, **columns)
        file.flush()
        os.fsync(file.fileno())
    return made


def _fitted(imitation: Imitation, labels: Labels, number: int) -> Round:
    torch.manual_seed(imitation.seed)
    scorer = InstanceScorer(imitation.hidden, prior=imitation.prior)
    losses = imitate(scorer, labels, epochs=imitation.epochs, seed=imitation.seed)
    scorer.requires_grad_(False)
    seeds = imitation.validation.seeds.of("validation")[: imitation.validation_episodes]
    router = LearnedRouter(scorer)
    _, episodes = played(router, imitation.validation, imitation.rate, seeds)
    return Round(
        number,
        scorer,
        len(labels),
        losses[-1],
        agreement(scorer, labels),
        float(np.mean([episode.attainment for episode in episodes])),
        float(np.mean([episode.ttft_p99 for episode in episodes])),
    )
