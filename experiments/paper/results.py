"""A study's results: means over seeds with intervals, and what was published beside them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from prefixgym.experiments.leaderboard import cell_path
from prefixgym.experiments.paper.measure import COSTS
from prefixgym.experiments.paper.published import USUAL_SEEDS, Effort, Figure
from prefixgym.experiments.paper.study import Found, Study, Sweep, Trial
from prefixgym.experiments.statistics import estimate
from prefixgym.experiments.table import Table

METRICS = ("attainment", "ttft_p99", "hit_rate")
"""What the figures show. In the CSV each has its interval, `…_low` and `…_high`."""

ALSO = (
    "ttft_mean", "ttft_p50", "ttft_p90", "tpot_mean", "throughput", "goodput", "imbalance",
    "load_cov", "rejected", "failed", "cancelled", "attempts",
)  # fmt: skip
"""Means that the CSV has besides."""


def summarise(trials: Sequence[Trial], folder: Path) -> pl.DataFrame:
    """One row a finished trial, in their order.

    Returns:
        sweep, setting, router (its label), scenario, rate, seeds; `METRICS` with intervals; `ALSO`
        and `COSTS`, null where the cell of another setting stands in.

    Raises:
        ValueError: none is finished.
    """
    rows = []
    for trial in trials:
        path = cell_path(folder, trial.cell)
        if path.exists():
            rows.append(_row(trial, pl.read_parquet(path)))
    if not rows:
        raise ValueError(f"{folder}: holds no finished cell of this study")
    return pl.DataFrame(rows, infer_schema_length=None)


def _row(trial: Trial, episodes: pl.DataFrame) -> dict[str, Any]:
    row: dict[str, Any] = {
        "sweep": trial.sweep.name,
        "setting": trial.setting.label,
        "router": trial.arm.label,
        "scenario": trial.cell.scenario.name,
        "rate": trial.cell.rate,
        "seeds": len(trial.cell.seeds),
    }
    for name in METRICS:
        found = estimate([episodes[name].to_numpy()])
        row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
    for name in ALSO:
        row[name] = float(np.mean(episodes[name].to_numpy()))
    for name in COSTS:  # of another setting where the cell stands in
        row[name] = None if trial.stands_in else float(np.mean(episodes[name].to_numpy()))
    return row


def figures_of(study: Study, summary: pl.DataFrame, effort: Effort) -> list[Figure]:
    """The study's claims beside ours; what was run with less than usual is not checked."""
    found = Found(summary)
    less = _less_than_usual(effort)
    figures = []
    for claim in study.claims:
        try:
            ours: float | None = claim.ours(found)
        except KeyError:
            ours = None
        figures.append(
            Figure(
                claim.what,
                claim.source,
                claim.published,
                ours,
                less or claim.because,
                -math.inf if less else claim.low,
                math.inf if less else claim.high,
                claim.unit,
                claim.known_miss,
                absent="the results do not have it",
            )
        )
    return figures


def _less_than_usual(effort: Effort) -> str:
    if effort.requests is not None:
        return f"tolerances hold for whole episodes, these have {effort.requests} requests"
    if effort.seeds < USUAL_SEEDS:
        return f"tolerances hold for {USUAL_SEEDS} seeds or more, found {effort.seeds}"
    return ""


def sweep_table(sweep: Sweep, summary: pl.DataFrame) -> Table:
    """Attainment and hit rate: a row a router, a column a setting. The CSV has the rest."""
    own = summary.filter(pl.col("sweep") == sweep.name)
    found = {(row["router"], row["setting"]): row for row in own.to_dicts()}
    labels = [setting.label for setting in sweep.settings]
    return Table(
        title=f"{sweep.title}: attainment % / prefix hits %"
        + (f", by {sweep.axis}" if sweep.axis else ""),
        headings=("router", *labels),
        rows=[
            (arm.label, *(_cell(found.get((arm.label, label))) for label in labels))
            for arm in sweep.lines
        ],
    )


def _cell(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{100 * row['attainment']:.1f} / {100 * row['hit_rate']:.0f}"
