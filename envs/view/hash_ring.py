"""Consistent hashing: a stable home for every key, which moves little when instances come and go.

Each instance owns `virtual_nodes` points on a ring of 2^64 positions; a key belongs to the owner of
the first point at or after its position, in increasing order, around the end. Keys of an instance
that is not open go to the owner of the next point of an open one, so they spread over the others.

Real routers take the positions from a hash of "url#k" (blake3, ketama). Only their uniformity
matters, so here they come from `rng`, the same in every episode.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import random_word

_RING_KEY = np.uint64(0x52494E47)
"""Keeps the positions apart from other uses of `rng`."""


class HashRing:
    """Points on the ring, sorted by position.

    Attributes:
        positions: uint64 [num_instances × virtual_nodes], increasing.
        owners: the instance that owns each point, int64, same shape.
    """

    def __init__(self, num_instances: int, virtual_nodes: int) -> None:
        positions = np.empty(num_instances * virtual_nodes, np.uint64)
        _place(virtual_nodes, positions)
        order = np.argsort(positions, kind="stable")
        self.positions = positions[order]
        self.owners = order.astype(np.int64) // virtual_nodes


@kernel
def _place(virtual_nodes: int, positions: NDArray[np.uint64]) -> None:
    for k in range(len(positions)):
        instance_key = random_word(_RING_KEY, k // virtual_nodes)
        positions[k] = random_word(instance_key, k % virtual_nodes)


@kernel
def ring_owner(
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    key: np.uint64,
    open_instances: NDArray[np.bool_],
) -> int:
    """The home of `key`: owner of the first point at or after it whose instance is open.

    Args:
        positions: of a `HashRing`.
        owners: of the same ring.
        key: a position, uniform over 64-bit words (hash what is no random word yet).
        open_instances: bool [num_instances], at least one of them true.
    """
    point = int(np.searchsorted(positions, np.uint64(key)))
    for _ in range(len(positions)):
        if point == len(positions):
            point = 0
        if open_instances[owners[point]]:
            break
        point += 1
    return int(owners[point])
