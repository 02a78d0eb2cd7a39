"""From episodes to statements: intervals for each cell, the knee of each ladder, the ranking."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefixgym.experiments.capacity import CAPACITY_ATTAINMENT
from prefixgym.experiments.statistics import Estimate, estimate, paired_difference

REFERENCE = "round_robin"

_KEYS = ["scenario", "rate", "router"]


@dataclass(frozen=True)
class Standing:
    """One router over all scenarios and loads.

    Attributes:
        router: its name.
        attainment: interquartile mean over scenarios × loads × seeds.
        gain: paired difference of `attainment` to the reference's, None without the reference.
        best_rank: 1 + the routers whose interval lies above this one's.
        worst_rank: routers − those whose interval lies below this one's; equal to `best_rank` only
            where no interval overlaps.
    """

    router: str
    attainment: Estimate
    gain: Estimate | None
    best_rank: int
    worst_rank: int


def summarise(episodes: pl.DataFrame) -> pl.DataFrame:
    """A row for each scenario, rate and router; for each metric `m` columns `m`, `m_low`, `m_high`.

    Values are interquartile means over seeds with 95 % bootstrap intervals.
    """
    metrics = [name for name in episodes.columns if name not in (*_KEYS, "seed")]
    rows = []
    for key, cell in episodes.group_by(_KEYS, maintain_order=True):
        row = dict(zip(_KEYS, key, strict=True)) | {"seeds": cell.height}
        for metric in metrics:
            found = estimate([cell[metric].cast(pl.Float64).to_numpy()])
            row |= {metric: found.value, f"{metric}_low": found.low, f"{metric}_high": found.high}
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def knee(summary: pl.DataFrame) -> float:
    """Of one scenario's rates the highest at which some router attains 90 %, else the lowest."""
    able = summary.filter(pl.col("attainment") >= CAPACITY_ATTAINMENT)["rate"]
    return float(summary["rate"].min() if able.is_empty() else able.max())  # type: ignore[arg-type]


def ladder_capacity(rates: Sequence[float], attainment: Sequence[float]) -> float:
    """Highest rate with attainment ≥ 90 %, linear between the rungs of an ascending ladder.

    nan if even the lowest rung misses it, inf if the highest still meets it.
    """
    if attainment[-1] >= CAPACITY_ATTAINMENT:
        return np.inf
    for i in reversed(range(len(rates) - 1)):
        if attainment[i] >= CAPACITY_ATTAINMENT:
            share = (attainment[i] - CAPACITY_ATTAINMENT) / (attainment[i] - attainment[i + 1])
            return float(rates[i] + share * (rates[i + 1] - rates[i]))
    return np.nan


def rank(episodes: pl.DataFrame) -> list[Standing]:
    """Routers that finished all cells, best first."""
    strata = {
        router: _strata(rows)
        for (router,), rows in episodes.group_by("router", maintain_order=True)
    }
    most = max(sum(s.size for s in values) for values in strata.values())
    strata = {k: v for k, v in strata.items() if sum(s.size for s in v) == most}
    estimates = {router: estimate(values) for router, values in strata.items()}
    reference = strata.get(REFERENCE)
    standings = []
    for router, found in estimates.items():
        above = sum(other.low > found.high for other in estimates.values())
        below = sum(other.high < found.low for other in estimates.values())
        gain = None if reference is None else paired_difference(strata[router], reference)
        standings.append(Standing(router, found, gain, above + 1, len(estimates) - below))
    return sorted(standings, key=lambda s: -s.attainment.value)


def _strata(rows: pl.DataFrame) -> list[NDArray[np.float64]]:
    """Attainment of one router: an array [seeds, rates] for each scenario."""
    return [
        scenario.pivot("rate", index="seed", values="attainment", sort_columns=True)
        .sort("seed")
        .drop("seed")
        .to_numpy()
        for _, scenario in rows.sort("scenario", "rate", "seed").group_by(
            "scenario", maintain_order=True
        )
    ]
