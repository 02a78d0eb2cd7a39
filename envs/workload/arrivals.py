"""Arrival processes: when requests (or sessions) come, at a mean rate.

Those here are renewal processes, whose gaps are independent and look alike at all times. Load that
rises and falls is laid over them in `varying_load.py`.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from prefixgym.envs.clock import NEVER, to_seconds, to_ticks
from prefixgym.envs.workload.fields import check_number


class Arrivals(Protocol):
    """A point process on the times after 0."""

    @property
    def rate(self) -> float:
        """Arrivals per second, in the long run."""

    def at_rate(self, rate: float) -> Self:
        """The same process at another rate."""

    def ticks(
        self, generator: np.random.Generator, count: int, since: int = 0
    ) -> NDArray[np.int64]:
        """The first `count` arrivals after time `since`, in ticks, sorted.

        Drawing on from the same generator, since the last tick, continues the process.

        Raises:
            ValueError: the rate is so low that the arrivals leave the clock's range.
        """


class Renewal(Arrivals, Protocol):
    """A process of independent gaps of mean 1 / `rate`."""

    def unit_gaps(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        """`count` gaps of the process at a rate of 1."""


def check_reach(seconds: float, rate: float, count: int) -> None:
    """Raise ValueError if `count` arrivals at `rate` take longer than the clock can tell."""
    if not seconds < to_seconds(NEVER):
        raise ValueError(
            f"arrivals.rate: found {rate}, too low: {count} arrivals must come within "
            f"{to_seconds(NEVER):g} s"
        )


def _renewal_ticks(
    process: Renewal, generator: np.random.Generator, count: int, since: int
) -> NDArray[np.int64]:
    """Arrivals whose gaps are unit gaps / rate: another rate stretches time and no more."""
    gaps = process.unit_gaps(generator, count) / process.rate
    check_reach(float(to_seconds(since)) + float(gaps.sum()), process.rate, count)
    return since + np.cumsum(to_ticks(gaps))


@dataclass(frozen=True)
class Poisson:
    """Exponential gaps; within minutes real chat traffic is nearly Poisson (`traces.md` §3.1).

    Attributes:
        rate: arrivals per second.
    """

    rate: float

    def __post_init__(self) -> None:
        check_number("arrivals.rate", self.rate, 0, above=True)

    def at_rate(self, rate: float) -> "Poisson":
        """The same process at another rate."""
        return replace(self, rate=rate)

    def unit_gaps(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        """See `Renewal.unit_gaps`."""
        return generator.standard_exponential(count)

    def ticks(
        self, generator: np.random.Generator, count: int, since: int = 0
    ) -> NDArray[np.int64]:
        """See `Arrivals.ticks`."""
        return _renewal_ticks(self, generator, count, since)


@dataclass(frozen=True)
class Gamma:
    """Gamma-distributed gaps of shape 1 / cv²: bursty for cv > 1, regular for cv < 1.

    Single clients of production services have cv of 0.7 to 5 (`traces.md` §3.1, ServeGen).

    Attributes:
        rate: arrivals per second.
        cv: coefficient of variation of the gaps; 1 is Poisson.
    """

    rate: float
    cv: float

    def __post_init__(self) -> None:
        check_number("arrivals.rate", self.rate, 0, above=True)
        check_number("arrivals.cv", self.cv, 0, above=True)

    def at_rate(self, rate: float) -> "Gamma":
        """The same process at another rate."""
        return replace(self, rate=rate)

    def unit_gaps(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        """See `Renewal.unit_gaps`."""
        shape = self.cv**-2
        return generator.standard_gamma(shape, count) / shape

    def ticks(
        self, generator: np.random.Generator, count: int, since: int = 0
    ) -> NDArray[np.int64]:
        """See `Arrivals.ticks`."""
        return _renewal_ticks(self, generator, count, since)


_WEIBULL_SHAPES = (0.1, 50.0)


def _weibull_cv(shape: float) -> float:
    """cv² = Γ(1 + 2/k) / Γ(1 + 1/k)² − 1."""
    return math.sqrt(math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 - 1)


_WEIBULL_CVS = (_weibull_cv(_WEIBULL_SHAPES[1]), _weibull_cv(_WEIBULL_SHAPES[0]))


@functools.cache
def weibull_shape(cv: float) -> float:
    """The shape of a Weibull distribution with this coefficient of variation.

    Raises:
        ValueError: cv is not between 0.025 and 429, those of the shapes 50 and 0.1.
    """
    least, most = _WEIBULL_CVS
    if not least <= cv <= most:
        raise ValueError(f"arrivals.cv: found {cv}, must be between {least:.3f} and {most:.0f}")
    low, high = _WEIBULL_SHAPES
    return float(brentq(lambda shape: _weibull_cv(shape) - cv, low, high))


@dataclass(frozen=True)
class Weibull:
    """Weibull-distributed gaps: a heavier tail than `Gamma` of the same cv > 1, and fewer ties.

    A third of the client windows of production services fit it better (`traces.md` §3.1, ServeGen).

    Attributes:
        rate: arrivals per second.
        cv: coefficient of variation of the gaps; 1 is Poisson.
    """

    rate: float
    cv: float

    def __post_init__(self) -> None:
        check_number("arrivals.rate", self.rate, 0, above=True)
        check_number("arrivals.cv", self.cv, 0, above=True)
        weibull_shape(self.cv)

    def at_rate(self, rate: float) -> "Weibull":
        """The same process at another rate."""
        return replace(self, rate=rate)

    def unit_gaps(self, generator: np.random.Generator, count: int) -> NDArray[np.float64]:
        """See `Renewal.unit_gaps`."""
        shape = weibull_shape(self.cv)
        return generator.weibull(shape, count) / math.gamma(1 + 1 / shape)

    def ticks(
        self, generator: np.random.Generator, count: int, since: int = 0
    ) -> NDArray[np.int64]:
        """See `Arrivals.ticks`."""
        return _renewal_ticks(self, generator, count, since)
