"""The figure of `loadaware`: imbalance and prefix hits over β, published beside ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_OURS, _PUBLISHED = "#0072B2", "#cc0000"


def plot_loadaware(arms: Mapping[str, Mapping[str, Any]], betas: Sequence[str], path: Path) -> None:
    """Write a PNG.

    Args:
        arms: the rows of `loadaware_replays.summarize` by arm.
        betas: those of the sweep, in order.
        path: the file to write.
    """
    figure = Figure(figsize=(8.2, 3.3))
    figure.set_layout_engine("constrained")
    left, right = figure.subplots(1, 2)
    _draw(left, arms, betas, "imbalance", 1.0, "running requests, busier / other engine")
    left.set_ylim(bottom=1.0)
    _draw(right, arms, betas, "hit_rate", 100.0, "prefix hits, % of tokens")
    left.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)


def _draw(
    ax: Axes,
    arms: Mapping[str, Mapping[str, Any]],
    betas: Sequence[str],
    column: str,
    scale: float,
    label: str,
) -> None:
    names = [*(f"loadaware {beta}" for beta in betas)]
    labels = ["kvaware", *betas, "round\nrobin"]
    for key, colour, style, who in (
        (column, _OURS, "o-", "ours"),
        (f"published_{column}", _PUBLISHED, "x--", "published"),
    ):
        along = [scale * arms[name][key] for name in names]
        ax.plot(range(1, len(betas) + 1), along, style, color=colour, markersize=6, label=who)
        apart = [scale * arms[name][key] for name in ("kvaware", "round robin")]
        ax.plot([0, len(betas) + 1], apart, style[0], color=colour, markersize=6)
    ax.set_xticks(range(len(labels)), labels, fontsize=8)
    ax.set_xlabel("β of loadaware, between the routers that it is compared with", fontsize=8)
    ax.set_ylabel(label, fontsize=8)
    ax.tick_params(axis="y", labelsize=8)
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
