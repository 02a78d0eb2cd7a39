"""Capacity: the highest rate of requests at which a router still meets the objectives.

DistServe's measure (arXiv 2401.09670): 90 % of the requests meet both TTFT and TPOT.
"""

from collections.abc import Callable

CAPACITY_ATTAINMENT = 0.9
_TOLERANCE = 0.02


def find_capacity(attainment: Callable[[float], float], start: float) -> float:
    """Bisect for the highest rate at which `attainment` is at least 90 %, to within 2 %.

    Args:
        attainment: share of good requests at a rate, taken to fall with it.
        start: a rate to begin at, in requests/s; only the time of the search depends on it.

    Returns:
        A rate that attained 90 %, at most 2 % below one that did not; 0 if even start / 2^20 misses
        it, inf if start · 2^20 attains it.
    """
    low = high = start
    if attainment(start) >= CAPACITY_ATTAINMENT:
        while attainment(high := 2 * high) >= CAPACITY_ATTAINMENT:
            low = high
            if high >= start * 2**20:
                return float("inf")
    else:
        while attainment(low := low / 2) < CAPACITY_ATTAINMENT:
            high = low
            if low <= start / 2**20:
                return 0.0
    while high / low > 1 + _TOLERANCE:
        middle = (low * high) ** 0.5
        if attainment(middle) >= CAPACITY_ATTAINMENT:
            low = middle
        else:
            high = middle
    return low
