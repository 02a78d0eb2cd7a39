"""Rounds of DAgger: round 0 clones the teacher, each later one labels what the learner gets into.

Labels cost far more than fitting, above all those of `lookahead`. They are kept in a file a round,
with the seconds that they took; a network is fitted anew in every round, to all labels so far. So a
run that was killed reads its labels, fits the same networks again and goes on as it would have gone
on.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from prefixgym.agents.imitation import Labels, agreement, fitted, joined
from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.scorer import InstanceScorer
from prefixgym.baselines.router import Router
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.imitation.labelling import label
from prefixgym.experiments.training.judge import Judge, Verdict
from prefixgym.experiments.whole_files import replaced

_COLUMNS = tuple(field.name for field in fields(Labels))


@dataclass(frozen=True)
class Imitation:
    """Everything that decides what is learned, the teacher apart.

    Attributes:
        scenario: what training episodes are of.
        rate: requests/s.
        prior: weights of the linear score that the network corrects, [F].
        rounds: rounds of DAgger after the cloning.
        episodes: labelled in each round.
        hidden: width of the network.
        epochs: passes over all labels in each round.
        seed: of the networks; the training episodes are the first ones.
    """

    scenario: Scenario
    rate: float
    prior: tuple[float, ...]
    rounds: int = 2
    episodes: int = 4
    hidden: int = 32
    epochs: int = 10
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
        verdict: on the validation episodes.
        seconds: of learning until then, earlier rounds included.
    """

    number: int
    scorer: InstanceScorer
    labels: int
    loss: float
    agreement: float
    verdict: Verdict
    seconds: float

    def figures(self) -> dict[str, float]:
        """All numbers but the round's own, by the names that TensorBoard shows."""
        return {
            "charts/decisions": float(self.labels),
            "charts/seconds": self.seconds,
            "imitation/loss": self.loss,
            "imitation/agreement": self.agreement,
        } | self.verdict.notes()


def learn(
    imitation: Imitation,
    teacher: Router,
    judge: Judge,
    folder: Path,
    on_round: Callable[[Round], None],
) -> list[Round]:
    """All rounds.

    Args:
        imitation: what to learn.
        teacher: whose decisions.
        judge: of the networks.
        folder: of the labels; must exist, and be of the same imitation and teacher.
        on_round: told of every round.
    """
    found: list[Round] = []
    parts: list[Labels] = []
    seconds = 0.0
    for number in range(imitation.rounds + 1):
        actor = LearnedRouter(found[-1].scorer) if found else None
        labels, took = _labels(imitation, teacher, actor, number, folder)
        parts.append(labels)
        found.append(_fitted(imitation, joined(parts), judge, number, seconds + took))
        seconds = found[-1].seconds
        on_round(found[-1])
    return found


def _labels(
    imitation: Imitation, teacher: Router, actor: Router | None, number: int, folder: Path
) -> tuple[Labels, float]:
    """Of one round, and the seconds that they took."""
    path = folder / f"labels-{number}.npz"
    if path.exists():
        with np.load(path) as kept:
            columns = dict(kept)
        return Labels(**{name: columns[name] for name in _COLUMNS}), float(columns["seconds"])
    began = time.monotonic()
    first = number * imitation.episodes
    seeds = imitation.scenario.seeds.of("train")[first : first + imitation.episodes]
    made = label(teacher, actor, imitation.scenario, imitation.rate, seeds)
    took = time.monotonic() - began
    with replaced(path) as partial, partial.open("wb") as file:
        arrays: dict[str, Any] = vars(made) | {"seconds": took}
        np.savez_compressed(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    return made, took


def _fitted(
    imitation: Imitation, labels: Labels, judge: Judge, number: int, seconds: float
) -> Round:
    """A network that was fitted to these labels, `seconds` after the beginning."""
    began = time.monotonic()
    scorer, losses = fitted(
        labels,
        imitation.prior,
        hidden=imitation.hidden,
        epochs=imitation.epochs,
        seed=imitation.seed,
    )
    agrees = agreement(scorer, labels)
    verdict = judge.verdict(LearnedRouter(scorer))
    seconds += time.monotonic() - began
    return Round(number, scorer, len(labels), losses[-1], agrees, verdict, seconds)
