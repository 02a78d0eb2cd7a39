"""Arrival processes: when requests (or sessions) come, at a mean rate."""

from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER, to_seconds, to_ticks
from prefixgym.envs.workload.fields import check_number


class Arrivals(Protocol):
    """A renewal process: independent gaps of mean 1 / `rate`."""

    @property
    def rate(self) -> float:
        """Arrivals per second."""

    def at_rate(self, rate: float) -> Self:
        """The same process at another rate."""

    def ticks(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """The first `count` arrivals after time 0, in ticks, sorted.

        Drawing on from the same generator and adding the last tick continues the process.

        Raises:
            ValueError: the rate is so low that the arrivals leave the clock's range.
        """


def _to_arrivals(unit_gaps: NDArray[np.float64], rate: float) -> NDArray[np.int64]:
    """Arrivals whose gaps are `unit_gaps` / rate: another rate stretches time and no more."""
    gaps = unit_gaps / rate
    if not gaps.sum() < to_seconds(NEVER):
        raise ValueError(
            f"arrivals.rate: found {rate}, too low: {len(gaps)} arrivals must come within "
            f"{to_seconds(NEVER):g} s"
        )
    return np.cumsum(to_ticks(gaps))


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

    def ticks(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """The first `count` arrivals, see `Arrivals.ticks`."""
        return _to_arrivals(generator.standard_exponential(count), self.rate)


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

    def ticks(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """The first `count` arrivals, see `Arrivals.ticks`."""
        shape = self.cv**-2
        return _to_arrivals(generator.standard_gamma(shape, count) / shape, self.rate)
