"""Tables of results: the same rows for the terminal (rich) and for Markdown."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from prefixgym.experiments.metrics import EpisodeMetrics
from prefixgym.experiments.ranking import REFERENCE, Standing, knee, ladder_capacity
from prefixgym.experiments.statistics import Estimate


@dataclass(frozen=True)
class Table:
    """Text cells under headings.

    Attributes:
        title: above the table.
        headings: one a column.
        rows: as many cells as headings each.
        prose: columns after the first are flush left and may wrap, instead of flush right.
    """

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    prose: bool = False

    def rich(self) -> RichTable:
        """For a terminal, without the title."""
        table = RichTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i, heading in enumerate(self.headings):
            justify: Literal["left", "right"] = "left" if i == 0 or self.prose else "right"
            table.add_column(heading, justify=justify, no_wrap=i == 0 or not self.prose)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """For a file."""
        lines = [
            f"### {self.title}",
            "",
            f"| {' | '.join(self.headings)} |".replace("\n", " "),
            f"|:--{'|--:' * (len(self.headings) - 1)}|",
        ]
        rows = (f"| {' | '.join(row)} |".replace("\n", "<br>") for row in self.rows)
        return "\n".join([*lines, *rows, ""])


_METRICS = (
    "attainment\n%",
    "goodput\n/s",
    "TTFT\np50 ms",
    "TTFT\np99 ms",
    "TPOT\np99 ms",
    "tardy\ns",
    "worst\nsess. %",
    "hit\n%",
    "busy\n/idle",
)


def _metrics(row: dict[str, Any]) -> tuple[str, ...]:
    """What stands under `_METRICS`, of a row of `ranking.summarise`."""
    return (
        percent(_attainment(row)),
        number(row["goodput"]),
        f"{1e3 * row['ttft_p50']:,.0f}",
        f"{1e3 * row['ttft_p99']:,.0f}",
        f"{1e3 * row['tpot_p99']:,.1f}",
        f"{row['tardiness']:,.3f}",
        f"{100 * row['worst_sessions']:.1f}",
        f"{100 * row['hit_rate']:.1f}",
        number(row["imbalance"]),
    )


def scenario_table(summary: pl.DataFrame) -> Table:
    """One scenario at its knee, best attainment first; `summary` holds this scenario only."""
    rate = knee(summary)
    rows = []
    at_knee = summary.filter(pl.col("rate") == rate).sort("attainment", descending=True)
    for row in at_knee.to_dicts():
        ladder = summary.filter(pl.col("router") == row["router"])
        rows.append((row["router"], *_metrics(row), _capacity(ladder)))
    return Table(
        title=f"{summary['scenario'][0]} at {rate:g} requests/s",
        headings=("router", *_METRICS, "capacity\n/s"),
        rows=rows,
    )


def _capacity(ladder: pl.DataFrame) -> str:
    ladder = ladder.sort("rate")
    limit = ladder_capacity(ladder["rate"].to_list(), ladder["attainment"].to_list())
    if math.isnan(limit):
        return f"< {ladder['rate'][0]:g}"
    return f"> {ladder['rate'][-1]:g}" if math.isinf(limit) else number(limit)


def rates_table(summary: pl.DataFrame) -> Table:
    """One router on one scenario, a row for each rate."""
    return Table(
        title=f"{summary['router'][0]} on {summary['scenario'][0]}",
        headings=("requests/s", *_METRICS),
        rows=[(f"{row['rate']:g}", *_metrics(row)) for row in summary.sort("rate").to_dicts()],
    )


_UNITS = {"ttft": "s", "tpot": "s", "tardiness": "s", "goodput": "/s", "throughput": "/s"}


def episode_table(title: str, episode: dict[str, Any]) -> Table:
    """One episode, a row for each of its metrics."""
    rows = []
    for field in dataclasses.fields(EpisodeMetrics):
        value = episode[field.name]
        unit = _UNITS.get(field.name.split("_")[0], "")
        text = f"{value:,}" if isinstance(value, int) else number(value)
        rows.append((field.name, text, unit))
    return Table(title, ("metric", "value", "unit"), rows)


def ladder_table(summary: pl.DataFrame) -> Table:
    """Attainment of every router at every rate of one scenario, best mean first."""
    rates = sorted(summary["rate"].unique().to_list())
    best = summary.group_by("router").agg(pl.col("attainment").mean())
    rows = []
    for router in best.sort("attainment", descending=True)["router"]:
        found = {r["rate"]: r for r in summary.filter(pl.col("router") == router).to_dicts()}
        rows.append(
            (router, *(percent(_attainment(found[r])) if r in found else "" for r in rates))
        )
    return Table(
        title=f"{summary['scenario'][0]}: attainment % by requests/s",
        headings=("router", *(f"{rate:g}" for rate in rates)),
        rows=rows,
    )


def overall_table(standings: Sequence[Standing]) -> Table:
    """The ranking; routers whose intervals overlap share a range of ranks."""
    return Table(
        title="All scenarios and loads",
        headings=("router", "rank", "attainment % (IQM)", f"difference to {REFERENCE}"),
        rows=[
            (
                s.router,
                f"{s.best_rank}"
                if s.best_rank == s.worst_rank
                else f"{s.best_rank}-{s.worst_rank}",
                percent(s.attainment),
                "" if s.gain is None else percent(s.gain, signed=True),
            )
            for s in standings
        ],
    )


def _attainment(row: dict[str, Any]) -> Estimate:
    return Estimate(row["attainment"], row["attainment_low"], row["attainment_high"])


def percent(found: Estimate, signed: bool = False, digits: int = 1) -> str:
    """A share in percent with its interval."""

    def text(share: float) -> str:
        rounded = round(100 * share, digits) + 0.0  # + 0.0: no -0.0
        return f"{rounded:{'+' if signed else ''}.{digits}f}"

    if math.isnan(found.low):
        return text(found.value)
    return f"{text(found.value)} [{text(found.low)}, {text(found.high)}]"


def times(found: Estimate) -> str:
    """A ratio with its interval."""
    if math.isnan(found.low):
        return f"{found.value:.2f}"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def number(value: float) -> str:
    """Three significant digits, without exponent: 0.0123, 1.23, 123, 12,300."""
    if math.isnan(value):
        return "?"
    if math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"
