"""Simulated time: whole picoseconds inside the kernels, seconds at the Python surface.

Integer time makes sums of step times exact and independent of their order, so that a closed-form
leap over many decode steps equals stepping through them to the last bit. An int64 of picoseconds
holds 106 days.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

TICKS_PER_SECOND = 10**12
TICKS_PER_MS = 10**9
NEVER = np.iinfo(np.int64).max // 2
"""A time that no event reaches; half of the range, so that adding a delay to it cannot overflow."""


def to_ticks(seconds: ArrayLike) -> NDArray[np.int64]:
    """Nearest whole ticks of a time in seconds."""
    return np.rint(np.asarray(seconds, dtype=np.float64) * TICKS_PER_SECOND).astype(np.int64)


def to_seconds(ticks: ArrayLike) -> NDArray[np.float64]:
    """Seconds of a time in ticks."""
    return np.asarray(ticks, dtype=np.int64) / TICKS_PER_SECOND
