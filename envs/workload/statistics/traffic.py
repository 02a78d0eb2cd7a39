"""When requests come: rate, burstiness and drift (`traces.md` §3.1)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import TICKS_PER_SECOND, to_seconds
from prefixgym.envs.workload.statistics.timeline import Timeline
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.trace import batch_interval, spread_batches

WINDOWS = (1, 10, 60)
"""Widths in s of the windows in which arrivals are counted."""


@dataclass(frozen=True)
class Traffic:
    """Arrivals of a trace; figures that it is too short for are nan.

    Attributes:
        requests: rows.
        span: s from the first arrival to the last.
        rate: requests/s.
        prompt_token_rate: prompt tokens/s.
        gap_cv: coefficient of variation of the gaps between arrivals, as recorded.
        batch_interval: s between the stamps of a trace recorded in batches, 0 if it was not.
        gap_cv_spread: `gap_cv` once each batch is spread over its interval at random.
        ties: share of the gaps that are 0.
        dispersion: variance over mean of the counts in whole windows of so many seconds, as
            recorded; 1 is Poisson.
        peak: the most requests in a window of 60 s over the mean.
    """

    requests: int
    span: float
    rate: float
    prompt_token_rate: float
    gap_cv: float
    batch_interval: float
    gap_cv_spread: float
    ties: float
    dispersion: dict[str, float]
    peak: float


def window_counts(arrival: NDArray[np.int64], window: float) -> NDArray[np.int64]:
    """Arrivals in each whole window of `window` s since the first of these sorted ticks."""
    ticks = round(window * TICKS_PER_SECOND)
    since = arrival - arrival[0]
    return np.bincount(since // ticks)[: since[-1] // ticks]


def _variation(arrival: NDArray[np.int64]) -> float:
    gaps = np.diff(arrival)
    return float(gaps.std() / gaps.mean()) if arrival[-1] > arrival[0] else float("nan")


def traffic(line: Timeline) -> Traffic:
    """The figures of a timeline. Batches are spread with a fixed seed."""
    requests = line.tape.requests
    arrival = requests["arrival"]
    span = float(to_seconds(arrival[-1] - arrival[0]))
    interval = batch_interval(arrival)
    spread = spread_batches(arrival, interval, streams(0, 1)[0]) if interval > 0 else arrival
    counts = {window: window_counts(arrival, window) for window in WINDOWS}
    minutes = counts[60]
    tokens = requests["prompt_tokens"].astype(np.int64)
    return Traffic(
        requests=len(requests),
        span=span,
        rate=len(requests) / span if span > 0 else float("nan"),
        prompt_token_rate=float(tokens.sum() / span) if span > 0 else float("nan"),
        gap_cv=_variation(arrival),
        batch_interval=float(to_seconds(interval)),
        gap_cv_spread=_variation(spread),
        ties=float(np.mean(np.diff(arrival) == 0)) if len(arrival) > 1 else 0.0,
        dispersion={
            f"{window}s": float(count.var() / count.mean()) if count.sum() > 0 else float("nan")
            for window, count in counts.items()
        },
        peak=float(minutes.max() / minutes.mean()) if minutes.sum() > 0 else float("nan"),
    )
