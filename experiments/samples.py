"""Samples of times: all of them, or as a histogram of bounded size."""

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

RELATIVE_ERROR = 0.001
"""Of a quantile from a `LogHistogram`."""

_SHORTEST, _LONGEST = 1e-9, 1e9
_GROWTH = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))


class Sample(Protocol):
    """Times that come in batches."""

    def add(self, values: NDArray[np.float64]) -> None:
        """Take a batch in, seconds."""

    def mean(self) -> float:
        """Of all values, NaN if there are none."""

    def quantile(self, share: float) -> float:
        """As `numpy.quantile` with linear interpolation; NaN if there are no values."""


class Values:
    """All values, to be exact."""

    def __init__(self) -> None:
        self._batches: list[NDArray[np.float64]] = [np.empty(0)]

    def add(self, values: NDArray[np.float64]) -> None:
        """Keep a batch."""
        self._batches.append(values)

    def mean(self) -> float:
        """Of all values, NaN if there are none."""
        values = self._all()
        return float(values.mean()) if len(values) else math.nan

    def quantile(self, share: float) -> float:
        """Exact; NaN if there are no values."""
        values = self._all()
        return float(np.quantile(values, share)) if len(values) else math.nan

    def _all(self) -> NDArray[np.float64]:
        self._batches = [np.concatenate(self._batches)]
        return self._batches[0]


class LogHistogram:
    """Counts in bins of equal width on a logarithmic scale, in 170 kB, however many values come.

    The bins are those of DDSketch (Masson, Rim and Lee, VLDB 2019): with growth
    γ = (1 + a) / (1 - a), a bin from x to γ x is represented by 2 γ x / (γ + 1), which is within
    the share a of everything in it. A quantile lies between two of the sorted values; it is
    interpolated between their representatives, so it is within the share a (`RELATIVE_ERROR`) of
    the exact one. Values up to a nanosecond count as 0. The package ddsketch adds value by value,
    in Python.
    """

    def __init__(self) -> None:
        self._low = math.floor(math.log(_SHORTEST) / _GROWTH)
        self._counts = np.zeros(math.ceil(math.log(_LONGEST) / _GROWTH) - self._low + 1, np.int64)
        self._sum = 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Count a batch of values from 0 to 10⁹ s."""
        exponents = np.log(np.maximum(values, _SHORTEST)) / _GROWTH
        bins = np.ceil(exponents).astype(np.int64) - self._low
        bins[values <= _SHORTEST] = 0
        self._counts += np.bincount(bins, minlength=len(self._counts))
        self._sum += float(values.sum())

    def mean(self) -> float:
        """Of all values, exact up to rounding; NaN if there are none."""
        count = int(self._counts.sum())
        return self._sum / count if count else math.nan

    def quantile(self, share: float) -> float:
        """Within `RELATIVE_ERROR` of the exact one; NaN if there are no values."""
        ends = np.cumsum(self._counts)
        if ends[-1] == 0:
            return math.nan
        place = share * (int(ends[-1]) - 1)
        below, above = (
            self._representative(int(np.searchsorted(ends, rank, side="right")))
            for rank in (math.floor(place), math.ceil(place))
        )
        return below + (above - below) * (place - math.floor(place))

    def _representative(self, index: int) -> float:
        if index == 0:
            return 0.0
        return (1 + RELATIVE_ERROR) * math.exp((index + self._low - 1) * _GROWTH)
