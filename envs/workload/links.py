"""The links of a tape that follow from the others: who waits for whom, told once, listed twice."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.workload.tape import NO_ROW


@kernel
def link_rows(requests: NDArray[np.void], order: NDArray[np.int64]) -> None:
    """Fill `first_child`, `next_sibling` and `waits_for` in from `parent` and `then`.

    `order` [R] names every row once; the follow-ups of one parent are listed in this order.
    """
    for row in range(requests.size):
        requests[row].first_child = NO_ROW
        requests[row].next_sibling = NO_ROW
        requests[row].waits_for = 0
    for row in order[::-1]:
        parent = requests[row].parent
        if parent != NO_ROW:
            requests[row].next_sibling = requests[parent].first_child
            requests[parent].first_child = row
            requests[row].waits_for += 1
        then = requests[row].then
        if then != NO_ROW:
            requests[then].waits_for += 1


@kernel
def walk_trees(
    requests: NDArray[np.void], order: NDArray[np.int64], root_of: NDArray[np.int64]
) -> None:
    """Fill `order` [R] with the rows, tree by tree, and `root_of` [R] with each row's root.

    A tree is a root with all that follows it, directly or not. Roots come in the order of their
    rows, parents before their follow-ups, and the follow-ups of one parent as they are listed.
    """
    written = 0
    for row in range(requests.size):
        if requests[row].parent == NO_ROW:
            reached = written
            order[written] = row
            root_of[row] = row
            written += 1
            while reached < written:
                child: int = requests[order[reached]].first_child
                while child != NO_ROW:
                    order[written] = child
                    root_of[child] = row
                    written += 1
                    child = requests[child].next_sibling
                reached += 1
