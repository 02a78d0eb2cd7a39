"""The leaderboard as a picture: attainment against load for each scenario, and the ranking."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prefixgym.experiments.capacity import CAPACITY_ATTAINMENT
from prefixgym.experiments.ranking import REFERENCE, Standing

# Okabe and Ito's palette, apart for colour-blind readers; markers tell the lines apart in grey.
_STYLES = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
)
# Inches that a panel is wide and high, and how many stand side by side.
_PANELS = (4.4, 3.1, 2)
_SMALL_PANELS = (3.3, 2.5, 3)
_REFERENCE_STYLE = ("black", "x")
_OTHERS_STYLE = ("#b5b5b5", "")


def plot_leaderboard(summary: pl.DataFrame, standings: Sequence[Standing], path: Path) -> None:
    """Write a PNG of the ladders and the ranking.

    The best routers have colours and bands for their intervals, the reference is black, all others
    are grey; the bars of the ranking are the legend of the ladders.

    Args:
        summary: from `report.summarise`.
        standings: from `report.rank`.
        path: the file to write.
    """
    scenarios = summary["scenario"].unique(maintain_order=True).to_list()
    others = [s.router for s in standings if s.router != REFERENCE]
    styles = dict(zip(others, _STYLES, strict=False)) | {REFERENCE: _REFERENCE_STYLE}
    width, height, most = _PANELS if len(scenarios) <= 4 else _SMALL_PANELS
    columns = min(most, len(scenarios))
    rows = -(-len(scenarios) // columns)
    widths = (width * columns, 4.6)
    figure = Figure(figsize=(sum(widths), max(height * rows, 0.3 * len(standings) + 1.2)))
    figure.set_layout_engine("constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=widths)
    left, right = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    for i, scenario in enumerate(scenarios):
        panel = left.add_subplot(rows, columns, i + 1)
        _plot_ladder(panel, summary.filter(pl.col("scenario") == scenario), styles)
        panel.set_title(scenario, fontsize=10)
        if i % columns == 0:
            panel.set_ylabel("SLO attainment, %")
    _plot_ranking(right.add_subplot(), standings, styles)
    figure.savefig(path, dpi=150)


def _plot_ladder(panel: Axes, summary: pl.DataFrame, styles: Mapping[str, tuple[str, str]]) -> None:
    panel.axhline(100 * CAPACITY_ATTAINMENT, color="black", linewidth=0.6, linestyle=":")
    for (router,), rows in summary.group_by("router", maintain_order=True):
        ladder = rows.sort("rate")
        rate, attainment = ladder["rate"], 100 * ladder["attainment"]
        if router not in styles:
            panel.plot(rate, attainment, color=_OTHERS_STYLE[0], linewidth=1.0, zorder=2)
            continue
        colour, marker = styles[str(router)]
        panel.plot(rate, attainment, color=colour, marker=marker, markersize=4, zorder=3)
        low, high = 100 * ladder["attainment_low"], 100 * ladder["attainment_high"]
        panel.fill_between(rate, low, high, color=colour, alpha=0.12, linewidth=0)
    panel.set(xlabel="requests/s", ylim=(-3, 103))
    panel.set_xticks(summary["rate"].unique().sort().to_list())
    panel.xaxis.set_major_formatter("{x:g}")
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def _plot_ranking(
    panel: Axes, standings: Sequence[Standing], styles: Mapping[str, tuple[str, str]]
) -> None:
    position = np.arange(len(standings))
    value = 100 * np.array([s.attainment.value for s in standings])
    low = 100 * np.array([s.attainment.low for s in standings])
    high = 100 * np.array([s.attainment.high for s in standings])
    for y, standing in zip(position, standings, strict=True):
        colour, marker = styles.get(standing.router, _OTHERS_STYLE)
        panel.barh(y, value[y], color=colour, height=0.62)
        panel.plot(2.5, y, marker=marker, color="white", markersize=4.5)
    panel.errorbar(
        value, position, xerr=(value - low, high - value), fmt="none", ecolor="#333333", capsize=2.5
    )
    panel.set_yticks(position, [s.router for s in standings], fontsize=9)
    panel.invert_yaxis()
    panel.set_xlim(0, 100)
    panel.set_xlabel("SLO attainment, %")
    panel.set_title("All: interquartile mean, 95 % interval", fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
