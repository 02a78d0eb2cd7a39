"""What a search leaves behind: the weights with their card, and a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefixgym.agents import linear_score, weights
from prefixgym.agents.population import LinearPopulation, NetworkPopulation, Population
from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evaluate import evaluate_router
from prefixgym.experiments.provenance import command, commit
from prefixgym.experiments.training.judge import HANDCRAFTED

WEIGHTS = "weights.safetensors"


def compare(learned: Router, scenario: Scenario, rate: float, seeds: Sequence[int]) -> pl.DataFrame:
    """Metrics of the learned router and of the handcrafted ones: one row a router and seed."""
    routers = [learned, *(make_router(name) for name in HANDCRAFTED)]
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
