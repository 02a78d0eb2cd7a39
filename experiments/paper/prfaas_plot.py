"""The figure of `prfaas`: capacity and waiting by threshold and load, and on a slow link."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from prefixgym.experiments.paper.prfaas_model import Deployment, Service

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#E69F00")
_PUBLISHED = "#cc0000"

Rows = Sequence[Mapping[str, Any]]


def plot(
    rows: Rows,
    service: Service,
    deployment: Deployment,
    published: Mapping[str, tuple[float, float]],
    path: Path,
) -> None:
    """Write a PNG.

    Args:
        rows: of the CSV.
        service: speeds, for the curves of capacity.
        deployment: PrfaaS-PD's.
        published: mean and P90 TTFT by system, s.
        path: the file to write.
    """
    figure = Figure(figsize=(10.5, 7.6), layout="constrained")
    axes = figure.subplots(2, 2)
    _capacity(axes[0, 0], service, deployment)
    _thresholds(axes[0, 1], [r for r in rows if r["part"] == "threshold"])
    _loads(axes[1, 0], [r for r in rows if r["part"] == "load"], published)
    _slow_link(axes[1, 1], [r for r in rows if r["part"] == "slow link"])
    for ax in axes.flat:
        ax.grid(color="#e6e6e6", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.tick_params(which="both", labelsize=8)
        ax.legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=130)


def _capacity(ax: Axes, service: Service, deployment: Deployment) -> None:
    thresholds = np.linspace(6_000, 40_000, 120)
    found = [service.capacity(deployment, float(t)) for t in thresholds]
    for name, label, color in (
        ("remote", "remote prefill, 4 x H200", _COLORS[0]),
        ("prefill", "local prefill, 3 x H20", _COLORS[1]),
        ("decode", "decode, 5 x H20", _COLORS[2]),
    ):
        ax.plot(thresholds / 1e3, [getattr(c, name) for c in found], color=color, label=label)
    ax.plot(
        thresholds / 1e3, [c.total for c in found], color="#000000", linewidth=3, alpha=0.25,
        label="Λ_max, the least",
    )  # fmt: skip
    best = service.optimal_threshold(deployment)
    ax.plot(
        best / 1e3, service.capacity(deployment, best).total, "o", color="#000000",
        label=f"optimum, {best / 1e3:.1f} K",
    )  # fmt: skip
    ax.plot(
        19.4, 3.24, "x", color=_PUBLISHED, markersize=9, markeredgewidth=2,
        label="published, 19.4 K",
    )  # fmt: skip
    ax.set_ylim(0, 7)
    ax.set_xlabel("threshold, K tokens", fontsize=8)
    ax.set_ylabel("requests/s", fontsize=8)
    ax.set_title("What each part carries", fontsize=10, fontweight="bold", loc="left")


def _thresholds(ax: Axes, rows: Rows) -> None:
    stable = [r for r in rows if r["ttft_p90"] is not None]
    best = max(rows, key=lambda r: r["capacity"])["at"] / 1e3
    for key, label, color in (("ttft_p90", "P90", _COLORS[0]), ("ttft_mean", "mean", _COLORS[2])):
        ax.plot(
            [r["at"] / 1e3 for r in stable], [r[key] for r in stable], "o-", color=color,
            markersize=4, label=label,
        )  # fmt: skip
    ax.axvline(best, color="#000000", linewidth=1, linestyle=":", label="optimum of the model")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("threshold, K tokens", fontsize=8)
    ax.set_ylabel("TTFT, s", fontsize=8)
    ax.set_title(
        "With queues, at 75 % of the best capacity", fontsize=10, fontweight="bold", loc="left"
    )


def _loads(ax: Axes, rows: Rows, published: Mapping[str, tuple[float, float]]) -> None:
    for name, color in zip(published, _COLORS, strict=False):
        own = [r for r in rows if r["system"] == name]
        loads = [100 * r["at"] for r in own]
        ax.plot(
            loads, [r["ttft_p90"] for r in own], "o-", color=color, markersize=4,
            label=f"{name}, P90",
        )  # fmt: skip
        ax.plot(
            loads, [r["ttft_mean"] for r in own], "o--", color=color, markersize=3, linewidth=1,
            label=f"{name}, mean",
        )  # fmt: skip
        ax.plot(
            [24, 24], published[name], "x", color=color, markersize=7, markeredgewidth=2,
        )  # fmt: skip
    ax.plot([], [], "x", color="#666666", label="published, load not known")
    ax.set_yscale("log")
    _plain(ax)
    ax.set_ylim(1.5, 100)  # room for the legend
    ax.set_xlabel("load, % of the homogeneous cluster's capacity", fontsize=8)
    ax.set_ylabel("TTFT, s", fontsize=8)
    ax.set_title("The same requests on each cluster", fontsize=10, fontweight="bold", loc="left")


def _slow_link(ax: Axes, rows: Rows) -> None:
    names = list(dict.fromkeys(r["system"] for r in rows))
    for name, color in zip(names, ("#8c8c8c", _COLORS[1], _COLORS[0], "#000000"), strict=True):
        own = [r for r in rows if r["system"] == name]
        style = "--" if name.startswith("fixed") else "-"
        ax.plot(
            [r["at"] for r in own], [r["ttft_p90"] for r in own], f"o{style}", color=color,
            markersize=4, label=f"threshold {name}",
        )  # fmt: skip
    ax.set_yscale("log")
    _plain(ax)
    ax.set_ylim(0.8, 2000)  # room for the legend
    ax.set_xlabel("requests/s", fontsize=8)
    ax.set_ylabel("TTFT P90, s", fontsize=8)
    ax.set_title("A link of 10 Gb/s", fontsize=10, fontweight="bold", loc="left")


def _plain(ax: Axes) -> None:
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    ax.yaxis.set_minor_formatter(FuncFormatter(_two_and_five))


def _two_and_five(value: float, _: int | None) -> str:
    mantissa = value / 10 ** math.floor(math.log10(value))
    return f"{value:g}" if round(mantissa) in (2, 5) else ""
