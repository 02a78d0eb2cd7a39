"""One cell of a study: the metrics of its episodes, and what the routers' index has cost."""

import dataclasses

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefixgym.baselines.router import make_router
from prefixgym.envs.simulation import Simulation
from prefixgym.experiments.evaluate import Cell, play
from prefixgym.experiments.metrics import episode_metrics

COSTS = ("messages", "bytes", "lost", "gaps", "dumps", "entries")
"""Columns of `measure` for the index: `entries` at most, all others a second."""


def measure(cell: Cell) -> pl.DataFrame:
    """Evaluate a cell.

    Returns:
        One row a seed: the fields of EpisodeMetrics; load_cov (standard deviation / mean, over
        instances, of their mean requests in batch or queue); and `COSTS`, summed over routers.
    """
    setup = cell.scenario.build(cell.rate)
    simulation = Simulation(**setup._asdict(), num_envs=len(cell.seeds), record=True)
    play(simulation, make_router(cell.router, cell.parameters), setup.cluster, cell.seeds)
    totals, control = simulation.instance_totals, simulation.control.copy()
    seconds = simulation.view.requests["time"]  # of the last decision, when it was looked up last
    rows = []
    for e, seed in enumerate(cell.seeds):
        outcomes = simulation.outcomes(e)
        metrics = episode_metrics(outcomes, totals[e], setup.slos)
        rows.append(
            {
                "seed": seed,
                **dataclasses.asdict(metrics),
                "load_cov": _variation(totals[e]["running_seconds"] + totals[e]["waiting_seconds"]),
                **_costs(control[e], float(seconds[e])),
            }
        )
    return pl.DataFrame(rows)


def _variation(load: NDArray[np.float64]) -> float:
    return float(load.std() / load.mean())


def _costs(control: NDArray[np.void], seconds: float) -> dict[str, float]:
    costs = {name: float(control[name].sum()) / seconds for name in COSTS if name != "entries"}
    return costs | {"entries": float(control["peak_entries"].sum())}
