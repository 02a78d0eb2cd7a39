"""Durations: seconds that a user thinks or a tool runs, each drawn from a distribution.

A `Duration` is how a workload describes one: a number, a pair (low, high) for uniform, or a family
of `distributions.py`, whose draws are pulled to their limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER, to_seconds, to_ticks
from prefixgym.envs.workload.distributions import (
    Empirical,
    Family,
    LogNormal,
    Mixture,
    sample_mixture,
)
from prefixgym.envs.workload.fields import check_number

Duration: TypeAlias = float | tuple[float, float] | LogNormal | Empirical | Mixture
"""A fixed time, a uniform range (low, high), or a family of distributions; all in seconds."""


class Distribution(Protocol):
    """Times of at least 0."""

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[np.float64]:
        """`size` independent values, in seconds."""


def sample_ticks(
    times: Distribution, generator: np.random.Generator, size: int
) -> NDArray[np.int64]:
    """`size` independent values in ticks; what exceeds the clock's range counts as NEVER."""
    # As seconds, NEVER is rounded up to the next tick.
    ticks = to_ticks(np.minimum(times.sample(generator, size), to_seconds(NEVER)))
    return np.minimum(ticks, NEVER)


@dataclass(frozen=True)
class _Uniform:
    """Every time from `low` to `high` is equally likely."""

    low: float
    high: float

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[np.float64]:
        if self.low == self.high:
            return np.full(size, float(self.low))
        return generator.uniform(self.low, self.high, size)


@dataclass(frozen=True)
class _Clipped:
    """A family's draws, pulled to `low` or `high` where they fall outside."""

    family: Family
    low: float
    high: float

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[np.float64]:
        return np.clip(self.family.draw(generator, size), self.low, self.high)


@dataclass(frozen=True)
class _Mixed:
    """A mixture of times."""

    mixture: Mixture
    parts: Sequence[Distribution]

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[np.float64]:
        return sample_mixture(self.mixture, self.parts, generator, size)


def duration(key: str, time: Duration) -> Distribution:
    """The distribution that `time` describes; ValueError names `key` if it is none, or negative."""
    if isinstance(time, Mixture):
        return _Mixed(time, [duration(f"{key}.of[{i}]", part) for i, part in enumerate(time.of)])
    if isinstance(time, (LogNormal, Empirical)):
        return _Clipped(time, time.low or 0.0, np.inf if time.high is None else time.high)
    low, high = time if isinstance(time, tuple) and len(time) == 2 else (time, time)
    check_number(key, low, 0)
    check_number(key, high, low)
    return _Uniform(low, high)
