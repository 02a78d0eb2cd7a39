"""Bursts: stretches of one length that begin at random, in steady state from 0 on."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.fields import check_number


def check_bursts(path: str, every: float, duration: float) -> None:
    """Raise ValueError unless 0 < `duration` < `every`; `path` comes before the name of either."""
    check_number(f"{path}duration", duration, 0, above=True)
    check_number(f"{path}every", every, duration, above=True)


def burst_starts(
    generator: np.random.Generator, every: float, duration: float, until: float
) -> NDArray[np.float64]:
    """Where bursts begin that are not over at 0, up to the first start after `until`.

    Between the end of a burst and the start of the next lies an exponential time of mean
    `every` − `duration`. A larger `until` only adds starts.
    """
    # At 0 a burst is under way with probability duration / every, anywhere in its course; else
    # the quiet time that remains is exponential like any other.
    place = generator.random() * every
    quiet = every - duration
    starts = np.array([-place if place < duration else generator.exponential(quiet)])
    while starts[-1] <= until:
        count = int((until - starts[-1]) / every) + 8
        gaps = duration + generator.exponential(quiet, count)
        starts = np.concatenate([starts, starts[-1] + np.cumsum(gaps)])
    return starts[: np.searchsorted(starts, until, side="right") + 1]
