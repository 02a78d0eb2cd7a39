"""CMA-ES over a population's parameters, one generation at a time.

Every generation has training episodes of its own, the same for all members (common random numbers:
members differ by their parameters and by no luck). Fitness is the mean score of
`prefixgym.experiments.goodput_objective`. Full CMA-ES learns how parameters go together; beyond
`MOST_DENSE` of them its matrices cost more than the episodes, and its diagonal variant is taken
(Ros, Hansen, PPSN 2008).
"""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cmaes import CMA, SepCMA
from numpy.typing import NDArray

from prefixgym.agents.population import Population
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evolution import checkpoint
from prefixgym.experiments.evolution.checkpoint import Candidate, Progress, Row
from prefixgym.experiments.goodput_objective import GoodputObjective
from prefixgym.experiments.training.judge import HANDCRAFTED, Judge, Verdict
from prefixgym.experiments.training.tensorboard import kept

MOST_DENSE = 500
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Search:
    """Everything that decides what is found.

    Attributes:
        scenario: cluster, workload, objectives and what the router may know; its `num_requests` is
            the length of training episodes.
        validation: the same, with the length of validation episodes.
        rate: requests/s.
        seed: of CMA-ES and of the choice of episodes.
        members: of a generation; 0 is CMA-ES's own default, 4 + 3 ln P.
        episodes: of each member in a generation.
        sigma: standard deviation of the first generation.
        judge_every: generations between two looks at the validation episodes.
        validation_episodes: how many of these.
    """

    scenario: Scenario
    validation: Scenario
    rate: float
    seed: int = 0
    members: int = 0
    episodes: int = 4
    sigma: float = 0.2
    judge_every: int = 10
    validation_episodes: int = 4

    @property
    def identity(self) -> dict[str, object]:
        """What must be equal for a search to go on."""
        values: dict[str, object] = {
            key: value for key, value in vars(self).items() if isinstance(value, (int, float))
        }
        return values | {
            "scenario": self.scenario.identity(),
            "validation": self.validation.identity(),
        }

    def judge(self) -> Judge:
        """A judge on the first validation seeds, who has seen nobody."""
        seeds = self.validation.seeds.of("validation")[: self.validation_episodes]
        return Judge(self.validation, self.rate, seeds)

    def training_seeds(self, generation: int) -> list[int]:
        """Episodes of a generation."""
        drawn = random.Random(f"{self.seed}/{generation}")
        return drawn.sample(self.scenario.seeds.of("train"), self.episodes)


@dataclass(frozen=True)
class Budget:
    """When a search ends; what comes first.

    Attributes:
        generations: in all, those before an interruption included.
        seconds: of work in all, likewise.
    """

    generations: float = float("inf")
    seconds: float = float("inf")

    def is_spent(self, progress: Progress) -> bool:
        """Whether it is time to end."""
        return progress.generation >= self.generations or progress.seconds >= self.seconds


OnGeneration = Callable[[Progress, Verdict | None], None]
"""Told after a generation where the search stands and, if it was judged, how its centre does."""


def begin(search: Search, population: Population, folder: Path) -> Progress:
    """Where the checkpoint in `folder` stands; else the start, from the population's origin.

    Raises:
        ValueError: the checkpoint is of another search.
    """
    identity: dict[str, object] = {"kind": population.name, "start": population.digest}
    identity |= search.identity
    found = checkpoint.read(folder / CHECKPOINT, identity)
    return _start(search, population, identity) if found is None else found


def evolve(
    search: Search,
    population: Population,
    budget: Budget,
    folder: Path,
    progress: Progress,
    on_generation: OnGeneration = lambda progress, verdict: None,
) -> Progress:
    """Search on until the budget is spent.

    Args:
        search: what to do.
        population: of the kind to evolve; its members are replaced.
        budget: when to end.
        folder: where the checkpoint is kept; must exist.
        progress: what `begin` returned.
        on_generation: told after every generation, once it is on disk.
    """
    judge = search.judge()
    judge.handcrafted = progress.handcrafted
    num_envs = progress.optimizer.population_size * search.episodes
    threads = max(1, min(os.cpu_count() or 1, num_envs // 16))
    objective = GoodputObjective(search.scenario, search.rate, num_envs, threads)
    while not budget.is_spent(progress):
        began = time.monotonic()
        _generation(search, population, objective, progress)
        verdict = None
        if progress.generation % search.judge_every == 0:
            verdict = _judge(judge, population, progress)
        progress.seconds += time.monotonic() - began
        progress = checkpoint.write(folder / CHECKPOINT, progress)
        on_generation(progress, verdict)
    objective.close()
    return progress


def _start(search: Search, population: Population, identity: dict[str, object]) -> Progress:
    """Before the first generation: only the origin is known."""
    origin = population.origin
    method = CMA if len(origin) <= MOST_DENSE else SepCMA
    optimizer = method(origin, search.sigma, population_size=search.members or None)
    judge = search.judge()
    for name in HANDCRAFTED:
        judge.add_handcrafted(name)
    verdict = judge.verdict(population.router(origin))
    first = verdict.notes() | kept(verdict, judge) | {"charts/decisions": 0.0}
    best = Candidate(origin, 0, verdict)
    return Progress(identity, optimizer, judge.handcrafted, best, history=[first])


def _generation(
    search: Search, population: Population, objective: GoodputObjective, progress: Progress
) -> None:
    """Ask, play, tell."""
    optimizer, generation = progress.optimizer, progress.generation
    # Its generator is no part of its pickle; seeds of its own make each generation repeatable.
    optimizer.reseed_rng(
        int(np.random.SeedSequence([search.seed, generation]).generate_state(1)[0])
    )
    asked = [optimizer.ask() for _ in range(optimizer.population_size)]
    population.members = np.array(asked)
    seeds = search.training_seeds(generation) * len(asked)
    fitness = objective(population, seeds).reshape(len(asked), -1).mean(1)
    optimizer.tell([(member, -value) for member, value in zip(asked, fitness, strict=True)])
    progress.generation += 1
    decisions = progress.history[-1]["charts/decisions"] + len(seeds) * search.scenario.num_requests
    progress.history.append(_figures(progress, fitness) | {"charts/decisions": decisions})
    population.members = np.array([optimizer.mean, asked[int(fitness.argmax())]])


def _figures(progress: Progress, fitness: NDArray[np.float64]) -> Row:
    optimizer = progress.optimizer
    return {
        "fitness/best": float(fitness.max()),
        "fitness/mean": float(fitness.mean()),
        "fitness/worst": float(fitness.min()),
        "search/sigma": float(optimizer._sigma),
        "search/distance": float(np.linalg.norm(optimizer.mean)),
    }


def _judge(judge: Judge, population: Population, progress: Progress) -> Verdict:
    """Let the centre of the search and the generation's best play; returns how the centre does."""
    verdicts = judge.verdicts(population, len(population.members))
    for member, verdict in zip(population.members, verdicts, strict=True):
        if judge.prefers(verdict, progress.best.verdict):
            progress.best = Candidate(member.copy(), progress.generation, verdict)
    progress.history[-1] |= verdicts[0].notes() | kept(progress.best.verdict, judge)
    return verdicts[0]
