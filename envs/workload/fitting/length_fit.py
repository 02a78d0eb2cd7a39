"""The simplest distribution of `lengths.py` that describes measured lengths well.

Tried in this order: one value, a lognormal, a mixture of two lognormals (a typed line or a pasted
document), and last the measured quantiles themselves, which always fit and explain nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixgym.envs.workload.distributions import Empirical, LogNormal, Mixture
from prefixgym.envs.workload.lengths import Length

CLOSE_ENOUGH = 0.03
_EM_STEPS = 300
_EM_VALUES = 5000
_LEAST_SIGMA = 0.05
LEVELS = (0, 0.01, 0.025, *(round(0.05 * k, 2) for k in range(1, 20)), 0.975, 0.99, 0.995, 1)


@dataclass(frozen=True)
class LengthFit:
    """A distribution and how far it is off.

    Attributes:
        length: as generators take it.
        family: what it is, in words.
        distance: Kolmogorov-Smirnov: the greatest difference of the two shares up to any length.
    """

    length: Length
    family: str
    distance: float

    def __str__(self) -> str:
        return f"{self.family}, distance {100 * self.distance:.1f} %"


def fit_length(values: ArrayLike, least: int = 1) -> LengthFit:
    """The first of the candidates within 3 % of the measured distribution, or the quantiles.

    Args:
        values: measured whole numbers, at least one; those below `least` count as `least`.
        least: the least length that the parameter may have.
    """
    measured = np.maximum(np.asarray(values, np.int64), least)
    low, high = int(measured.min()), int(measured.max())
    if low == high:
        return LengthFit(low, "constant", 0.0)
    if low > 0:
        for family, length in _parametric(measured, low, high):
            found = LengthFit(length, family, _distance(measured, length))
            if found.distance <= CLOSE_ENOUGH:
                return found
    quantiles = empirical(measured)
    return LengthFit(quantiles, "measured quantiles", _distance(measured, quantiles))


def empirical(measured: NDArray[np.int64]) -> Empirical:
    """Quantiles of measured lengths, close together at the tails."""
    quantiles = np.rint(np.quantile(measured, LEVELS)).astype(int)
    return Empirical(tuple(quantiles.tolist()), LEVELS)


def _parametric(
    measured: NDArray[np.int64], low: int, high: int
) -> Iterator[tuple[str, LogNormal | Mixture]]:
    logs = np.log(measured)
    yield "lognormal", _lognormal(float(logs.mean()), float(logs.std()), low, high)
    weights, means, sigmas = two_normals(logs)
    parts = [_lognormal(m, s, low, high) for m, s in zip(means, sigmas, strict=True)]
    yield "two lognormals", Mixture(tuple(float(f"{w:.3f}") for w in weights), tuple(parts))


def _lognormal(mean: float, sigma: float, low: int, high: int) -> LogNormal:
    # Rounded to what a reader of the scenario file can take in; the fit is not that exact.
    sigma = max(_LEAST_SIGMA, sigma)
    return LogNormal(float(f"{math.exp(mean):.4g}"), float(f"{sigma:.3f}"), high, low)


def two_normals(
    values: NDArray[np.float64],
) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
    """Weights, means and deviations of a mixture of two normals, by expectation-maximisation.

    Starts from the lower and the upper half; every deviation is at least 0.05. Of many values, some
    5,000 evenly spaced ones stand for all.
    """
    values = np.sort(values)[:: max(1, len(values) // _EM_VALUES)]
    share = np.array([0.5, 0.5])
    mean = np.quantile(values, [0.25, 0.75])
    sigma = np.full(2, max(_LEAST_SIGMA, float(values.std()) / 2))
    for _ in range(_EM_STEPS):
        z = (values[:, None] - mean) / sigma
        density = share / sigma * np.exp(-0.5 * z * z) + 1e-300
        belongs = density / density.sum(axis=1, keepdims=True)
        weight = belongs.sum(axis=0) + 1e-12
        share = weight / len(values)
        mean = (belongs * values[:, None]).sum(axis=0) / weight
        spread = (belongs * (values[:, None] - mean) ** 2).sum(axis=0) / weight
        sigma = np.maximum(_LEAST_SIGMA, np.sqrt(spread))
    return tuple(share.tolist()), tuple(mean.tolist()), tuple(sigma.tolist())


def _distance(measured: NDArray[np.int64], length: LogNormal | Empirical | Mixture) -> float:
    points, counts = np.unique(measured, return_counts=True)
    fitted = _share_up_to(points, length)
    return float(np.max(np.abs(np.cumsum(counts) / len(measured) - fitted)))


def _share_up_to(
    points: NDArray[np.int64], length: LogNormal | Empirical | Mixture
) -> NDArray[np.float64]:
    """P(length ≤ point) for points no less than the least length; see `lengths._Rounded`."""
    if isinstance(length, Mixture):
        shares = [_share_up_to(points, part) for part in length.of]
        total: NDArray[np.float64] = length.shares() @ np.array(shares)
        return total
    assert length.high is not None
    return np.where(points >= length.high, 1.0, length.share_below(points.astype(np.float64) + 0.5))
