"""Which instances hold a block: one table an environment, answered for all instances at once.

Looking a prompt up costs one probe a block, however many instances there are: the sets of holders
are bits of a word, intersected along the prompt. An entry exists while its set is not empty.

This is the truth. Where routers go by messages nobody asks it, and no memory is kept for it.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.state import NONE, ClusterArrays, settings_row
from prefixgym.envs.jit import cold_kernel, kernel
from prefixgym.envs.rng import grouped_hash


@kernel
def is_indexed(c: ClusterArrays) -> bool:
    """Whether the index is kept."""
    return c.holders.shape[1] > 0


@kernel
def find_holders(c: ClusterArrays, e: int, key: int) -> int:
    """The entry of block `key`, NONE if no instance holds it."""
    entry = c.holders_table[e, grouped_hash(key, c.holders_table.shape[1])]
    while entry != NONE and c.holders[e, entry].key != key:
        entry = c.holders[e, entry].chain
    return entry


@kernel
def _add_entry(c: ClusterArrays, e: int, key: int) -> int:
    """A new entry for block `key` with an empty set."""
    entry = c.environments[e].free_entry
    holders = c.holders[e, entry]
    c.environments[e].free_entry = holders.chain
    position = grouped_hash(key, c.holders_table.shape[1])
    holders.key = key
    holders.chain = c.holders_table[e, position]
    c.holders_table[e, position] = entry
    return entry


@kernel
def _drop_if_empty(c: ClusterArrays, e: int, entry: int) -> None:
    """Unlink an entry whose set is empty."""
    holders = c.holders[e, entry]
    if holders.held != 0:
        return
    position = grouped_hash(holders.key, c.holders_table.shape[1])
    if c.holders_table[e, position] == entry:
        c.holders_table[e, position] = holders.chain
    else:
        before = c.holders_table[e, position]
        while c.holders[e, before].chain != entry:
            before = c.holders[e, before].chain
        c.holders[e, before].chain = holders.chain
    holders.chain = c.environments[e].free_entry
    c.environments[e].free_entry = entry


@kernel
def add_holder(c: ClusterArrays, e: int, key: int, instance: int) -> bool:
    """`instance` now holds block `key`; False if it did before."""
    entry, bit = find_holders(c, e, key), np.uint64(1) << np.uint64(instance)
    if entry == NONE:
        entry = _add_entry(c, e, key)
    elif (c.holders[e, entry].held & bit) != 0:
        return False
    c.holders[e, entry].held |= bit
    return True


@kernel
def remove_holder(c: ClusterArrays, e: int, key: int, instance: int) -> None:
    """`instance` holds block `key` no more."""
    if not is_indexed(c):
        return
    entry = find_holders(c, e, key)
    c.holders[e, entry].held &= ~(np.uint64(1) << np.uint64(instance))
    _drop_if_empty(c, e, entry)


@kernel
def note_depth(instances: np.uint64, depth: int, depths: NDArray[np.int64]) -> None:
    """depths[i] = depth for every bit i of `instances`."""
    i = 0
    while instances != 0:
        if instances & np.uint64(1):
            depths[i] = depth
        instances >>= np.uint64(1)
        i += 1


@kernel
def prefix_depths(
    c: ClusterArrays,
    e: int,
    block_ids: NDArray[np.int64],
    num_blocks: int,
    depths: NDArray[np.int64],
) -> None:
    """For every instance, how many leading blocks of a prompt it holds."""
    alive = ~np.uint64(0) >> np.uint64(64 - depths.size)
    for j in range(num_blocks):
        entry = find_holders(c, e, block_ids[j])
        having = np.uint64(0)
        if entry != NONE:
            having = c.holders[e, entry].held
        note_depth(alive & ~having, j, depths)
        alive &= having
        if alive == 0:
            return
    note_depth(alive, num_blocks, depths)


@kernel
def reset_index(c: ClusterArrays, e: int) -> None:
    """No block held anywhere."""
    num_entries = c.holders.shape[1]
    c.holders_table[e, :] = NONE
    for entry in range(num_entries):
        holders = c.holders[e, entry]
        holders.held = 0
        holders.chain = entry + 1 if entry + 1 < num_entries else NONE
    c.environments[e].free_entry = 0


@cold_kernel
def index_caches(c: ClusterArrays, e: int) -> None:
    """The index of what is cached now."""
    reset_index(c, e)
    for i in range(c.slots.shape[1]):
        for slot in range(c.limits[settings_row(c, e), i].num_blocks):
            if c.slots[e, i, slot].key != NONE:
                add_holder(c, e, c.slots[e, i, slot].key, i)
