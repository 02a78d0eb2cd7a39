"""Capacity at 99 % attainment: the highest load that a router carries almost without a miss."""

import dataclasses

import numpy as np
import polars as pl

from prefixgym.experiments.capacity import find_capacity
from prefixgym.experiments.evaluate import Cell, evaluate

WANTED = 0.99


def measure_capacity(cell: Cell) -> pl.DataFrame:
    """One row: `capacity` in requests/s, as of `find_capacity`, the search starting at its rate."""

    def attainment(rate: float) -> float:
        found = evaluate(dataclasses.replace(cell, rate=rate))
        return float(np.mean(found["attainment"].to_numpy()))

    return pl.DataFrame({"capacity": [find_capacity(attainment, cell.rate, WANTED)]})
