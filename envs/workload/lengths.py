"""Lengths: whole numbers of tokens, turns or calls, each drawn from a distribution.

A `Length` is how a workload describes one: a number, a pair (low, high) for uniform, or a family of
`distributions.py`, whose draws are pulled to their limits and rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.distributions import (
    Empirical,
    Family,
    Geometric,
    LogNormal,
    Mixture,
    sample_mixture,
)
from prefixgym.envs.workload.fields import check_whole

MAX_LENGTH = 2**30 - 1
"""No length is greater, so that the sum of two fits in an int32."""

Length: TypeAlias = int | tuple[int, int] | LogNormal | Geometric | Empirical | Mixture
"""A fixed number, a uniform range (low, high), or a family of distributions."""


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


def mean(lengths: Distribution) -> float:
    """The expectation."""
    return float(lengths.probabilities() @ np.arange(lengths.low, lengths.high + 1))


@dataclass(frozen=True)
class _Uniform:
    """Every whole number from `low` to `high` is equally likely."""

    low: int
    high: int

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[np.int64]:
        if self.low == self.high:
            return np.full(size, self.low, np.int64)
        return generator.integers(self.low, self.high, size, endpoint=True)

    def probabilities(self) -> NDArray[np.float64]:
        count = self.high - self.low + 1
        return np.full(count, 1.0 / count)


@dataclass(frozen=True)
class _Rounded:
    """A family's draws, pulled to `low` or `high` where they fall outside, and rounded."""

    family: Family
    low: int
    high: int

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[np.int64]:
        values = self.family.draw(generator, size)
        return np.rint(np.clip(values, self.low, self.high)).astype(np.int64)

    def probabilities(self) -> NDArray[np.float64]:
        # n takes what rounds to it: from n − ½ to n + ½, and to ±∞ at the limits.
        below = self.family.share_below(np.arange(self.low, self.high, dtype=np.float64) + 0.5)
        return np.diff(below, prepend=0.0, append=1.0)


@dataclass(frozen=True)
class _Mixed:
    """A mixture of whole numbers."""

    mixture: Mixture
    parts: Sequence[Distribution]

    @property
    def low(self) -> int:
        return min(part.low for part in self.parts)

    @property
    def high(self) -> int:
        return max(part.high for part in self.parts)

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[np.int64]:
        return sample_mixture(self.mixture, self.parts, generator, size)

    def probabilities(self) -> NDArray[np.float64]:
        total = np.zeros(self.high - self.low + 1)
        for share, part in zip(self.mixture.shares(), self.parts, strict=True):
            total[part.low - self.low : part.high - self.low + 1] += share * part.probabilities()
        return total


def distribution(key: str, length: Length, least: int = 1) -> Distribution:
    """The distribution that `length` describes; ValueError names `key` if it can be < `least`."""
    if isinstance(length, Mixture):
        parts = [
            distribution(f"{key}.of[{index}]", part, least) for index, part in enumerate(length.of)
        ]
        return _Mixed(length, parts)
    if isinstance(length, (LogNormal, Geometric, Empirical)):
        if length.high is None:
            raise ValueError(f"{key}.high: missing, a length must have a greatest value")
        for value in length.quantiles if isinstance(length, Empirical) else ():
            check_whole(f"{key}.quantiles", value, least, MAX_LENGTH)
        low = (
            least
            if length.low is None
            else check_whole(f"{key}.low", length.low, least, MAX_LENGTH)
        )
        return _Rounded(length, low, check_whole(f"{key}.high", length.high, low, MAX_LENGTH))
    low, high = length if isinstance(length, tuple) and len(length) == 2 else (length, length)
    check_whole(key, low, least, MAX_LENGTH)
    check_whole(key, high, low, MAX_LENGTH)
    return _Uniform(low, high)
