"""The links of a tape that follow from the others: who waits for whom, told once, listed twice."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.workload.tape import NO_ROW


@kernel
def link_rows(requests: NDArray[np.void]) -> None:
    """Fill `first_child`, `next_sibling` and `waits_for` in from `parent` and `then`.

    The follow-ups of one parent are listed in the order of their rows.
    """
    for row in range(requests.size):
        requests[row].first_child = NO_ROW
        requests[row].next_sibling = NO_ROW
        requests[row].waits_for = 0
    for row in range(requests.size - 1, -1, -1):
        parent = requests[row].parent
        if parent != NO_ROW:
            requests[row].next_sibling = requests[parent].first_child
            requests[parent].first_child = row
            requests[row].waits_for += 1
        then = requests[row].then
        if then != NO_ROW:
            requests[then].waits_for += 1
