"""The figure of a study: a row of panels for each thing that is varied, a line for each router."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from prefixgym.baselines.router import router_class
from prefixgym.experiments.paper.study import Arm, Study, Sweep
from prefixgym.experiments.table import number

# Okabe and Ito's palette, apart for colour-blind readers. A router without an index of what
# instances report is dashed, with open markers; of the field's ten, these are the first five.
_STYLES = (
    ("#8c8c8c", "o"), ("#000000", "s"), ("#56B4E9", "^"), ("#E69F00", "D"), ("#CC79A7", "v"),
    ("#D55E00", "o"), ("#CC79A7", "s"), ("#009E73", "^"), ("#0072B2", "D"), ("#000000", "v"),
    ("#7B3294", "P"), ("#A6611A", "X"),
)  # fmt: skip
_PUBLISHED = "#cc0000"
_PANEL_INCHES = (3.3, 2.35)
_LEGEND_INCHES = 1.6
_TITLE_INCHES = 0.15
_NARROW = 3.0
"""Highest / lowest value up to which an axis is not worth a logarithm."""


class _Panel(NamedTuple):
    """What one column shows."""

    metric: str
    label: str
    scale: float
    logarithmic: bool


_PANELS = (
    _Panel("attainment", "SLO attainment, %", 100.0, False),
    _Panel("ttft_p99", "TTFT p99, s", 1.0, True),
    _Panel("hit_rate", "prefix hits, % of tokens", 100.0, False),
)
_COST = _Panel("bytes", "what the index hears, MB/s", 1e-6, False)


def plot_study(study: Study, summary: pl.DataFrame, path: Path) -> None:
    """Write a PNG.

    Args:
        study: which.
        summary: from `results.summarise`.
        path: the file to write.
    """
    columns = len(_PANELS) + study.costs
    ran = set(summary["sweep"])
    sweeps = [sweep for sweep in study.sweeps if sweep.name in ran]
    width, height = _PANEL_INCHES
    full_width = width * columns + _LEGEND_INCHES
    full_height = height * len(sweeps) + _TITLE_INCHES
    figure = Figure(figsize=(full_width, full_height))
    rect = (0.005, 0.0, width * columns / full_width, height * len(sweeps) / full_height)
    figure.set_layout_engine("constrained", rect=rect, h_pad=_TITLE_INCHES)
    grid = figure.add_gridspec(len(sweeps), columns)
    shown: tuple[str, ...] = ()
    for k, sweep in enumerate(sweeps):
        rows = summary.filter(pl.col("sweep") == sweep.name)
        costs = study.costs and sweep.varies == "index"
        panels = (*_PANELS, _COST) if costs else _PANELS
        axes = [figure.add_subplot(grid[k, j]) for j in range(len(panels))]
        # An axes' own title would be taken into account as it is centred, which this is not.
        title = axes[0].annotate(
            sweep.title, (0, 1), xycoords="axes fraction", xytext=(-34, 7),
            textcoords="offset points", fontsize=10, fontweight="bold",
        )  # fmt: skip
        title.set_in_layout(False)
        for ax, panel in zip(axes, panels, strict=True):
            _draw(ax, sweep, rows, panel)
        labels = tuple(arm.label for arm in sweep.lines)
        if labels != shown:
            _add_legend(axes)
        shown = labels
    figure.savefig(path, dpi=130)


def _draw(ax: Axes, sweep: Sweep, rows: pl.DataFrame, panel: _Panel) -> None:
    labels = [setting.label for setting in sweep.settings]
    if panel is _COST:
        _draw_cost(ax, sweep, rows)
    else:
        for k, arm in enumerate(sweep.lines):
            _draw_arm(ax, sweep, rows.filter(pl.col("router") == arm.label), panel, arm, k)
        points = [p for p in sweep.points if p.metric == panel.metric]
        ax.plot(
            [labels.index(p.setting) for p in points], [panel.scale * p.value for p in points],
            "x", color=_PUBLISHED, markersize=8, markeredgewidth=2, zorder=5,
            label="published" if points else "",
        )  # fmt: skip
    ax.set_xticks(range(len(labels)), labels, fontsize=8)
    if max(map(len, labels)) >= 10:
        ax.set_xticks(range(len(labels)), labels, fontsize=7, rotation=30, ha="right")
    ax.set_xlim(-0.4, len(labels) - 0.6)
    ax.set_xlabel(sweep.axis, fontsize=8)
    relative = sweep.relative and panel.metric == "ttft_p99"
    ax.set_ylabel("TTFT p99 / that of the first" if relative else panel.label, fontsize=8)
    if panel.scale == 100.0 and ax.get_ylim()[0] < 0:
        ax.set_ylim(bottom=-3, top=max(ax.get_ylim()[1], 10))
    low, high = ax.get_ylim()
    if panel.logarithmic and (low <= 0 or high > _NARROW * low):  # else it would lack labels
        ax.set_yscale("log")
    if ax.get_yscale() == "log":
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        low, high = ax.get_ylim()
        few = high / low < 30  # powers of ten alone would be one label or none
        ax.yaxis.set_minor_formatter(FuncFormatter(_two_and_five if few else _nothing))
    ax.tick_params(axis="y", labelsize=8, which="both")
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _two_and_five(y: float, _: object) -> str:
    return f"{y:g}" if f"{y:.0e}"[0] in "25" else ""


def _nothing(_y: float, _: object) -> str:
    return ""


def _draw_arm(ax: Axes, sweep: Sweep, rows: pl.DataFrame, panel: _Panel, arm: Arm, k: int) -> None:
    found = {row["setting"]: row for row in rows.to_dicts()}
    columns = (panel.metric, f"{panel.metric}_low", f"{panel.metric}_high")
    values = panel.scale * np.array(
        [[found[s.label][c] if s.label in found else np.nan for c in columns]
         for s in sweep.settings]
    )  # fmt: skip
    if sweep.relative and panel.metric == "ttft_p99":
        values /= values[0, 0]
    blind = "index" not in router_class(arm.router).knows
    colour, marker = _STYLES[k % len(_STYLES)]
    face = "white" if blind else colour
    # Side by side where no line tells the routers apart.
    apart = np.array([setting.apart for setting in sweep.settings])
    spread = 0.5 * (k / max(1, len(sweep.lines) - 1) - 0.5)
    x = np.arange(len(sweep.settings)) + np.where(apart, spread, 0.0)
    ax.vlines(x, values[:, 1], values[:, 2], color=colour, linewidth=0.8, alpha=0.6, zorder=2)
    for part, line, label in ((~apart, "--" if blind else "-", arm.label), (apart, "none", "")):
        ax.plot(
            x[part], values[part, 0], color=colour, linestyle=line, linewidth=1.3, marker=marker,
            markersize=4, markerfacecolor=face, label=label,
        )  # fmt: skip


def _draw_cost(ax: Axes, sweep: Sweep, rows: pl.DataFrame) -> None:
    """The mean over routers with an index: what instances say depends little on who routes."""
    alike = rows.filter(pl.col(_COST.metric).is_not_null().all().over("router"))
    means = alike.group_by("setting").agg(pl.col(_COST.metric).mean()).rows()
    found = {setting: _COST.scale * value for setting, value in means if value > 0}
    heights = [found.get(setting.label, np.nan) for setting in sweep.settings]
    ax.bar(range(len(heights)), heights, width=0.6, color="#b5b5b5")
    least, most = min(found.values(), default=1.0), max(found.values(), default=1.0)
    if most > 5 * least:
        ax.set_yscale("log")
    else:
        least = 0.0
    ax.margins(y=0.15)  # for the numbers
    for x, height in enumerate(heights):
        ax.annotate(
            "none" if np.isnan(height) else number(height),
            (x, least if np.isnan(height) else height),
            ha="center", va="bottom", fontsize=7, xytext=(0, 1), textcoords="offset points",
        )  # fmt: skip


def _add_legend(axes: list[Axes]) -> None:
    """Right of the last of these panels."""
    handles: dict[str, Artist] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    legend = axes[-1].legend(
        handles.values(),
        # Names of weights are long.
        [label.replace(":", ":\n") if len(label) > 20 else label for label in handles],
        loc="upper left",
        bbox_to_anchor=(1.03, 1.05),
        fontsize=8,
        frameon=False,
    )
    legend.set_in_layout(False)  # room is kept at the figure's right
