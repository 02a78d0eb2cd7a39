"""The figure of `cachegen`: time to first token by bandwidth, and how many are late by deadline."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

_COLOURS = {
    "text": "#8c8c8c",
    "8-bit": "#E69F00",
    "CacheGen": "#0072B2",
    "coarser": "#56B4E9",
    "adaptive": "#009E73",
    "adaptive, told": "#009E73",
}
_PUBLISHED = "#cc0000"


def plot_cachegen(
    curve: Sequence[Mapping[str, float]],
    violations: Sequence[Mapping[str, float]],
    even: Mapping[str, float],
    text: tuple[float, float],
    path: Path,
) -> None:
    """Write a PNG.

    Args:
        curve: TTFT (s) of text and of each level at each "gbps".
        violations: share of late contexts of each way at each "deadline" (s).
        even: break-even bandwidth of levels, Gb/s.
        text: least and greatest TTFT of text at 3 Gb/s, over what is assumed about prefill.
        path: the file to write.
    """
    figure = Figure(figsize=(10.0, 3.9))
    figure.set_layout_engine("constrained")
    left, right = figure.subplots(1, 2)
    _draw_curve(left, curve, even, text)
    for name in (n for n in violations[0] if n != "deadline"):
        right.plot(
            [row["deadline"] for row in violations],
            [100 * row[name] for row in violations],
            color=_COLOURS[name],
            linewidth=2.2 if name.startswith("adaptive") else 1.4,
            linestyle=":" if "told" in name else "-",
            label=name,
        )
    right.set_xscale("log")
    right.set_xlabel("deadline, s")
    right.set_ylabel("late contexts, %")
    right.set_title("Bandwidth uniform in 0.1 to 10 Gb/s, drawn for each chunk", fontsize=10)
    right.legend(fontsize=8, frameon=False)
    for ax in (left, right):
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: _two_or_five(x)))
        ax.tick_params(which="both", labelsize=8)
        ax.grid(color="#e6e6e6", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def _draw_curve(
    ax: Axes,
    curve: Sequence[Mapping[str, float]],
    even: Mapping[str, float],
    text: tuple[float, float],
) -> None:
    gbps = np.array([row["gbps"] for row in curve])
    ax.fill_between(gbps, *text, color="#d9d9d9", linewidth=0, label="text, by what is assumed")
    for name in (n for n in curve[0] if n != "gbps"):
        values = [row[name] for row in curve]
        ax.plot(gbps, values, color=_COLOURS[name], linewidth=1.6, label=name)
    for name, bandwidth in even.items():
        height = np.interp(np.log(bandwidth), np.log(gbps), [row["text"] for row in curve])
        ax.plot(bandwidth, height, "o", color=_COLOURS[name], markersize=6, zorder=4)
        ax.annotate(
            f"{bandwidth:.2f} Gb/s", (bandwidth, height), xytext=(5, 6),
            textcoords="offset points", fontsize=8, color=_COLOURS[name],
        )  # fmt: skip
    at_three = float(np.interp(np.log(3.0), np.log(gbps), [row["text"] for row in curve]))
    ax.plot(
        [3.0, 3.0], [at_three / 4.7, at_three / 3.1], color=_PUBLISHED, linewidth=4,
        solid_capstyle="butt", zorder=5, label="published, 3.1 to 4.7 times below text",
    )  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(top=60)  # room for the legend
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    ax.yaxis.set_minor_formatter(FuncFormatter(lambda y, _: _two_or_five(y)))
    ax.set_xlabel("bandwidth, Gb/s")
    ax.set_ylabel("time to first token, s")
    ax.set_title("9,400 tokens of Mistral-7B on one A40", fontsize=10)
    ax.legend(fontsize=7.5, frameon=False, loc="upper right", ncols=2)


def _two_or_five(x: float) -> str:
    return f"{x:g}" if f"{x:.0e}"[0] in "25" else ""
