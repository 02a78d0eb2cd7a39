"""Lengths: distributions of whole numbers, for the parts of a prompt and the turns of a session.

A `Length` is how a workload describes one: a number, a pair (low, high) for uniform, or one of the
distributions below. To add a distribution, write a class with the four members of `Distribution`
and name it in `Length`.
"""

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from prefixgym.envs.workload.fields import check_number, check_whole

MAX_LENGTH = 2**30 - 1
"""No length is greater, so that the sum of two fits in an int32."""


class Distribution(Protocol):
    """Whole numbers between `low` and `high`, both included."""

    @property
    def low(self) -> int:
        """The least value."""

    @property
    def high(self) -> int:
        """The greatest value."""

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[np.int64]:
        """`size` independent values."""

    def probabilities(self) -> NDArray[np.float64]:
        """Probabilities of low, low + 1, …, high."""


@dataclass(frozen=True)
class Uniform:
    """Every whole number from `low` to `high` is equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        check_whole("low", self.low, 0, MAX_LENGTH)
        check_whole("high", self.high, self.low, MAX_LENGTH)

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[np.int64]:
        """`size` independent values."""
        if self.low == self.high:
            return np.full(size, self.low, np.int64)
        return generator.integers(self.low, self.high, size, endpoint=True)

    def probabilities(self) -> NDArray[np.float64]:
        """Probabilities of low, low + 1, …, high."""
        count = self.high - self.low + 1
        return np.full(count, 1.0 / count)


@dataclass(frozen=True)
class LogNormal:
    """Rounded exp(N(ln median, sigma²)), pulled to `low` or `high` where it falls outside.

    Its mean before the limits is median · exp(sigma² / 2).
    """

    median: float
    sigma: float
    high: int
    low: int = 1

    def __post_init__(self) -> None:
        check_number("median", self.median, 0, above=True)
        check_number("sigma", self.sigma, 0, above=True)
        check_whole("low", self.low, 0, MAX_LENGTH)
        check_whole("high", self.high, self.low, MAX_LENGTH)

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[np.int64]:
        """`size` independent values."""
        values = generator.lognormal(math.log(self.median), self.sigma, size)
        return np.rint(np.clip(values, self.low, self.high)).astype(np.int64)

    def probabilities(self) -> NDArray[np.float64]:
        """Probabilities of low, low + 1, …, high."""
        # n takes what rounds to it: from n − ½ to n + ½, and to ±∞ at the limits.
        edges = np.arange(self.low, self.high) + 0.5
        below = ndtr((np.log(edges) - math.log(self.median)) / self.sigma)
        return np.diff(below, prepend=0.0, append=1.0)


@dataclass(frozen=True)
class Geometric:
    """P(n) = (1 − q) q^(n−1) from n = 1, q = 1 − 1/mean; what exceeds `high` counts as `high`."""

    mean: float
    high: int

    def __post_init__(self) -> None:
        check_number("mean", self.mean, 1)
        check_whole("high", self.high, 1, MAX_LENGTH)

    @property
    def low(self) -> int:
        """The least value."""
        return 1

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[np.int64]:
        """`size` independent values."""
        return np.minimum(generator.geometric(1.0 / self.mean, size), self.high)

    def probabilities(self) -> NDArray[np.float64]:
        """Probabilities of 1, 2, …, high."""
        # P(n) = P(≥ n) − P(≥ n + 1), and nothing lies beyond `high`.
        at_least = (1.0 - 1.0 / self.mean) ** np.arange(self.high)
        return -np.diff(at_least, append=0.0)


Length: TypeAlias = int | tuple[int, int] | LogNormal | Geometric
"""A fixed number, a uniform range (low, high), or a distribution."""


def distribution(key: str, length: Length, least: int = 1) -> Distribution:
    """The distribution that `length` describes; ValueError names `key` if it can be < `least`."""
    found: Distribution
    if isinstance(length, (LogNormal, Geometric)):
        found = length
    else:
        low, high = length if isinstance(length, tuple) and len(length) == 2 else (length, length)
        check_whole(key, low, least, MAX_LENGTH)
        check_whole(key, high, low, MAX_LENGTH)
        found = Uniform(low, high)
    if found.low < least:
        raise ValueError(f"{key}: found {length} from {found.low}, must be at least {least}")
    return found
