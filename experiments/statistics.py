"""Interquartile means with stratified-bootstrap intervals, and paired comparisons of routers.

Source: Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(arXiv 2108.13264). A stratum is a scenario, a unit is one of its seeds: all loads of a seed are
drawn together, since they are the same requests at another X
are resampled with the same draws, so their difference is a paired one (common random numbers).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """A point estimate and its interval; the ends are nan where one seed allows no interval."""

    value: float
    low: float
    high: float

    def overlaps(self, other: "Estimate") -> bool:
        """True unless the two intervals are known and disjoint."""
        return not (self.low > other.high or other.low > self.high)


def interquartile_mean(values: ArrayLike) -> NDArray[np.float64]:
    """Mean of the middle half along the last axis: floor(n / 4) values are cut from each end."""
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=-1)
    cut = ordered.shape[-1] // 4
    middle: NDArray[np.float64] = ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)
    return middle


def resampled_means(strata: Sequence[ArrayLike], seed: int = 0) -> NDArray[np.float64]:
    """Interquartile means of `RESAMPLES` stratified resamples, shape [RESAMPLES].

    Args:
        strata: one array a stratum, shape [seeds] or [seeds, loads]; seeds are drawn with
            replacement within their stratum.
        seed: strata of equal shapes and an equal seed get equal draws, which pairs them.
    """
    generator = np.random.default_rng(seed)
    samples = []
    for stratum in strata:
        values = np.asarray(stratum, dtype=np.float64)
        draws = generator.integers(len(values), size=(RESAMPLES, len(values)))
        samples.append(values[draws].reshape(RESAMPLES, -1))
    return interquartile_mean(np.concatenate(samples, axis=1))


def estimate(strata: Sequence[ArrayLike]) -> Estimate:
    """Interquartile mean over all values, with its percentile-bootstrap interval."""
    value = interquartile_mean(np.concatenate([np.ravel(np.asarray(s)) for s in strata]))
    return _with_interval(float(value), strata, resampled_means(strata))


def paired_difference(strata: Sequence[ArrayLike], reference: Sequence[ArrayLike]) -> Estimate:
    """Interquartile mean of one router minus that of another that saw the same seeds."""
    _check_paired(strata, reference)
    value = estimate(strata).value - estimate(reference).value
    return _with_interval(value, strata, resampled_means(strata) - resampled_means(reference))


def mean_estimate(values: ArrayLike) -> Estimate:
    """Mean over seeds, [seeds], with its percentile-bootstrap interval."""
    stratum = np.asarray(values, dtype=np.float64)
    return _with_interval(float(stratum.mean()), [stratum], _drawn(stratum, 0).mean(1))


def ratio_of_means(values: ArrayLike, reference: ArrayLike) -> Estimate:
    """Mean of one router / mean of another that saw the same seeds, [seeds] each.

    Both are resampled with the same draws. 0 / 0 is 1: neither has any.
    """
    _check_paired([values], [reference])
    above, below = (np.asarray(v, dtype=np.float64) for v in (values, reference))
    value = _ratio(above.mean(keepdims=True), below.mean(keepdims=True))
    resamples = _ratio(_drawn(above, 0).mean(1), _drawn(below, 0).mean(1))
    return _with_interval(float(value[0]), [above], resamples)


def probability_of_improvement(
    strata: Sequence[ArrayLike], reference: Sequence[ArrayLike]
) -> Estimate:
    """How probable it is that a router does better than another one on the same seed.

    rliable's P(X > Y), the mean over strata of mean S(x, y) with S = 1, 1/2 or 0 as x is more than,
    equal to or less than y. rliable compares every run of one algorithm with every run of the
    other, since runs have nothing in common; here a seed is compared with itself.

    Args:
        strata: one array a scenario, shape [seeds] or [seeds, loads]; more is better.
        reference: the other router's, likewise.
    """
    _check_paired(strata, reference)
    wins = [
        (1 + np.sign(np.asarray(x, dtype=np.float64) - np.asarray(y, dtype=np.float64))) / 2
        for x, y in zip(strata, reference, strict=True)
    ]
    value = float(np.mean([win.mean() for win in wins]))
    resamples = np.mean(
        [_drawn(win, k).reshape(RESAMPLES, -1).mean(1) for k, win in enumerate(wins)], axis=0
    )
    return _with_interval(value, strata, resamples)


def _drawn(values: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Resamples of seeds, [RESAMPLES, *shape]; equal draws for equal numbers of seeds."""
    generator = np.random.default_rng(seed)
    return values[generator.integers(len(values), size=(RESAMPLES, len(values)))]


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.where(above == 0, 1.0, np.inf)
    np.divide(above, below, out=found, where=below != 0)
    return found


def _check_paired(strata: Sequence[ArrayLike], reference: Sequence[ArrayLike]) -> None:
    shapes, others = ([np.shape(s) for s in found] for found in (strata, reference))
    if shapes != others:
        raise ValueError(f"paired routers need the same seeds: found shapes {shapes} and {others}")


def _with_interval(
    value: float, strata: Sequence[ArrayLike], resamples: NDArray[np.float64]
) -> Estimate:
    if all(len(np.asarray(s)) == 1 for s in strata):
        return Estimate(value, np.nan, np.nan)
    tail = (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):  # ∞ − ∞ between infinite values gives nan
        low, high = np.quantile(resamples, (tail, 1 - tail))
    return Estimate(value, float(low), float(high))
