"""What routers do, as small multiples: a column a router, the same scales in every column."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

from prefixgym.experiments.explain.findings import EXCESS_EDGES, HIT_EDGES, RANKS, Findings
from prefixgym.experiments.explain.popularity import CLASSES, WINDOW

_COLUMN_INCHES = 2.5
_ROW_INCHES = (2.5, 1.9, 1.7, 1.9)
_MARGIN_INCHES = 1.0
_OWN, _OTHER, _SECOND = "#0072B2", "#c9c9c9", "#E69F00"
_UNKNOWN = "#f2f2f2"
_COLOURS = 200
_TITLES = (
    "(a) How often it leaves the instance with the longest cached prefix (grey: too few decisions)",
    f"(b) Instances that hold a prefix, by the requests for it in the last {WINDOW:g} s "
    "(grey: the other routers)",
    "(c) Which instance it takes, by predicted TTFT and by requests in flight",
    "(d) Requests in flight on the busiest to the idlest instance (band: 10 to 90 % of decisions)",
)


def plot(title: str, found: Sequence[Findings], path: Path) -> None:
    """Write a PNG.

    Args:
        title: above all.
        found: a column each.
        path: the file.
    """
    columns = len(found)
    size = (max(7.0, _COLUMN_INCHES * columns + _MARGIN_INCHES), sum(_ROW_INCHES) + 0.4)
    figure = Figure(figsize=size)
    figure.set_layout_engine("constrained", h_pad=0.15)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    grid = figure.add_gridspec(
        len(_ROW_INCHES),
        columns + 1,
        height_ratios=_ROW_INCHES,
        width_ratios=[*[1] * columns, 0.05],
    )
    panels: list[list[Axes]] = []
    for row, text in enumerate(_TITLES):
        first = figure.add_subplot(grid[row, 0])
        others = [figure.add_subplot(grid[row, k], sharey=first) for k in range(1, columns)]
        for ax in others:
            ax.tick_params(labelleft=False)
        # An axes' own title would be centred, and taken into account in the layout.
        above = first.annotate(
            text, (0, 1), xycoords="axes fraction", xytext=(-34, 22 if row == 0 else 7),
            textcoords="offset points", fontsize=9,
        )  # fmt: skip
        above.set_in_layout(False)
        panels.append([first, *others])
    for k, one in enumerate(found):
        _map(panels[0][k], one)
        _copies(panels[1][k], one, found)
        _ranks(panels[2][k], one)
        _load(panels[3][k], one)
        panels[0][k].set_title(one.arm.label, fontsize=9, fontweight="bold")
        for axes in panels:
            axes[k].tick_params(labelsize=7)
    panels[0][0].set_ylabel("its TTFT beyond the\nleast, / objective", fontsize=8)
    panels[1][0].set_ylabel("instances", fontsize=8)
    panels[2][0].set_ylabel("decisions, %", fontsize=8)
    panels[3][0].set_ylabel("requests", fontsize=8)
    panels[2][0].legend(fontsize=7, frameon=False)
    bar = figure.colorbar(panels[0][0].collections[0], cax=figure.add_subplot(grid[0, columns]))
    bar.set_label("leaves, %", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    _write(figure, path)


def _map(ax: Axes, one: Findings) -> None:
    height = len(EXCESS_EDGES) + 2
    ax.set_facecolor(_UNKNOWN)
    ax.pcolormesh(
        100 * HIT_EDGES,
        np.arange(height + 1),
        np.ma.masked_invalid(100 * one.leaves),
        cmap="viridis",
        vmin=0,
        vmax=100,
    )
    ends = [f"{edge:g}" for edge in EXCESS_EDGES]
    labels = ["0", f"to {ends[0]}", *(f"to {end}" for end in ends[1:]), f"> {ends[-1]}"]
    ax.set_yticks(np.arange(height) + 0.5, labels)
    ax.set_xticks([0, 50, 100])
    ax.set_xlabel("prompt cached there, %", fontsize=8)


def _copies(ax: Axes, one: Findings, found: Sequence[Findings]) -> None:
    x = np.arange(CLASSES)
    for other in found:
        own = other is one
        ax.plot(
            x,
            other.copies,
            color=_OWN if own else _OTHER,
            marker="o" if own else None,
            markersize=3,
            linewidth=1.5 if own else 1.0,
            zorder=3 if own else 2,
        )
    known = [k for k in range(CLASSES) if any(np.isfinite(other.copies[k]) for other in found)]
    ax.set_xlim(-0.4, max(known, default=0) + 0.4)
    ax.set_ylim(bottom=0)
    ax.set_xticks(range(0, max(known, default=0) + 1, 2))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda k, _: f"{2 ** int(k)}"))
    ax.set_xlabel("requests for the prefix", fontsize=8)
    _plain(ax)


def _ranks(ax: Axes, one: Findings) -> None:
    shown = min(RANKS, one.load.shape[1])
    x = np.arange(shown)
    for shift, shares, colour, label in (
        (-0.2, one.by_ttft, _OWN, "soonest first"),
        (0.2, one.by_requests, _SECOND, "fewest in flight first"),
    ):
        ax.bar(x + shift, 100 * shares[:shown], width=0.4, color=colour, label=label)
    last = f"{RANKS}+" if one.load.shape[1] > RANKS else f"{shown}"
    ax.set_xticks(x, [*(f"{k + 1}" for k in x[:-1]), last])
    ax.set_ylim(0, 100)
    ax.set_xlabel("rank of the chosen instance", fontsize=8)
    _plain(ax)


def _load(ax: Axes, one: Findings) -> None:
    mean, low, high = one.load
    x = np.arange(1, len(mean) + 1)
    ax.fill_between(x, low, high, color=_OWN, alpha=0.15, linewidth=0)
    ax.plot(x, mean, color=_OWN, marker="o", markersize=3, linewidth=1.5)
    ax.set_ylim(bottom=0)
    ax.set_xticks(x if len(x) <= 8 else np.linspace(1, len(x), 4).astype(int))
    ax.set_xlabel("instance, busiest first", fontsize=8)
    _plain(ax)


def _plain(ax: Axes) -> None:
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _write(figure: Figure, path: Path) -> None:
    """With few colours: a third of the size."""
    figure.savefig(path, dpi=130)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(_COLOURS)
    small.save(path, optimize=True)
