"""The replays of the loadaware study: balance against prefix hits, what was published and ours.

The study (`loadaware_testbed`) compares kvaware, which follows the cache alone, with loadaware,
which weighs cached tokens against load by β, on two engines. "Imbalance" is the busiest engine's
mean number of running requests over the other's, read every 5 s while a replay sends; a replay is
one observation, and changes are medians over replays paired between routers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.experiments.evaluate import play
from prefixgym.experiments.paper.loadaware_testbed import (
    PREFIXES,
    REPLAY_REQUESTS,
    WARM_UP_PASSES,
    Deployment,
    LmcacheRouter,
    Sweep,
)
from prefixgym.experiments.statistics import CONFIDENCE, RESAMPLES, Estimate

ARMS: Mapping[str, tuple[str, Mapping[str, float | str]]] = {
    # Clients send no session key, so both routers fall back on arrivals.
    "kvaware": ("kvaware", {"fallback": "qps"}),
    **{
        f"loadaware {beta:g}": ("loadaware", {"beta": beta, "fallback": "qps"})
        for beta in (0.0, 0.25, 0.5, 1.0, 2.0)
    },
    "round robin": ("round_robin", {}),
}
"""Routers and parameters by the name of their arm."""

REFERENCE = "kvaware"
SCRAPE_SECONDS = 5.0

HARDWARE = Deployment()
MEASURED_PACE = Deployment(slowdown=2.4)
"""As slow as the study's engines: this brings kvaware's mean end-to-end time to their 4.05 s."""


@dataclass(frozen=True)
class Published:
    """What the study reports of an arm: medians over 20 replays (hit rate: of all requests).

    Attributes:
        imbalance: busiest / idlest.
        change: median paired relative change of the imbalance from kvaware's; None: not given.
        hit_rate: of vLLM's prefix cache.
        ttft_p95: s; None: not given.
        throughput: requests/s; None: not given.
    """

    imbalance: float
    change: float | None
    hit_rate: float
    ttft_p95: float | None = None
    throughput: float | None = None


PUBLISHED = {
    "kvaware": Published(2.358, None, 0.912, 0.320, 14.3),
    "loadaware 0": Published(2.662, 0.128, 0.913),
    "loadaware 0.25": Published(3.218, None, 0.912),  # of a second sweep, kvaware's there is 2.452
    "loadaware 0.5": Published(1.249, -0.481, 0.907, 0.295, 14.4),
    "loadaware 1": Published(1.186, -0.537, 0.879, None, 14.4),
    "loadaware 2": Published(1.099, -0.539, 0.861, 0.336, 14.3),
    "round robin": Published(1.490, None, 0.682, 11.0, 10.4),
}


def run_arm(arm: str, deployment: Deployment) -> pl.DataFrame:
    """Play the whole sweep with the router of `arm`.

    Returns:
        One row a replay: arm, replay (from 1); imbalance; hit_rate (tokens); throughput
        (requests/s until the last answer); ttft_p50, ttft_p95 and e2e_mean (s); in_flight (mean,
        both engines); busiest_share (of requests).

    Raises:
        ValueError: there is no such arm.
    """
    if arm not in ARMS:
        raise ValueError(f"arm: found {arm!r}, allowed: {', '.join(ARMS)}")
    name, parameters = ARMS[arm]
    router: Router = make_router(name, parameters)
    if name != "round_robin":
        router = LmcacheRouter(router, deployment)
    cluster, sweep = deployment.cluster, Sweep(deployment.rate)
    # The objectives are asked for, not looked at.
    simulation = Simulation(cluster, sweep, [Slo(ttft=1.0, tpot=1.0)], record=True)
    play(simulation, router, cluster, [0])
    outcomes = np.sort(simulation.outcomes(0), order="row")[WARM_UP_PASSES * PREFIXES :]
    rows = [
        {"arm": arm, "replay": replay, **_measure(requests, float(sent[0]), float(sent[-1]))}
        for replay, (requests, sent) in enumerate(
            zip(outcomes.reshape(-1, REPLAY_REQUESTS), sweep.sent, strict=True), start=1
        )
    ]
    return pl.DataFrame(rows)


def _measure(requests: NDArray[np.void], first: float, last: float) -> dict[str, float]:
    """What `run_arm` returns of the replay that sends from `first` to `last`."""
    times = np.arange(first + SCRAPE_SECONDS / 2, last, SCRAPE_SECONDS)
    running = np.empty(2)
    for i in range(2):
        here = requests[requests["instance"] == i]
        is_running = (here["arrival"] <= times[:, np.newaxis]) & (
            times[:, np.newaxis] < here["end"]
        )
        running[i] = is_running.sum(axis=1).mean()
    share = np.bincount(requests["instance"], minlength=2) / len(requests)
    return {
        "imbalance": running.max() / running.min(),
        "hit_rate": requests["hit_tokens"].sum() / requests["prompt_tokens"].sum(),
        "throughput": len(requests) / (requests["end"].max() - first),
        "ttft_p50": float(np.quantile(requests["ttft"], 0.50)),
        "ttft_p95": float(np.quantile(requests["ttft"], 0.95)),
        "e2e_mean": (requests["end"] - requests["arrival"]).mean(),
        "in_flight": running.sum(),
        "busiest_share": share.max(),
    }


def reproduce(deployment: Deployment, arms: Sequence[str] = tuple(ARMS)) -> pl.DataFrame:
    """`run_arm` for each of `arms`, one below the other."""
    return pl.concat([run_arm(arm, deployment) for arm in arms])


def paired_change(replays: pl.DataFrame, arm: str, column: str = "imbalance") -> Estimate:
    """Median over replays of arm / kvaware − 1, with its bootstrap interval."""
    ours, reference = (
        replays.filter(pl.col("arm") == name).sort("replay")[column].to_numpy()
        for name in (arm, REFERENCE)
    )
    change = ours / reference - 1
    interval = stats.bootstrap(
        (change,),
        np.median,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(float(np.median(change)), float(interval.low), float(interval.high))


def summarize(replays: pl.DataFrame) -> pl.DataFrame:
    """One row an arm, in order: medians over replays beside what was published.

    Args:
        replays: of `reproduce`, kvaware among the arms.

    Returns:
        arm; imbalance, change (paired), low, high (its interval), fewer (replays less unbalanced
        than under kvaware), hit_rate (mean), throughput, ttft_p50, ttft_p95, e2e_mean, in_flight,
        busiest_share; and published_imbalance, published_change, published_hit_rate,
        published_ttft_p95, published_throughput.
    """
    reference = replays.filter(pl.col("arm") == REFERENCE).select("replay", "imbalance")
    rows = []
    for (arm,), own in replays.group_by("arm", maintain_order=True):
        change = paired_change(replays, str(arm))
        both = own.join(reference, on="replay", suffix="_reference")
        medians = own.select(pl.exclude("arm", "replay", "hit_rate").median()).row(0, named=True)
        rows.append(
            {
                "arm": arm,
                **medians,
                "hit_rate": own["hit_rate"].mean(),
                "change": change.value,
                "low": change.low,
                "high": change.high,
                "fewer": (both["imbalance"] < both["imbalance_reference"]).sum(),
                **{f"published_{name}": x for name, x in vars(PUBLISHED[str(arm)]).items()},
            }
        )
    return pl.DataFrame(rows)
