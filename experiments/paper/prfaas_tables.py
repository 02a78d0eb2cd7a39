"""Tables of `prfaas`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from prefixgym.experiments.paper.prfaas_case import (
    FITTED,
    HOMOGENEOUS,
    L90,
    LENGTHS,
    LOADS,
    NAIVE,
    PRFAAS,
    RATES,
    SLOW_RATES,
    THRESHOLD,
    TTFT,
    egress,
    service,
    slow_link,
    systems,
)
from prefixgym.experiments.paper.prfaas_model import INTERPOLATIONS, Curve, Line, h200
from prefixgym.experiments.table import Table


def fits_table() -> Table:
    """What other ways to fill in what is open would give."""
    mean = LENGTHS.mean()
    rate = HOMOGENEOUS.prefill / RATES["homogeneous"]
    scale = rate / float(h200()(np.asarray(mean)))
    short = LENGTHS.mean(high=THRESHOLD)
    needed = PRFAAS.prefill / RATES["PrfaaS-PD"] / (1 - LENGTHS.share_above(THRESHOLD))
    fits: dict[str, Curve] = {
        "a line: 4.44 s, 9.73 s (used)": FITTED,
        "a line: 2.11/s, 9.73 s": Line.through((mean, rate), (L90, TTFT["homogeneous"][1])),
        "a line: 2.11/s, 3.24/s at 19.4 K": Line.through((mean, rate), (short, needed)),
        f"{scale:.2f} x H200: 2.11/s": lambda tokens: scale * h200()(tokens),
    }
    cases: list[tuple[str, str, bool, Curve]] = [
        *((label, "linear", True, curve) for label, curve in fits.items()),
        *((f"used, H200 {kind}", kind, True, FITTED) for kind in INTERPOLATIONS[1:]),
        ("used, averaged over lengths", "linear", False, FITTED),
    ]
    rows = []
    for label, kind, at_means, curve in cases:
        model = service(kind, curve, at_means)
        best = model.optimal_threshold(PRFAAS)
        found = model.capacity(PRFAAS, best)
        base = model.capacity(HOMOGENEOUS, math.inf).prefill
        free = model.seconds(best, PRFAAS.bandwidth)
        rows.append(
            (
                label, f"{best / 1e3:.1f}", f"{found.share:.3f}", f"{found.total:.2f}",
                f"{base:.2f}", f"{100 * (found.total / base - 1):+.0f} %",
                f"{model.capacity(NAIVE, 0.0).compute:.2f}", f"{free.mean():.2f}",
                f"{np.quantile(free, 0.9):.2f}", f"{egress(found, best) / 1e9:.1f}",
            )
        )  # fmt: skip
    headings = (
        "prefill on H20, fitted to", "t, K", "p", "Λ_max /s", "homog. /s", "gain", "naive /s",
        "TTFT mean s", "P90 s", "egress Gb/s",
    )  # fmt: skip
    published = (
        "published",
        "19.4",
        "0.496",
        "3.24",
        "2.11",
        "+54 %",
        "2.45",
        "2.22",
        "3.51",
        "13",
    )
    return Table("What the open quantities decide", headings, [published, *rows])


def queueing_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The three systems by load."""
    names = [s.name for s in systems()]
    at = {(r["system"], r["at"]): r for r in rows if r["part"] == "load"}

    def cell(name: str, load: float) -> str:
        row = at[name, load]
        return f"{row['ttft_mean']:.2f} / {row['ttft_p90']:.2f}"

    body = [
        (
            f"{100 * load:.0f}",
            *(cell(name, load) for name in names),
            f"{100 * (at[names[0], load]['ttft_p90'] / at[names[1], load]['ttft_p90'] - 1):+.0f} %",
        )
        for load in LOADS
    ]
    published = (
        "published",
        *("{:.2f} / {:.2f}".format(*TTFT[name]) for name in names),
        "-64 %",
    )
    headings = ("load, % of the homogeneous cluster's capacity", *names, "P90, first / second")
    return Table("TTFT with queues, mean / P90, s", headings, [published, *body])


def slow_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Thresholds by rate, where the link is slow."""
    at = {(r["system"], r["at"]): r for r in rows if r["part"] == "slow link"}
    names = list(slow_link())
    body = [
        (
            f"{rate:g}",
            *(
                f"{at[n, rate]['ttft_p90']:.1f} ({at[n, rate]['threshold_mean'] / 1e3:.1f} K)"
                for n in names
            ),
        )
        for rate in SLOW_RATES
    ]
    return Table("A link of 10 Gb/s: P90 TTFT in s (mean threshold)", ("requests/s", *names), body)
