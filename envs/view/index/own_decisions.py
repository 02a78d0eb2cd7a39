"""What the router assumes to be cached because it sent it there.

One list an instance, by the last routing: its oldest blocks are those that expire first (TTL) and
those that go first when there are too many (LRU). A prompt joins it from its tail to its head, so
that it loses its tail first.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import cold_kernel, kernel
from prefixgym.envs.view import recency
from prefixgym.envs.view.id_table import NONE
from prefixgym.envs.view.index.arrays import Beliefs, IndexArrays
from prefixgym.envs.view.index.beliefs import bit_of, entry_for, release


@kernel
def _forget_oldest(b: Beliefs, w: int, i: int) -> None:
    entry = b.recent.ends[w, i]["oldest"]
    recency.drop(b.recent, w, i, entry)
    b.entries[w, entry].own &= ~bit_of(i)
    release(b, w, entry)


@kernel
def expire(b: Beliefs, w: int, i: int, oldest: int) -> None:
    """Assume no more of instance i what was routed there at tick `oldest` or before."""
    while (
        b.recent.ends[w, i]["size"] > 0 and b.routed[w, b.recent.ends[w, i]["oldest"], i] <= oldest
    ):
        _forget_oldest(b, w, i)


@cold_kernel
def forget_own(b: Beliefs, w: int, i: int) -> None:
    """Assume nothing of instance i."""
    while b.recent.ends[w, i]["size"] > 0:
        _forget_oldest(b, w, i)


@kernel
def note_sent(
    x: IndexArrays, w: int, i: int, block_ids: NDArray[np.int64], num_blocks: int, now: int
) -> None:
    """The router of row w has sent a prompt to instance i.

    Args:
        x: the indexes; without `own` nothing happens.
        w: a row.
        i: an instance.
        block_ids: of the prompt, at least `num_blocks`.
        num_blocks: its full blocks.
        now: ticks.
    """
    config, b = x.config[0], x.beliefs
    if config.own == 0:
        return
    for k in range(num_blocks - 1, -1, -1):
        entry = entry_for(b, w, block_ids[k])
        if entry == NONE:
            x.control[w].refused += 1
            continue
        b.entries[w, entry].own |= bit_of(i)
        b.routed[w, entry, i] = now
        recency.touch(b.recent, w, i, entry)
        if config.most_blocks > 0 and b.recent.ends[w, i]["size"] > config.most_blocks:
            _forget_oldest(b, w, i)
