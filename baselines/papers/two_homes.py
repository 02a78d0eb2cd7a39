"""Two candidates by consistent hashing: the power of two choices, with affinity."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import home
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import random_word


@kernel
def two_homes(
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    seed: np.uint64,
    key: int,
    picks: NDArray[np.int64],
    count: int,
    num_instances: int,
) -> tuple[int, int]:
    """The homes of `key` under two independent hashes.

    The second is looked for among the other candidates, so that the two differ.

    Args:
        positions: of a `HashRing`.
        owners: of the same ring.
        seed: of the environment's hashes.
        key: what is hashed.
        picks: candidates, [num_instances].
        count: how many, at least 2.
        num_instances: N.
    """
    word = random_word(seed, key)
    first = home(positions, owners, word, picks, count, num_instances)
    others = np.empty(count - 1, np.int64)
    kept = 0
    for k in range(count):
        if picks[k] != first:
            others[kept] = picks[k]
            kept += 1
    second = home(positions, owners, random_word(word, 0), others, kept, num_instances)
    return first, second
