"""One cell of a study: the metrics of its episodes, and what the routers' index has cost."""

import dataclasses

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefixgym.baselines.router import make_router
from prefixgym.experiments.evaluate import Cell, played

COSTS = ("messages", "bytes", "lost", "gaps", "dumps", "entries")
"""Columns of `measure` for the index: `entries` at most, all others a second."""


def measure(cell: Cell) -> pl.DataFrame:
    """Evaluate a cell.

    Returns:
        One row a seed: the fields of EpisodeMetrics; load_cov (standard deviation / mean, over
        instances, of their mean requests in batch or queue); and `COSTS`, summed over routers.
    """
    router = make_router(cell.router, cell.parameters)
    simulation, episodes = played(router, cell.scenario, cell.rate, cell.seeds)
    totals, control = simulation.instance_totals, simulation.control
    load = totals["running_seconds"] + totals["waiting_seconds"]
    seconds = simulation.view.requests["time"]  # of the last decision, when it was looked up last
    return pl.DataFrame(
        [
            {
                "seed": seed,
                **dataclasses.asdict(metrics),
                "load_cov": _variation(load[e]),
                **_costs(control[e], float(seconds[e])),
            }
            for e, (seed, metrics) in enumerate(zip(cell.seeds, episodes, strict=True))
        ]
    )


def _variation(load: NDArray[np.float64]) -> float:
    return float(load.std() / load.mean())


def _costs(control: NDArray[np.void], seconds: float) -> dict[str, float]:
    costs = {name: float(control[name].sum()) / seconds for name in COSTS if name != "entries"}
    return costs | {"entries": float(control["peak_entries"].sum())}
