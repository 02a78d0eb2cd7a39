"""Prefill as a service: what of its published figures follows from its published profile?

All that is not in `prfaas_case.FITTED` or assumed there is a prediction, and checked as one.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prefixgym.experiments.paper.prfaas_case import (
    HOMOGENEOUS,
    LENGTHS,
    LOADS,
    NAIVE,
    PRFAAS,
    PRICE,
    RATES,
    SHARE,
    SOURCE,
    THRESHOLD,
    TTFT,
    egress,
    queueing_rows,
    service,
    slow_link_rows,
    systems,
    threshold_rows,
)
from prefixgym.experiments.paper.prfaas_tables import fits_table, queueing_table, slow_table
from prefixgym.experiments.paper.published import Effort, Figure, Outcome, Result


def _figure(
    what: str, published: float, ours: float, within: float, because: str, unit: str = ""
) -> Figure:
    low, high = published * (1 - within), published * (1 + within)
    return Figure(what, SOURCE, published, ours, because, low, high, unit)


_PROFILE = "profile of four points: its interpolation moves this by up to 4 %"
_LINE = "prefill on H20 as a line, fitted to homogeneous latencies; the first table has other fits"


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Published beside ours."""
    model = service()
    best = model.optimal_threshold(PRFAAS)
    found = model.capacity(PRFAAS, best)
    homogeneous = model.capacity(HOMOGENEOUS, math.inf).total
    split = max(model.splits(4, 8), key=lambda s: s[2].total)[0]
    free = {s.name: model.seconds(s.threshold, s.deployment.bandwidth) for s in systems()}
    at = {(r["system"], r["at"]): r for r in rows if r["part"] == "load"}
    gain = {
        load: 100 * (1 - at["PrfaaS-PD", load]["ttft_p90"] / at["homogeneous", load]["ttft_p90"])
        for load in LOADS
    }
    cost = (32 * PRICE + 64) / 96
    checked = [
        _figure("mean prompt", 27.0, LENGTHS.mean() / 1e3, 0.03, "published rounded", "K tokens"),
        _figure(
            "share of requests above 19.4 K", SHARE, LENGTHS.share_above(THRESHOLD), 0.005,
            "nothing is open but whether K is 1,000 (then 0.496) or 1,024 (0.486)",
        ),
        _figure(
            "Λ_max, naive", RATES["naive"], model.capacity(NAIVE, 0.0).total, 0.05, _PROFILE, "/s",
        ),
        _figure(
            "mean TTFT, naive", TTFT["naive"][0], free["naive"].mean(), 0.05, _PROFILE, "s",
        ),
        _figure(
            "P90 TTFT, naive", TTFT["naive"][1], np.quantile(free["naive"], 0.9), 0.05, _PROFILE,
            "s",
        ),
        _figure("Λ_max, homogeneous", RATES["homogeneous"], homogeneous, 0.05, _LINE, "/s"),
        _figure(
            "optimal threshold", THRESHOLD / 1e3, best / 1e3, 0.1,
            "where two curves cross: 1 % of speed moves it by about 1 %; " + _LINE, "K tokens",
        ),
        _figure("Λ_max, PrfaaS-PD", RATES["PrfaaS-PD"], found.total, 0.05, _LINE, "/s"),
        _figure("the same / homogeneous", 1.54, found.total / homogeneous, 0.05, _LINE),
        _figure(
            "prefill instances of the best split of 8", 3, split.prefill, 0.0, "a whole number",
        ),
        _figure(
            "mean TTFT, PrfaaS-PD", TTFT["PrfaaS-PD"][0], free["PrfaaS-PD"].mean(), 0.05, _LINE,
            "s",
        ),
        _figure(
            "P90 TTFT, PrfaaS-PD", TTFT["PrfaaS-PD"][1], np.quantile(free["PrfaaS-PD"], 0.9), 0.05,
            _PROFILE, "s",
        ),
        _figure(
            "egress at Λ_max", 13.0, egress(found, best) / 1e9, 0.1,
            "published rounded, and KV between four points", "Gb/s",
        ),
    ]  # fmt: skip
    return [
        *checked,
        Figure(
            "P90 TTFT against homogeneous, simulated at 50 % of its capacity", SOURCE, -64.0,
            -gain[0.5], "the published load is not known, but below 80 % it makes 2 points",
            -69.0, -59.0, "%",
        ),
        Figure(
            "the same at 90 %", SOURCE, -64.0, -gain[0.9],
            "the published load is not known, and it matters here", unit="%",
        ),
        Figure(
            "throughput at equal cost", SOURCE, 15.0,
            100 * (found.total / homogeneous / cost - 1),
            f"prices are not published; ours with {PRICE:g} H20 an H200", unit="%",
        ),
    ]  # fmt: skip


def run(folder: Path, effort: Effort) -> Outcome:
    """All of it takes half a minute, whatever the effort."""
    rows = [*queueing_rows(), *threshold_rows(), *slow_link_rows()]

    def draw(path: Path) -> None:
        from prefixgym.experiments.paper.prfaas_plot import plot

        plot(rows, service(), PRFAAS, TTFT, path)

    tables = [fits_table(), queueing_table(rows), slow_table(rows)]
    return Outcome(tables, figures(rows), draw, rows)


RESULT = Result(
    "prfaas", "What does prefill bought from another cluster gain, and for which prompts?", run
)
