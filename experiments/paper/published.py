"""Published figures that are checked: the value, ours, what is allowed and why, and the verdict."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prefixgym.experiments.table import Table, number

Verdict = Literal["met", "missed", "known miss", "not checked", "not run"]


@dataclass(frozen=True)
class Figure:
    """A published figure beside ours, in one unit, and the interval in which ours is to lie.

    Attributes:
        what: which quantity, of which system.
        source: where it was published.
        published: the value, or the least and the greatest where a range was published.
        ours: None: there is none, `absent` says why.
        because: why `low` and `high` are what they are; without them, why nothing is checked.
        low: the least that agrees; -inf: no bound.
        high: the greatest that agrees; inf: no bound. Without either bound nothing is checked.
        unit: of all four, for people.
        known_miss: why ours lies outside, where that is known: it is said, and no error.
        absent: why there is none of ours.

    Raises:
        ValueError: no reason is given, or the interval is empty.
    """

    what: str
    source: str
    published: float | tuple[float, float]
    ours: float | None
    because: str
    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    known_miss: str = ""
    absent: str = ""

    def __post_init__(self) -> None:
        if not self.because:
            raise ValueError(f"{self.what}: has no reason (because) for what is allowed")
        if not self.low <= self.high:
            raise ValueError(f"{self.what}: found allowed {self.low} to {self.high}, an empty one")
        if self.ours is None and not self.absent:
            raise ValueError(f"{self.what}: has no value of ours and no reason (absent)")

    @property
    def verdict(self) -> Verdict:
        """Whether ours is as published."""
        if self.ours is None:
            return "not run"
        if math.isinf(self.low) and math.isinf(self.high):
            return "not checked"
        if self.low <= self.ours <= self.high:  # false for nan
            return "met"
        return "known miss" if self.known_miss else "missed"

    @property
    def why(self) -> str:
        """What is to be said beside the verdict."""
        if self.verdict == "not run":
            return self.absent
        return self.known_miss if self.verdict == "known miss" else self.because

    def as_dict(self) -> dict[str, Any]:
        """For JSON; bounds that do not exist are None."""
        return {
            "what": self.what,
            "source": self.source,
            "published": self.published,
            "ours": self.ours,
            "unit": self.unit,
            "low": None if math.isinf(self.low) else self.low,
            "high": None if math.isinf(self.high) else self.high,
            "verdict": self.verdict,
            "why": self.why,
        }


def figures_table(figures: Sequence[Figure]) -> Table:
    """For people: a row a figure, in their order."""
    return Table(
        title="Published beside ours",
        headings=("verdict", "what", "source", "published", "ours", "allowed", "why"),
        rows=[
            (
                figure.verdict,
                figure.what,
                figure.source,
                _with_unit(_range(figure.published), figure.unit),
                "" if figure.ours is None else _with_unit(number(figure.ours), figure.unit),
                _allowed(figure.low, figure.high),
                figure.why,
            )
            for figure in figures
        ],
        prose=True,
    )


def _range(published: float | tuple[float, float]) -> str:
    if isinstance(published, tuple):
        return " … ".join(map(number, published))
    return number(published)


def _with_unit(text: str, unit: str) -> str:
    return f"{text} {unit}".rstrip()


def _allowed(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    if math.isinf(low):
        return f"≤ {number(high)}"
    return f"≥ {number(low)}" if math.isinf(high) else f"{number(low)} … {number(high)}"


def count_verdicts(figures: Sequence[Figure]) -> Counter[Verdict]:
    """How many figures have each verdict."""
    return Counter(figure.verdict for figure in figures)


USUAL_SEEDS = 3
"""Test episodes of each cell, for which tolerances are stated."""


@dataclass(frozen=True)
class Effort:
    """How much to run. What has no episodes ignores it.

    Attributes:
        seeds: test episodes of each cell.
        requests: of an episode; None: as each result has it.
        workers: processes.
        fresh: finished cells are run again.
        trace: the Mooncake conversation trace; None: where it is looked for by default.
    """

    seeds: int = USUAL_SEEDS
    requests: int | None = None
    workers: int = 1
    fresh: bool = False
    trace: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What a paper result has found.

    Attributes:
        tables: for people, without that of the published figures.
        figures: published beside ours.
        draw: writes the picture, a PNG, to this path.
        rows: what was computed or measured, for CSV and JSON: the same keys each.
        left_out: what was not run and why, a line each.
        failures: what raised, a line each.
    """

    tables: Sequence[Table]
    figures: Sequence[Figure]
    draw: Callable[[Path], None]
    rows: Sequence[Mapping[str, Any]]
    left_out: Sequence[str] = ()
    failures: Sequence[str] = ()


@dataclass(frozen=True)
class Result:
    """Something that `prefixgym paper NAME` shows: a simulated study, or a model's figures.

    Attributes:
        name: what it is called on the command line.
        question: in one sentence.
        run: finds the outcome; what it keeps, to go on with later, it keeps in this folder.
    """

    name: str
    question: str
    run: Callable[[Path, Effort], Outcome]
