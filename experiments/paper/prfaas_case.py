"""Prefill as a service: the published case, what it leaves open, and what is simulated of it.

What was not published is in `FITTED` (to published figures) and in `DECODE_RATE`, `DECODE_SECONDS`
and `PRICE` (assumed).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from prefixgym.experiments.paper.prfaas_model import (
    Capacity,
    Curve,
    Deployment,
    Lengths,
    Line,
    Service,
    h200,
    kv_bytes,
)
from prefixgym.experiments.paper.prfaas_queues import (
    Congested,
    Fixed,
    Jobs,
    Plant,
    Played,
    Threshold,
    play,
    poisson_jobs,
)

SOURCE = "arXiv 2604.15039 v2"
LENGTHS = Lengths()
PRFAAS = Deployment(remote=4, prefill=3, decode=5)
HOMOGENEOUS = Deployment(remote=0, prefill=9, decode=3)
NAIVE = Deployment(remote=4, prefill=0, decode=8)
L90 = float(LENGTHS.quantiles(np.array([0.9]))[0])

# Published.
THRESHOLD, SHARE = 19_400.0, 0.496
RATES = {"PrfaaS-PD": 3.24, "homogeneous": 2.11, "naive": 2.45}
TTFT = {"PrfaaS-PD": (2.22, 3.51), "homogeneous": (4.44, 9.73), "naive": (1.74, 3.51)}
"""Mean and P90, s."""

FITTED = Line.through((LENGTHS.mean(), TTFT["homogeneous"][0]), (L90, TTFT["homogeneous"][1]))
"""Prefill on H20 was not published: it is fitted to the homogeneous cluster's two latencies, as if
nothing waited there. On a line, the mean belongs to the mean length and P90 to the 90th percentile
of the lengths."""

DECODE_RATE = RATES["homogeneous"] / HOMOGENEOUS.decode
"""Requests/s of one decode instance, assumed: three carry 2.11/s, so it is not less; and as 3/5 is
published as the best split, 4/4 carries no more than 3.24/s, so it is not above 0.81."""

DECODE_SECONDS = 1024 * 0.025
"""Assumed, 25 ms a token; with `DECODE_RATE` this makes 18 slots an instance."""

PRICE = 2.0
"""What an H200 costs in H20, assumed."""

_REQUESTS = 40_000
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
"""Of the homogeneous cluster's capacity."""
_SLOW = replace(PRFAAS, bandwidth=PRFAAS.bandwidth / 10)
SLOW_RATES = (2.0, 2.2, 2.4, 2.6, 2.7, 2.8, 2.9)
_BUSY = 0.75
"""Of PrfaaS-PD's capacity, where the threshold's curve is simulated."""


class System(NamedTuple):
    """A deployment and its threshold: 0 sends all to the remote cluster, inf none."""

    name: str
    deployment: Deployment
    threshold: float


def service(interpolation: str = "linear", local: Curve = FITTED, at_means: bool = True) -> Service:
    """The two clusters' speeds."""
    return Service(LENGTHS, h200(interpolation), local, DECODE_RATE, at_means)


def systems() -> list[System]:
    """What the source compares."""
    best = service().optimal_threshold(PRFAAS)
    return [
        System("PrfaaS-PD", PRFAAS, best),
        System("homogeneous", HOMOGENEOUS, math.inf),
        System("naive", NAIVE, 0.0),
    ]


def egress(found: Capacity, threshold: float) -> float:
    """Bits/s that leave the remote cluster at Λ_max."""
    sent = float(kv_bytes(np.asarray(LENGTHS.mean(low=threshold))))
    return 8 * sent * found.share * found.total


@functools.cache
def _requests() -> tuple[Any, ...]:
    arrival, tokens = poisson_jobs(LENGTHS, _REQUESTS, seed=0)
    return arrival, tokens, h200()(tokens), FITTED(tokens), kv_bytes(tokens)


def simulate(deployment: Deployment, threshold: Threshold, rate: float) -> Played:
    """The same requests at any rate and in any deployment."""
    arrival, tokens, remote, local, sent = _requests()
    slots = deployment.decode * round(DECODE_RATE * DECODE_SECONDS)
    plant = Plant(deployment.remote, deployment.prefill, slots, DECODE_SECONDS)
    jobs = Jobs(arrival / rate, tokens, remote, local, sent / deployment.bandwidth)
    return play(jobs, plant, threshold)


def _row(part: str, system: str, at: float, played: Played | None, **more: float) -> dict[str, Any]:
    row: dict[str, Any] = {"part": part, "system": system, "at": at}
    keys = ("ttft_mean", "ttft_p90", "remote_share", "threshold_mean", "capacity")
    row |= dict.fromkeys(keys)
    if played is not None:
        ttft = played.ttft()
        row["ttft_mean"], row["ttft_p90"] = float(ttft.mean()), float(np.quantile(ttft, 0.9))
        row["remote_share"] = float(played.away.mean())
        finite = np.isfinite(played.threshold)
        if finite.any():
            row["threshold_mean"] = float(played.threshold[finite].mean())
    return row | more


def queueing_rows() -> list[dict[str, Any]]:
    """Mean and P90 TTFT of the three systems at shares of the homogeneous cluster's capacity."""
    capacity = service().capacity(HOMOGENEOUS, math.inf).total
    return [
        _row("load", s.name, load, simulate(s.deployment, Fixed(s.threshold), load * capacity))
        for load in LOADS
        for s in systems()
    ]


def threshold_rows() -> list[dict[str, Any]]:
    """Capacity over the threshold, and P90 TTFT at `_BUSY` of the best."""
    model = service()
    best = model.optimal_threshold(PRFAAS)
    rate = _BUSY * model.capacity(PRFAAS, best).total
    rows = []
    for threshold in sorted([*np.geomspace(8_000, 50_000, 14).tolist(), best]):
        total = model.capacity(PRFAAS, threshold).total
        # Beyond what queues can carry, P90 would depend on how long one looks.
        carried = service(at_means=False).capacity(PRFAAS, threshold).total
        stable = rate < 0.97 * carried
        played = simulate(PRFAAS, Fixed(threshold), rate) if stable else None
        rows.append(_row("threshold", "PrfaaS-PD", threshold, played, capacity=total))
    return rows


def slow_link() -> dict[str, Callable[[], Threshold]]:
    """Thresholds to be compared where the link has a tenth of the bandwidth."""
    model = service()
    wide, narrow = model.optimal_threshold(PRFAAS), model.optimal_threshold(_SLOW)
    return {
        "fixed, as for 100 Gb/s": lambda: Fixed(wide),
        "rises under congestion": lambda: Congested(wide, most=LENGTHS.high),
        "rises unless local prefill waits longer": lambda: Congested(
            wide, most=LENGTHS.high, both_sides=True
        ),
        "fixed, as for 10 Gb/s": lambda: Fixed(narrow),
    }


def slow_link_rows() -> list[dict[str, Any]]:
    """P90 TTFT on that link, by rate."""
    return [
        _row("slow link", name, rate, simulate(_SLOW, rule(), rate))
        for name, rule in slow_link().items()
        for rate in SLOW_RATES
    ]
