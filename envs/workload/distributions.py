"""Families of distributions, for whatever a workload leaves to chance.

The same families describe lengths (whole numbers of tokens or turns: `lengths.py`) and durations
(seconds: `durations.py`); those two say how a family's draws become values of their kind. To add a
family, write a class with the members of `Family` and name it in `Length` or `Duration`.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from prefixgym.envs.workload.fields import check_number
from prefixgym.envs.workload.popularity import choose


class Family(Protocol):
    """A distribution over the real numbers, whose draws are pulled to `low` and `high`."""

    @property
    def low(self) -> float | None:
        """What falls below it counts as it; None: the least value that the parameter may have."""

    @property
    def high(self) -> float | None:
        """What exceeds it counts as it; None: nothing does."""

    def draw(self, generator: np.random.Generator, size: int) -> NDArray[np.float64]:
        """`size` independent values, before the limits."""

    def share_below(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """P(X < value) before the limits, where no value has a probability of its own."""


def _check_limits(low: float | None, high: float | None) -> None:
    if low is not None:
        check_number("low", low, 0)
    if high is not None:
        check_number("high", high, low or 0)


@dataclass(frozen=True)
class LogNormal:
    """exp(N(ln median, sigma²)); its mean before the limits is median · exp(sigma² / 2).

    Attributes:
        median: half of the values lie below.
        sigma: standard deviation of the logarithm.
        high: greatest value; lengths must have one.
        low: least value; by default 1 token, or 0 seconds.
    """

    median: float
    sigma: float
    high: float | None = None
    low: float | None = None

    def __post_init__(self) -> None:
        check_number("median", self.median, 0, above=True)
        check_number("sigma", self.sigma, 0, above=True)
        _check_limits(self.low, self.high)

    def draw(self, generator: np.random.Generator, size: int) -> NDArray[np.float64]:
        """See `Family.draw`."""
        return generator.lognormal(math.log(self.median), self.sigma, size)

    def share_below(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Family.share_below`."""
        share: NDArray[np.float64] = ndtr((np.log(value) - math.log(self.median)) / self.sigma)
        return share


@dataclass(frozen=True)
class Geometric:
    """P(n) = (1 − q) q^(n−1) for n = 1, 2, …, with q = 1 − 1/mean.

    Attributes:
        mean: before the limit.
        high: greatest value.
    """

    mean: float
    high: int

    def __post_init__(self) -> None:
        check_number("mean", self.mean, 1)
        check_number("high", self.high, 1)

    @property
    def low(self) -> int:
        """The least value."""
        return 1

    def draw(self, generator: np.random.Generator, size: int) -> NDArray[np.float64]:
        """See `Family.draw`."""
        return generator.geometric(1.0 / self.mean, size).astype(np.float64)

    def share_below(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Family.share_below`."""
        return 1.0 - (1.0 - 1.0 / self.mean) ** np.floor(value)


@dataclass(frozen=True)
class Empirical:
    """A measured distribution, given by its quantiles, with straight lines between them.

    p10 / p50 / p90 of 35 / 215 / 855 between 1 and 4,000 are `quantiles` (1, 35, 215, 855, 4000) at
    `levels` (0, 0.1, 0.5, 0.9, 1). Equal neighbours are a value with a probability of its own.

    Attributes:
        quantiles: values in ascending order, from the least to the greatest.
        levels: the share of all values below each, from 0 to 1; None: evenly spaced.
    """

    quantiles: Sequence[float]
    levels: Sequence[float] | None = None

    def __post_init__(self) -> None:
        _check_ascending("quantiles", self.quantiles, strict=False)
        if self.levels is None:
            return
        _check_ascending("levels", self.levels, strict=True)
        if len(self.levels) != len(self.quantiles):
            raise ValueError(
                f"levels: found {len(self.levels)} numbers, must be as many as quantiles, "
                f"{len(self.quantiles)}"
            )
        if self.levels[0] != 0 or self.levels[-1] != 1:
            raise ValueError(
                f"levels: found {self.levels[0]} … {self.levels[-1]}, must run from 0 to 1"
            )

    @property
    def low(self) -> float:
        """The least value."""
        return self.quantiles[0]

    @property
    def high(self) -> float:
        """The greatest value."""
        return self.quantiles[-1]

    def _levels(self) -> NDArray[np.float64]:
        if self.levels is None:
            return np.linspace(0.0, 1.0, len(self.quantiles))
        return np.asarray(self.levels, np.float64)

    def draw(self, generator: np.random.Generator, size: int) -> NDArray[np.float64]:
        """See `Family.draw`."""
        return np.interp(generator.random(size), self._levels(), self.quantiles)

    def share_below(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `Family.share_below`."""
        return np.interp(value, self.quantiles, self._levels())


@dataclass(frozen=True)
class Mixture:
    """One of several distributions, drawn anew for each value: a typed line, or a pasted file.

    Attributes:
        weights: how often each is drawn, in proportion.
        of: the distributions, in any form that the parameter itself may have.
    """

    weights: Sequence[float]
    of: Sequence[Any]

    def __post_init__(self) -> None:
        for name, items in (("weights", self.weights), ("of", self.of)):
            if not isinstance(items, (tuple, list)) or len(items) == 0:
                raise ValueError(f"{name}: found {items!r}, must be a list that is not empty")
        if len(self.weights) != len(self.of):
            raise ValueError(
                f"weights: found {len(self.weights)} numbers, must be as many as of, {len(self.of)}"
            )
        for index, weight in enumerate(self.weights):
            check_number(f"weights[{index}]", weight, 0, above=True)

    def shares(self) -> NDArray[np.float64]:
        """The weights, scaled to sum to 1."""
        weights = np.asarray(self.weights, np.float64)
        return weights / weights.sum()


class _Sampler(Protocol):
    """What a part of a mixture has become."""

    def sample(self, generator: np.random.Generator, size: int) -> NDArray[Any]:
        """`size` independent values."""


def sample_mixture(
    mixture: Mixture, parts: Sequence[_Sampler], generator: np.random.Generator, size: int
) -> NDArray[Any]:
    """`size` independent values, each from the part that a draw by weight picks."""
    part = choose(mixture.shares(), generator, size)
    samples = [
        sampler.sample(generator, int(np.count_nonzero(part == index)))
        for index, sampler in enumerate(parts)
    ]
    values = np.empty(size, samples[0].dtype)
    for index, sample in enumerate(samples):
        values[part == index] = sample
    return values


def _check_ascending(name: str, values: Sequence[float], *, strict: bool) -> None:
    if not isinstance(values, (tuple, list)) or len(values) < 2:
        raise ValueError(f"{name}: found {values!r}, must be a list of at least two numbers")
    for index, value in enumerate(values):
        check_number(f"{name}[{index}]", value, 0)
    for before, after in itertools.pairwise(values):
        if after < before or (strict and after == before):
            raise ValueError(f"{name}: found {after} after {before}, must ascend")
