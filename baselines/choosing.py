"""Choosing among the instances that a request may go to: the step that all routers share.

Compiled functions on one environment's row of `View.instances`. `candidates` lists the available
instances in order of index, as real routers list their healthy workers, and the others pick from
that list. Where no instance is available all are listed: a decision has to be an instance, and what
becomes of the request is the environment's affair.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import uniform
from prefixgym.envs.view.hash_ring import ring_owner


@kernel
def candidates(instances: NDArray[np.void], out: NDArray[np.int64]) -> int:
    """Write the indices of the available instances to the front of `out`; return their number."""
    count = 0
    for i in range(len(instances)):
        if instances[i]["available"] != 0:
            out[count] = i
            count += 1
    if count == 0:
        count = len(instances)
        for i in range(count):
            out[i] = i
    return count


@kernel
def draw(key: np.uint64, counter: int, count: int) -> int:
    """The `counter`-th draw of a stream: uniform in 0, 1, …, count - 1."""
    return int(uniform(key, counter) * count)


@kernel
def draw_two(
    key: np.uint64, decision: int, picks: NDArray[np.int64], count: int
) -> tuple[int, int]:
    """Two different candidates of the `count` in `picks`, in the order drawn; one if it is alone.

    Uses draws 2 · decision and 2 · decision + 1 of the stream.
    """
    if count == 1:
        return int(picks[0]), int(picks[0])
    # The second draw is an offset from the first, so that the two differ.
    first = draw(key, 2 * decision, count)
    second = (first + 1 + draw(key, 2 * decision + 1, count - 1)) % count
    return int(picks[first]), int(picks[second])


@kernel
def first_least(scores: NDArray[np.float64], picks: NDArray[np.int64], count: int) -> int:
    """Of the `count` candidates in `picks`, the first with the least score."""
    best = picks[0]
    for k in range(1, count):
        if scores[picks[k]] < scores[best]:
            best = picks[k]
    return int(best)


@kernel
def last_least(scores: NDArray[np.float64], picks: NDArray[np.int64], count: int) -> int:
    """Of the `count` candidates in `picks`, the last with the least score."""
    best = picks[0]
    for k in range(1, count):
        if scores[picks[k]] <= scores[best]:
            best = picks[k]
    return int(best)


@kernel
def random_least(
    scores: NDArray[np.float64],
    picks: NDArray[np.int64],
    count: int,
    key: np.uint64,
    counter: int,
) -> int:
    """Of the `count` candidates in `picks`, one with the least score; uniform among equals."""
    least = scores[first_least(scores, picks, count)]
    equals = 0
    for k in range(count):
        equals += scores[picks[k]] == least
    skip = draw(key, counter, equals)
    for k in range(count):
        if scores[picks[k]] == least:
            if skip == 0:
                return int(picks[k])
            skip -= 1
    return int(picks[0])  # unreachable: one score is the least


@kernel
def home(
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    key: np.uint64,
    picks: NDArray[np.int64],
    count: int,
    num_instances: int,
) -> int:
    """The home of `key` among the `count` candidates in `picks`."""
    open_instances = np.zeros(num_instances, np.bool_)
    for k in range(count):
        open_instances[picks[k]] = True
    return ring_owner(positions, owners, key, open_instances)
