"""The statistics of a trace as one picture."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prefixgym.envs.clock import TICKS_PER_SECOND, to_seconds
from prefixgym.envs.workload.statistics.lru_curve import lru_curve
from prefixgym.envs.workload.statistics.sharing import popularity
from prefixgym.envs.workload.statistics.summary import Study
from prefixgym.envs.workload.tape import NO_ROW

# Okabe and Ito's palette, apart for colour-blind readers.
_FIRST, _SECOND, _REFERENCE = "#0072B2", "#D55E00", "#777777"
_WINDOWS = 120
_CURVE_POINTS = 80
_CDF_POINTS = 2000


def plot_trace(study: Study, title: str, path: Path) -> None:
    """Write a PNG: arrivals, lengths, the LRU curve, popularity, turns and gaps."""
    figure = Figure(figsize=(13, 7.2))
    figure.subplots_adjust(0.05, 0.075, 0.99, 0.9, wspace=0.2, hspace=0.35)
    figure.suptitle(title, fontsize=12)
    panels = figure.subplots(2, 3)
    _arrivals(panels[0, 0], study)
    _lengths(panels[0, 1], study)
    _turns(panels[1, 1], study)
    _gaps(panels[1, 2], study)
    if len(study.parts.segment) > 0:
        _lru(panels[0, 2], study)
        _popularity(panels[1, 0], study)
    else:
        for panel in (panels[0, 2], panels[1, 0]):
            panel.text(0.5, 0.5, "the trace names no blocks", ha="center", color=_REFERENCE)
    for panel in panels.flat:
        panel.minorticks_off()  # of which logarithmic axes draw so many that they take seconds
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, linewidth=0.6)
    figure.savefig(path, dpi=130)


def _arrivals(panel: Axes, study: Study) -> None:
    requests = study.line.tape.requests
    time = to_seconds(requests["arrival"] - requests["arrival"][0])
    window = _round_window(float(time[-1]) / _WINDOWS)
    count = max(1, int(time[-1] // window))
    inside = time < count * window
    edges = np.arange(count + 1) * window
    rate = np.histogram(time[inside], edges)[0] / window
    unit, seconds = ("hours", 3600) if time[-1] > 3 * 3600 else ("minutes", 60)
    panel.stairs(rate, edges / seconds, color=_FIRST, linewidth=1.2, baseline=None)
    panel.set(xlabel=unit, ylabel="requests/s", ylim=(0, None))
    panel.set_title(f"Arrivals in windows of {window:,.0f} s", fontsize=10)


def _round_window(seconds: float) -> float:
    """The next of 1, 3, 15, 30, 60, 300, … s, in which Mooncake's batches of 3 s fit whole."""
    steps = (1, 3, 15, 30, 60, 300, 900, 3600, 6 * 3600)
    return next((float(step) for step in steps if step >= seconds), 24 * 3600.0)


def _cdf(panel: Axes, values: NDArray[np.float64], label: str, colour: str) -> None:
    """A cumulative distribution, thinned to what a picture can show."""
    share = np.linspace(0, 100, min(_CDF_POINTS, len(values)))
    panel.plot(np.percentile(values, share), share, color=colour, label=label, linewidth=1.4)


def _lengths(panel: Axes, study: Study) -> None:
    requests = study.line.tape.requests
    _cdf(panel, requests["prompt_tokens"].astype(np.float64), "prompt", _FIRST)
    _cdf(panel, requests["output_tokens"].astype(np.float64), "output", _SECOND)
    panel.set(xscale="log", xlabel="tokens", ylabel="% of the requests up to", ylim=(0, 100))
    panel.legend(frameon=False)
    panel.set_title("Lengths", fontsize=10)


def _lru(panel: Axes, study: Study) -> None:
    infinite = int(np.sum(study.parts.size[~study.parts.hit]))
    grid = np.unique(np.geomspace(min(100, infinite), infinite, _CURVE_POINTS).astype(int))
    curve = lru_curve(study.line, study.parts, grid.tolist())
    panel.plot(curve.capacity, 100 * np.array(curve.block_hit), color=_FIRST, linewidth=1.6)
    ceiling = 100 * curve.block_hit[-1]
    panel.axhline(ceiling, color=_REFERENCE, linewidth=0.9, linestyle=":")
    panel.text(
        curve.capacity[0], ceiling, f"infinite: {ceiling:.1f} %", va="bottom", color=_REFERENCE
    )
    block_size = study.line.tape.block_size
    panel.set(
        xscale="log",
        xlabel=f"capacity in blocks of {block_size} tokens",
        ylabel="block hit, %",
        ylim=(0, min(105.0, max(1.0, 1.15 * ceiling))),
    )
    panel.set_title("One LRU cache", fontsize=10)


def _popularity(panel: Axes, study: Study) -> None:
    parts = study.parts
    uses = np.bincount(parts.segment, minlength=parts.num_segments)
    blocks = np.zeros(parts.num_segments, np.int64)
    blocks[parts.segment] = parts.size
    rank, count = popularity(uses, blocks, 10_000)
    panel.plot(rank, count, color=_FIRST, label="blocks", linewidth=1.6)
    begins = parts.segment[parts.first[:-1][np.diff(parts.first) > 0]]
    root_uses = np.bincount(begins, minlength=parts.num_segments)
    rank, count = popularity(root_uses, np.ones_like(root_uses), 10_000)
    panel.plot(
        rank, count, color=_SECOND, label="first blocks", marker="o", markersize=3, linewidth=1.0
    )
    panel.set(xscale="log", yscale="log", xlabel="rank", ylabel="requests that hold it")
    panel.legend(frameon=False)
    panel.set_title("Popularity", fontsize=10)


def _turns(panel: Axes, study: Study) -> None:
    turns = np.bincount(study.lineage.session)
    number = np.arange(1, turns.max() + 1)
    reach = np.array([np.mean(turns >= n) for n in number])
    panel.plot(number, 100 * reach, color=_FIRST, marker="o", markersize=3, linewidth=1.2)
    panel.set(xscale="log", yscale="log", xlabel="turns", ylabel="% of the sessions with so many")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter("{x:g}")
    how = "derived" if study.lineage.derived else "as stated"
    panel.set_title(f"Sessions, {how}", fontsize=10)


def _gaps(panel: Axes, study: Study) -> None:
    arrival = study.line.tape.requests["arrival"]
    gaps, blocks = study.reuse_gaps()
    least = 0.1  # s, for all shorter ones, so that gaps of 0 have a place on the logarithmic axis
    if len(gaps) > 0:
        order = np.argsort(gaps)
        share = 100 * np.cumsum(blocks[order]) / blocks.sum()
        thin = np.linspace(0, len(order) - 1, min(_CDF_POINTS, len(order))).astype(int)
        panel.plot(
            np.maximum(gaps[order][thin], least),
            share[thin],
            color=_FIRST,
            label="since a block's last use",
            linewidth=1.4,
        )
    later = np.flatnonzero(study.lineage.parent != NO_ROW)
    if len(later) > 0:
        between = arrival[later] - arrival[study.lineage.parent[later]]
        seconds = np.maximum(between / TICKS_PER_SECOND, least)
        _cdf(panel, seconds, "between turns", _SECOND)
    panel.set(xscale="log", xlabel="s", ylabel="% up to", ylim=(0, 100))
    if panel.get_lines():
        panel.legend(frameon=False)
    panel.set_title("Gaps; hot blocks left out", fontsize=10)
