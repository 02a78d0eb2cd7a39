"""The comparison of `closed_loop` as one picture."""

from collections.abc import Mapping
from pathlib import Path

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prefixgym.experiments.capacity import CAPACITY_ATTAINMENT

# Okabe and Ito's palette, apart for colour-blind readers; markers tell the routers apart in grey,
# dashes the loops.
_ROUTERS = (("#0072B2", "o"), ("#D55E00", "s"))
_LOOPS = {"closed": "-", "open": (0, (4, 2))}

_PANELS: tuple[tuple[str, str, float], ...] = (
    ("attainment", "calls within the objectives, %", 100),
    ("ttft_p99", "TTFT, 99th percentile, s", 1),
    ("early", "calls before their predecessor's end, %", 100),
    ("hit_rate", "prompt tokens found in cache, %", 100),
)


def plot_loops(summaries: Mapping[str, pl.DataFrame], path: Path) -> None:
    """Write a PNG: a row of panels for each kind of sessions, against the load offered.

    Args:
        summaries: of `closed_loop.summarize`, by kind.
        path: the file to write.
    """
    figure = Figure(figsize=(15, 3.3 * len(summaries) + 0.8))
    figure.set_layout_engine("constrained")
    grid = figure.subplots(len(summaries), len(_PANELS), squeeze=False)
    for row, (kind, summary) in zip(grid, summaries.items(), strict=True):
        for panel, (column, label, scale) in zip(row, _PANELS, strict=True):
            _plot_panel(panel, summary.with_columns(pl.col(column) * scale), column)
            panel.set_title(f"{kind}: {label}", fontsize=10)
    for panel in grid[-1]:
        panel.set_xlabel("calls/s offered to each instance")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    figure.savefig(path, dpi=130)


def _plot_panel(panel: Axes, summary: pl.DataFrame, column: str) -> None:
    routers = summary["router"].unique(maintain_order=True).to_list()
    for router, (colour, marker) in zip(routers, _ROUTERS, strict=False):
        for loop, dashes in _LOOPS.items():
            line = summary.filter(router=router, loop=loop).sort("offered")
            panel.plot(
                line["offered"],
                line[column],
                color=colour,
                marker=marker,
                markersize=4.5,
                markerfacecolor=colour if loop == "closed" else "white",
                linestyle=dashes,
                label=f"{router}, {loop} loop",
            )
    if column == "ttft_p99":
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
    else:
        panel.set_ylim(-3, 103)
    if column == "attainment":
        panel.axhline(100 * CAPACITY_ATTAINMENT, color="black", linewidth=0.6, linestyle=":")
    panel.minorticks_off()
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25, linewidth=0.6)
