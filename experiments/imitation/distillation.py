"""Distillation: one network that decides in every scenario as the specialist there does.

Policy distillation (Rusu et al., arXiv 1511.06295) by rounds of DAgger: first the specialists play
and are cloned, then the network plays and they say what they would have done. Specialists cost
microseconds, so labels are made again rather than kept.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prefixgym.agents.imitation import Labels, agreement, fitted, joined
from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.scorer import InstanceScorer
from prefixgym.baselines.router import Router
from prefixgym.experiments.imitation.labelling import label
from prefixgym.experiments.training.judge import Judge, Verdict


@dataclass(frozen=True)
class Lesson:
    """A specialist and what it is one for.

    Attributes:
        name: SCENARIO@RATE.
        teacher: the specialist.
        judge: plays its scenario at its load.
    """

    name: str
    teacher: Router
    judge: Judge


@dataclass(frozen=True)
class Distillation:
    """How to learn.

    Attributes:
        prior: weights of the linear score that the network corrects, [F].
        rounds: of DAgger after the cloning.
        episodes: labelled in each round, of each lesson.
        hidden: width of the network.
        epochs: passes over all labels in each round.
        seed: of the network and of the order of labels; training episodes are the first ones.
    """

    prior: tuple[float, ...]
    rounds: int = 2
    episodes: int = 2
    hidden: int = 32
    epochs: int = 6
    seed: int = 0


@dataclass(frozen=True)
class Graduate:
    """The network of one round.

    Attributes:
        number: of the round; 0 is the cloning.
        scorer: the network.
        labels: decisions that it was fitted to.
        agreement: share of these that it takes as the specialist does.
        verdicts: on validation episodes, one for each lesson.
        seconds: of learning until then.
    """

    number: int
    scorer: InstanceScorer
    labels: int
    agreement: float
    verdicts: tuple[Verdict, ...]
    seconds: float

    def preference(self, lessons: Sequence[Lesson]) -> tuple[int, float]:
        """What is preferred is higher: lessons within their limits on the tail, then attainment."""
        pairs = list(zip(lessons, self.verdicts, strict=True))
        within = sum(lesson.judge.allows(verdict) for lesson, verdict in pairs)
        return within, sum(verdict.attainment for verdict in self.verdicts) / len(pairs)


def distil(
    asked: Distillation, lessons: Sequence[Lesson], on_round: Callable[[Graduate], None]
) -> list[Graduate]:
    """All rounds.

    Args:
        asked: how.
        lessons: from whom.
        on_round: told of every round.
    """
    began, parts = time.monotonic(), list[Labels]()
    found: list[Graduate] = []
    for number in range(asked.rounds + 1):
        actor = LearnedRouter(found[-1].scorer) if found else None
        for lesson in lessons:
            scenario, first = lesson.judge.scenario, number * asked.episodes
            seeds = scenario.seeds.of("train")[first : first + asked.episodes]
            parts.append(label(lesson.teacher, actor, scenario, lesson.judge.rate, seeds))
        labels = joined(parts)
        scorer, _ = fitted(
            labels,
            asked.prior,
            hidden=asked.hidden,
            epochs=asked.epochs,
            seed=asked.seed,
            batch=512,
        )
        seconds = time.monotonic() - began
        verdicts = tuple(lesson.judge.verdict(LearnedRouter(scorer)) for lesson in lessons)
        agrees = agreement(scorer, labels)
        found.append(Graduate(number, scorer, len(labels), agrees, verdicts, seconds))
        on_round(found[-1])
    return found
