"""Learning curves as a picture: a row of panels for each scenario and load."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from prefixgym.experiments.analysis.curve import Axis, Group, Metric, curve
from prefixgym.experiments.analysis.report import Panels, handcrafted_in
from prefixgym.experiments.analysis.run import Run

# Okabe and Ito's palette, apart for colour-blind readers, and a violet for their yellow.
_COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7A4FA3",
)  # fmt: skip
_MARKERS = ("o", "s", "^")
"""Where there are more curves than colours."""

_DASHES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0, (6, 2)), (0, (4, 1.5, 1, 1.5)), (0, (1, 1.5)),
)  # fmt: skip
LEVELS = len(_DASHES)
"""Handcrafted routers that are drawn; the table has all."""

_LEVEL = "#707070"
_METRICS: tuple[tuple[Metric, str, float], ...] = (
    ("attainment", "SLO attainment, %", 100.0),
    ("ttft_p99", "TTFT p99, ms", 1000.0),
)
_AXES: tuple[tuple[Axis, str, float], ...] = (
    ("decisions", "decisions", 1.0),
    ("seconds", "minutes of learning", 1 / 60),
)
_LEGEND_LETTERS = 34
_WIDE = 20.0
"""From this ratio of the longest run to the shortest on, an axis is logarithmic."""


def plot_curves(panels: Panels, path: Path) -> None:
    """Write a PNG: validation attainment and p99 TTFT against decisions and time.

    An axis ends where all that is kept, and the levels, can be told apart; a bad beginning is cut.
    Thin lines are single seeds, thick ones their means with 95 % intervals; dashed lines are the
    `LEVELS` handcrafted routers that attain most.
    """
    heights = [max(3.4, 0.6 + 0.3 * (len(groups) + LEVELS)) for groups in panels.values()]
    figure = Figure(figsize=(15.5, sum(heights)), layout="constrained")
    parts = np.atleast_1d(np.array(figure.subfigures(len(panels), 1, height_ratios=heights)))
    for part, ((scenario, rate), groups) in zip(parts, panels.items(), strict=True):
        axes = part.subplots(1, 4)
        runs = [run for group in groups for run in group.runs]
        k = 0
        for metric, label, scale in _METRICS:
            for axis, what, unit in _AXES:
                _draw(axes[k], groups, runs, metric, axis, scale, unit)
                axes[k].set_xlabel(what, fontsize=9)
                axes[k].set_ylabel(label, fontsize=9)
                k += 1
        part.suptitle(f"{scenario} at {rate:g} requests/s: validation", fontsize=10)
        handles, labels = axes[0].get_legend_handles_labels()
        labels = [textwrap.fill(text, _LEGEND_LETTERS) for text in labels]
        part.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)


def _draw(
    ax: Axes,
    groups: Sequence[Group],
    runs: Sequence[Run],
    metric: Metric,
    axis: Axis,
    scale: float,
    unit: float,
) -> None:
    for k, group in enumerate(groups):
        colour = _COLOURS[k % len(_COLOURS)]
        found = curve(group, metric, axis)
        if len(group.runs) > 1:
            for run in group.runs:
                x, y = getattr(run, axis), getattr(run, metric)
                ax.plot(unit * x, scale * y, color=colour, linewidth=0.6, alpha=0.6)
            band = scale * found.low, scale * found.high
            ax.fill_between(unit * found.x, *band, color=colour, alpha=0.15, linewidth=0)
        seeds = f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""
        marker = _MARKERS[k // len(_COLOURS) % len(_MARKERS)]
        ax.plot(
            unit * found.x, scale * found.mean, color=colour, linewidth=1.8, marker=marker,
            markersize=4, label=group.label + seeds,
        )  # fmt: skip
    rows = sorted(handcrafted_in(runs), key=lambda row: -row.validation.attainment)[:LEVELS]
    levels = [scale * getattr(row.validation, metric) for row in rows]
    for row, level, style in zip(rows, levels, _DASHES, strict=False):
        ax.axhline(level, color=_LEVEL, linewidth=1.0, linestyle=style, label=row.router, zorder=1)
    matters = np.array([*levels, *(scale * getattr(run.best, metric) for run in runs)])
    if metric == "attainment":
        # The best level and all that is kept; other levels may lie below the axis.
        low = float(min([*levels[:1], *matters[len(levels) :]]))
        spread = float(matters.max()) - low
        high = max(float(matters.max()), *(scale * float(run.attainment.max()) for run in runs))
        bottom = max(ax.get_ylim()[0], low - max(0.5, spread / 2))
        ax.set_ylim(bottom, high + 0.05 * (high - bottom))
    else:
        ax.set_yscale("log")
        ax.set_ylim(top=min(ax.get_ylim()[1], 1.3 * float(matters.max())))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("{x:g}")
        ax.tick_params(axis="y", which="minor", labelsize=7)
    ends = [float(unit * getattr(run, axis)[-1]) for run in runs]
    if max(ends) > _WIDE * min(ends) > 0:
        ax.set_xscale("symlog", linthresh=min(ends) / 2)
    ax.set_xlim(left=0)
    if axis == "decisions":
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.tick_params(labelsize=8)
    ax.grid(axis="y", color="#ececec", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
