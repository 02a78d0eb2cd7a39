"""What a search leaves behind: TensorBoard events, the weights with their card, and a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

from prefixgym.agents import linear_score, weights
from prefixgym.agents.population import LinearPopulation, NetworkPopulation, Population
from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evaluate import evaluate_router
from prefixgym.experiments.evolution.checkpoint import Row
from prefixgym.experiments.evolution.selection import REFERENCES
from prefixgym.experiments.provenance import command, commit

WEIGHTS = "weights.safetensors"


class Events:
    """TensorBoard events of generations in a folder.

    Args:
        folder: of the events.
        first: the first generation that will be shown; what a killed process showed from there on
            is discarded.
    """

    def __init__(self, folder: Path, first: int) -> None:
        self._writer = SummaryWriter(str(folder), purge_step=first)

    def show(self, generation: int, figures: Row) -> None:
        """All figures of one generation."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, generation)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def compare(learned: Router, scenario: Scenario, rate: float, seeds: Sequence[int]) -> pl.DataFrame:
    """Metrics of the learned router and of the references: one row a router and seed."""
    routers = [learned, *(make_router(name) for name in REFERENCES)]
    return pl.concat(evaluate_router(router, scenario, rate, seeds) for router in routers)


def table_of(episodes: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Mean attainment and p99 TTFT of each router, for a card."""
    return {
        str(router): {
            metric: float(np.mean(rows[metric].to_numpy())) for metric in ("attainment", "ttft_p99")
        }
        for (router,), rows in episodes.group_by("router", maintain_order=True)
    }


def save(path: Path, population: Population, member: NDArray[np.float64], **known: Any) -> None:
    """Write the weights of a member and, on their card, what is known of them."""
    known |= {"command": command(), "commit": commit()}
    if isinstance(population, LinearPopulation):
        linear_score.save_weights(path, linear_score.weights_of(population.router(member)), known)
    elif isinstance(population, NetworkPopulation):
        scorer = population.network(member)
        weights.save_weights(path, scorer, weights.card_of(scorer, **known))
    else:
        raise TypeError(f"population: found {population.name}, which has no file format")
