"""The figure of `mooncake-cache`: hits by arm, over capacity, and TTFT."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

_COLORS = {"arm": "#8c8c8c", "router": "#0072B2"}
_PUBLISHED = "#cc0000"
_LINES = ("#000000", "#0072B2", "#D55E00", "#8c8c8c")

Rows = Sequence[Mapping[str, Any]]


def plot(rows: Rows, published: Mapping[str, float], path: Path) -> None:
    """Write a PNG.

    Args:
        rows: of the CSV; with none the figure says so.
        published: hit ratio, shared / local, by trace.
        path: the file to write.
    """
    names = list(dict.fromkeys(row["trace"] for row in rows))
    figure = Figure(figsize=(13, 4.2 * max(1, len(names))), layout="constrained")
    if not names:
        figure.text(0.5, 0.5, "no trace at hand", ha="center")
        figure.savefig(path, dpi=130)
        return
    axes = figure.subplots(len(names), 3, squeeze=False, width_ratios=(1.25, 1.0, 1.0))
    for line, name in zip(axes, names, strict=True):
        own = [row for row in rows if row["trace"] == name]
        _hits(line[0], own, published[name])
        _capacity(line[1], own)
        _waiting(line[2], own)
        line[0].set_title(f"{name} trace: hits", fontsize=10, fontweight="bold", loc="left")
        line[1].set_title("over capacity", fontsize=10, fontweight="bold", loc="left")
        line[2].set_title("TTFT", fontsize=10, fontweight="bold", loc="left")
        for ax in line:
            ax.tick_params(which="both", labelsize=8)
            ax.set_axisbelow(True)
    figure.savefig(path, dpi=130)


def _hits(ax: Axes, rows: Rows, published: float) -> None:
    bars = [row for row in rows if row["part"] in _COLORS]
    shared = bars[0]["hit_rate"]
    bars = sorted(bars, key=lambda row: row["hit_rate"])
    places = range(len(bars))
    ax.barh(
        places, [100 * row["hit_rate"] for row in bars],
        color=[_COLORS[row["part"]] for row in bars], height=0.7,
    )  # fmt: skip
    line = ax.axvline(100 * shared / published, color=_PUBLISHED, linewidth=1.5, linestyle="--")
    handles = (Patch(color=_COLORS["arm"]), Patch(color=_COLORS["router"]), line)
    labels = ("exact replay", "router, with queues", f"published: shared / {published:g}")
    ax.set_yticks(places, [row["arm"] for row in bars])
    ax.set_xlabel("hits, % of blocks", fontsize=8)
    ax.grid(axis="x", color="#e6e6e6", linewidth=0.6)
    ax.legend(handles, labels, fontsize=8, loc="lower right")


def _capacity(ax: Axes, rows: Rows) -> None:
    found = [row for row in rows if row["part"] == "capacity"]
    arms = dict.fromkeys(row["arm"] for row in found)
    for arm, color in zip(arms, _LINES, strict=True):
        own = [row for row in found if row["arm"] == arm]
        ax.plot(
            [3 * row["at"] for row in own], [100 * row["hit_rate"] for row in own], "o-",
            color=color, markersize=4, linewidth=4 if arm == "shared cache" else 1.5,
            alpha=0.4 if arm == "shared cache" else 1.0, label=arm,
        )  # fmt: skip
    ax.axvline(3, color="#000000", linewidth=1, linestyle=":")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_ylim(0, 1.5 * ax.get_ylim()[1])  # room for the legend
    ax.set_xlabel("KV of a node, M tokens (of ten nodes)", fontsize=8)
    ax.set_ylabel("hits, % of blocks", fontsize=8)
    ax.grid(color="#e6e6e6", linewidth=0.6)
    ax.legend(fontsize=8, frameon=False, loc="upper left")


def _waiting(ax: Axes, rows: Rows) -> None:
    found = sorted(
        (row for row in rows if row["ttft_mean"] is not None), key=lambda row: -row["ttft_mean"]
    )
    places = range(len(found))
    values = [row["ttft_mean"] for row in found]
    ax.barh(places, values, color=[_COLORS[row["part"]] for row in found], height=0.7)
    for place, value in zip(places, values, strict=True):
        ax.annotate(
            f"{value:.1f}", (value, place), xytext=(3, 0), textcoords="offset points", fontsize=8,
            va="center",
        )  # fmt: skip
    names = [row["arm"] for row in found]
    ax.set_yticks(places, [f"{n},\nfetched at once" if n == "shared cache" else n for n in names])
    ax.set_xscale("log")
    ax.set_xlim(1, 2 * max(values))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    ax.set_xlabel("mean TTFT at the trace's own rate, s", fontsize=8)
    ax.grid(axis="x", color="#e6e6e6", linewidth=0.6)
