"""Quantiles under names that tables and JSON show: {"p50": 1.0, "max": 43.0}."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Quantiles = dict[str, float]
"""Values by the name of their level; empty where there is nothing to take quantiles of."""

LENGTH_LEVELS = (10, 50, 90, 99, 100)
GAP_LEVELS = (10, 50, 80, 90, 99)


def quantiles(
    values: ArrayLike, levels: Sequence[float], weights: NDArray[np.int64] | None = None
) -> Quantiles:
    """Quantiles at `levels` (percent) with straight lines between neighbours, as `np.percentile`.

    Args:
        values: numbers [n].
        levels: in percent; 100 is named "max".
        weights: how often each of the values counts, [n], ≥ 0; None: once.
    """
    numbers = np.asarray(values, np.float64)
    if weights is None:
        weights = np.ones(len(numbers), np.int64)
    order = np.argsort(numbers)
    numbers, seen = numbers[order], np.cumsum(weights[order])
    if len(seen) == 0 or seen[-1] == 0:
        return {}
    position = np.array(levels) / 100 * (seen[-1] - 1)
    low = numbers[np.searchsorted(seen, np.floor(position), side="right")]
    high = numbers[np.searchsorted(seen, np.ceil(position), side="right")]
    found = low + (high - low) * (position - np.floor(position))
    names = ("max" if level == 100 else f"p{level:g}" for level in levels)
    return dict(zip(names, found.tolist(), strict=True))
