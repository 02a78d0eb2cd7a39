"""Which member is kept: the best on validation episodes whose tail is no worse than it may be.

Training episodes say which members are promising; the winner of a noisy generation is mostly lucky.
So candidates play the validation episodes, and one whose p99 TTFT is above the limit is never
preferred to one within it: attainment gained by sacrificing some requests does not count.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from prefixgym.agents.population import Population
from prefixgym.baselines.router import make_router
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evaluate import played
from prefixgym.experiments.evolution.checkpoint import Candidate

REFERENCES = ("min_ttft", "loadaware", "smetric", "llmd_affinity")
"""Handcrafted routers, with default parameters, of which the best sets the limit."""

LIMIT = 1.1
"""Highest p99 TTFT of a candidate, in multiples of that of the best handcrafted router."""


def reference_rows(
    scenario: Scenario, rate: float, seeds: Sequence[int], names: Sequence[str] = REFERENCES
) -> dict[str, tuple[float, float]]:
    """Attainment and p99 TTFT in s of handcrafted routers, means over the episodes of `seeds`."""
    found = {}
    for name in names:
        _, episodes = played(make_router(name), scenario, rate, seeds)
        found[name] = (
            float(np.mean([episode.attainment for episode in episodes])),
            float(np.mean([episode.ttft_p99 for episode in episodes])),
        )
    return found


def judge(
    population: Population,
    generation: int,
    scenario: Scenario,
    rate: float,
    seeds: Sequence[int],
) -> list[Candidate]:
    """All members of a population on the same episodes."""
    count, size = len(population.members), len(seeds)
    _, episodes = played(population, scenario, rate, list(seeds) * count)
    found = []
    for m, member in enumerate(population.members):
        mine = episodes[m * size : (m + 1) * size]
        attainment = float(np.mean([episode.attainment for episode in mine]))
        ttft_p99 = float(np.mean([episode.ttft_p99 for episode in mine]))
        found.append(Candidate(member.copy(), generation, attainment, ttft_p99))
    return found


def tail_limit(references: Mapping[str, tuple[float, float]]) -> float:
    """The highest p99 TTFT in s beside these `reference_rows`."""
    return LIMIT * max(references.values())[1]


def preference(attainment: float, ttft_p99: float, limit: float) -> tuple[bool, float]:
    """What is preferred is higher: within the limit, then by attainment; beyond it by the tail."""
    within = ttft_p99 <= limit
    return within, attainment if within else -ttft_p99


def better(one: Candidate, other: Candidate, limit: float) -> bool:
    """Whether `one` is preferred."""
    return preference(one.attainment, one.ttft_p99, limit) > preference(
        other.attainment, other.ttft_p99, limit
    )
