"""Where each value of an array was last seen before."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.tape import NO_ROW


def previous(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """For each index the last earlier one with an equal value, `NO_ROW` if there is none."""
    order = np.argsort(values, kind="stable")
    before = np.full(len(values), NO_ROW, np.int64)
    same = values[order[1:]] == values[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before
