"""Capacity: the highest rate of requests at which a router still meets the objectives.

DistServe's measure (arXiv 2401.09670): 90 % of the requests meet both TTFT and TPOT.
"""

from collections.abc import Callable

CAPACITY_ATTAINMENT = 0.9
_TOLERANCE = 0.02
_FIRST_STEP = 1.25
_MOST = 2.0**20


def find_capacity(
    attainment: Callable[[float], float], start: float, wanted: float = CAPACITY_ATTAINMENT
) -> float:
    """Bisect for the highest rate at which `attainment` is at least 90 %, to within 2 %.

    Args:
        attainment: share of good requests at a rate, taken to fall with it.
        start: a rate to begin at, in requests/s; only the time of the search depends on it.
        wanted: another share than 90 %.

    Returns:
        A rate that attained it, at most 2 % below one that did not; 0 if even start / 2^20 misses
        it, inf if start · 2^20 attains it.
    """
    low = high = start
    step = _FIRST_STEP  # squared each time: overload costs more time than anything
    if attainment(start) >= wanted:
        while attainment(high := min(high * step, start * _MOST)) >= wanted:
            low, step = high, step * step
            if high == start * _MOST:
                return float("inf")
    else:
        while attainment(low := max(low / step, start / _MOST)) < wanted:
            high, step = low, step * step
            if low == start / _MOST:
                return 0.0
    while high / low > 1 + _TOLERANCE:
        middle = (low * high) ** 0.5
        if attainment(middle) >= wanted:
            low = middle
        else:
            high = middle
    return low
