"""What the decisions of a router say about it, in numbers and in a sentence."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.experiments.explain.popularity import WINDOW
from prefixgym.experiments.explain.watcher import Decisions
from prefixgym.experiments.paper.study import Arm
from prefixgym.experiments.table import Table, number

HIT_EDGES = np.linspace(0.0, 1.0, 11)
"""Columns of the map: share of the prompt that the hot instance has cached."""

EXCESS_EDGES = np.array([0.05, 0.1, 0.2, 0.5, 1.0, 2.0])
"""Between rows of the map, shares of the objective; the first row is 0: it is the soonest too."""

FEWEST = 10
"""Decisions below which a cell of the map, or a class of popularity, says nothing."""

POPULAR = 4
"""The class from which prefixes are called popular: 16 requests in a minute."""

RANKS = 8
"""Ranks that are told apart; the last stands for all that follow."""


@dataclass(frozen=True)
class Findings:
    """What one router does.

    Attributes:
        arm: which router.
        metrics: means over its episodes (`prefixgym.experiments.metrics`).
        decisions: how many were seen.
        leaves: share of the decisions in which the hot instance was left, [excess, hit]; nan where
            there were fewer than `FEWEST`.
        left: the same over all decisions in which some instance had a prefix cached.
        left_from: excess, as a share of the objective, from which it is left more often than not;
            inf if it never is.
        copies: instances that hold a prefix, by class of its popularity, nan as above, [CLASSES].
        popular_copies: the mean over popular prefixes, nan if there are none.
        by_ttft, by_requests: share of the decisions on the 1st, 2nd, … instance by predicted TTFT
            and by requests in flight, [RANKS].
        load: requests in flight on the busiest, second busiest, … instance: mean, 10 % and 90 %
            quantile over the decisions, [3, N].
        peak: requests in flight on the busiest instance / on the mean one, mean over decisions.
    """

    arm: Arm
    metrics: Mapping[str, float]
    decisions: int
    leaves: NDArray[np.float64]
    left: float
    left_from: float
    copies: NDArray[np.float64]
    popular_copies: float
    by_ttft: NDArray[np.float64]
    by_requests: NDArray[np.float64]
    load: NDArray[np.float64]
    peak: float

    def sentence(self) -> str:
        """For people."""
        where = (
            "never more often than not"
            if math.isinf(self.left_from)
            else "more often than not wherever another one is sooner"
            if self.left_from == 0
            else f"more often than not from {self.left_from:g} of the TTFT objective on"
        )
        kept = (
            "no prefix is popular here"
            if math.isnan(self.popular_copies)
            else f"keeps {self.popular_copies:.1f} copies of a popular prefix"
        )
        return (
            f"{self.arm.label} leaves the longest cached prefix in {100 * self.left:.0f} % of its "
            f"decisions, {where}; it takes the soonest first token in "
            f"{100 * self.by_ttft[0]:.0f} % and the fewest requests in flight in "
            f"{100 * self.by_requests[0]:.0f} %; {kept}; its busiest instance has "
            f"{self.peak:.2f} times the mean in flight."
        )

    def json(self) -> dict[str, object]:
        """For machines."""
        return {
            "router": self.arm.label,
            "decisions": self.decisions,
            "metrics": dict(self.metrics),
            "left": self.left,
            "left_from": self.left_from,
            "leaves": self.leaves.tolist(),
            "copies": self.copies.tolist(),
            "popular_copies": self.popular_copies,
            "by_ttft": self.by_ttft.tolist(),
            "by_requests": self.by_requests.tolist(),
            "load": self.load.tolist(),
            "peak": self.peak,
            "sentence": self.sentence(),
        }


def findings(arm: Arm, metrics: Mapping[str, float], seen: Decisions) -> Findings:
    """Sum up what was seen of a router."""
    held = seen.hit > 0
    hit = np.minimum(np.digitize(seen.hit[held], HIT_EDGES) - 1, len(HIT_EDGES) - 2)
    excess = np.where(seen.excess > 0, 1 + np.digitize(seen.excess, EXCESS_EDGES), 0)[held]
    shape = (len(EXCESS_EDGES) + 2, len(HIT_EDGES) - 1)
    total, left = np.zeros(shape), np.zeros(shape)
    np.add.at(total, (excess, hit), 1)
    np.add.at(left, (excess, hit), seen.left[held])
    popular = int(seen.looks[POPULAR:].sum())
    load = seen.load[:, ~np.isnan(seen.load).all(0)]  # never more were available
    return Findings(
        arm,
        metrics,
        len(seen.hit),
        _share(left, total),
        float(seen.left[held].mean()) if held.any() else math.nan,
        _left_from(_share(left.sum(1), total.sum(1))),
        _share(seen.copies, seen.looks),
        float(seen.copies[POPULAR:].sum() / popular) if popular >= FEWEST else math.nan,
        _ranks(seen.rank_ttft),
        _ranks(seen.rank_requests),
        np.array([np.nanmean(load, 0), *np.nanquantile(load, (0.1, 0.9), axis=0)]),
        _peak(load),
    )


def _share(part: NDArray[np.float64], total: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.where(total >= FEWEST, part / np.maximum(total, 1), np.nan)  # type: ignore[operator]


def _left_from(share: NDArray[np.float64]) -> float:
    """The lower edge of the first row from which on every known one is left in over a half."""
    known = np.flatnonzero(~np.isnan(share))
    seldom = known[share[known] <= 0.5]
    later = known if len(seldom) == 0 else known[known > seldom[-1]]
    if len(later) == 0:
        return math.inf
    return float(np.concatenate([[0.0, 0.0], EXCESS_EDGES])[later[0]])


def _ranks(rank: NDArray[np.int64]) -> NDArray[np.float64]:
    counts = np.bincount(np.minimum(rank, RANKS - 1), minlength=RANKS)
    shares: NDArray[np.float64] = counts / max(1, len(rank))
    return shares


def _peak(load: NDArray[np.float64]) -> float:
    mean = np.nanmean(load, 1)
    busy = mean > 0
    return float((load[busy, 0] / mean[busy]).mean()) if busy.any() else math.nan


HOW_TO_READ = f"""\
leaves prefix: decisions for an instance with a shorter cached prefix than the longest, of those in
which some instance has one. mostly from: predicted TTFT there beyond the least, as a share of the
objective, from which it is left more often than not. soonest, fewest: decisions for the instance
with the least predicted TTFT, with the fewest requests in flight. copies: instances that hold a
prefix which at least {2**POPULAR} requests had in the last {WINDOW:g} s.
busiest / mean: requests in flight."""


def findings_table(title: str, found: list[Findings]) -> Table:
    """A row a router."""
    headings = (
        "router", "attain-\nment %", "TTFT\np99 ms", "hit\n%", "leaves\nprefix %",
        "mostly\nfrom", "soonest\n%", "fewest\n%", "copies", "busiest\n/ mean",
    )  # fmt: skip
    return Table(
        title,
        headings,
        [
            (
                one.arm.label,
                f"{100 * one.metrics['attainment']:.1f}",
                f"{1000 * one.metrics['ttft_p99']:,.0f}",
                f"{100 * one.metrics['hit_rate']:.1f}",
                f"{100 * one.left:.1f}",
                "never" if math.isinf(one.left_from) else f"{one.left_from:g}",
                f"{100 * one.by_ttft[0]:.0f}",
                f"{100 * one.by_requests[0]:.0f}",
                number(one.popular_copies),
                f"{one.peak:.2f}",
            )
            for one in found
        ],
    )
