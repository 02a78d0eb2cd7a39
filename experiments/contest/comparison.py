"""One match in figures: every router against the best handcrafted one, seed by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefixgym.experiments.contest.entrants import Kind
from prefixgym.experiments.statistics import (
    Estimate,
    mean_estimate,
    probability_of_improvement,
    ratio_of_means,
)

WORSE = 1.1
"""A tail that is this many times as bad is marked."""

CONTESTED = (0.9, 0.998)
"""Attainment of the best handcrafted router between which a match tells routers apart."""


@dataclass(frozen=True)
class Row:
    """A router in a match; means over its seeds. Ratios and `improvement` are to the reference.

    Attributes:
        router: its label.
        kind: as what it entered.
        seeds: episodes.
        attainment: with its interval.
        violations: ratio of 1 − attainment.
        improvement: probability that it attains more on a seed.
        ttft_p99: s.
        ttft_p99_ratio: of these.
        worst_sessions: attainment of the 5 % of sessions that fared worst.
        gap_closed: (attainment − reference's) / (look-ahead's − reference's) on the look-ahead's
            seeds; None without look-ahead, or where it is not ahead.
        worse: `p99` (TTFT) and `sessions` (the worst), where they are worse by more than 10 %.
    """

    router: str
    kind: Kind
    seeds: int
    attainment: Estimate
    violations: Estimate
    improvement: Estimate
    ttft_p99: float
    ttft_p99_ratio: float
    worst_sessions: float
    gap_closed: float | None
    worse: tuple[str, ...]


def compare(
    episodes: Mapping[str, pl.DataFrame], kinds: Mapping[str, Kind], reference: str
) -> list[Row]:
    """A row for each router, in their order.

    Args:
        episodes: of each router by label; those of the look-ahead may have the first seeds only.
        kinds: by label.
        reference: label of the best handcrafted router.
    """
    ahead = [label for label, kind in kinds.items() if kind == "lookahead" and label in episodes]
    base = episodes[reference]
    return [
        _row(label, kinds[label], own, base.head(own.height), _gap(episodes, label, ahead, base))
        for label, own in episodes.items()
    ]


def _row(label: str, kind: Kind, own: pl.DataFrame, base: pl.DataFrame, gap: float | None) -> Row:
    """`own` and `base` have the same seeds."""
    attained, reference = _column(own, "attainment"), _column(base, "attainment")
    late, sessions = _column(own, "ttft_p99").mean(), _column(own, "worst_sessions").mean()
    late_ratio = float(late / _column(base, "ttft_p99").mean())
    fewer = sessions < (2 - WORSE) * _column(base, "worst_sessions").mean()
    marks = {"p99": late_ratio > WORSE, "sessions": fewer}
    return Row(
        label,
        kind,
        own.height,
        mean_estimate(attained),
        ratio_of_means(1 - attained, 1 - reference),
        probability_of_improvement([attained], [reference]),
        float(late),
        late_ratio,
        float(sessions),
        gap,
        tuple(name for name, is_worse in marks.items() if is_worse),
    )


def _gap(
    episodes: Mapping[str, pl.DataFrame], label: str, ahead: Sequence[str], base: pl.DataFrame
) -> float | None:
    if not ahead:
        return None
    limit = episodes[ahead[0]]
    own, best, reference = (
        _column(found.head(limit.height), "attainment").mean()
        for found in (episodes[label], limit, base)
    )
    return float((own - reference) / (best - reference)) if best > reference else None


def _column(episodes: pl.DataFrame, metric: str) -> NDArray[np.float64]:
    return episodes[metric].cast(pl.Float64).to_numpy()
