"""One instance's KV cache: blocks found by id, reference counts, LRU eviction.

As in vLLM V1's block pool: every block of memory is a slot. Slots without users form one list, from
least to most recently used, whether their content is cached or not; new blocks are taken from its
head. A request's slots join the list tail of the prefix first, so that a prefix loses its tail before
its head.

Ids are looked up in an open-addressing table (linear probing, backward-shift deletion). Blocks that
follow each other in a prompt usually have consecutive ids; the hash keeps groups of eight together, so
that a prompt's blocks share cache lines instead of missing one by one.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.state import NONE
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import mix64


@kernel
def home_position(key: int, mask: int) -> int:
    """The first position of `key` in a table of mask + 1 positions."""
    group = mix64(np.uint64(key) >> np.uint64(3)) << np.uint64(3)
    return np.int64((group | (np.uint64(key) & np.uint64(7))) & np.uint64(mask))


@kernel
def find_slot(slots: NDArray[np.void], table: NDArray[np.int32], key: int) -> int:
    """The slot that caches block `key`, NONE if no one does."""
    mask = table.size - 1
    position = home_position(key, mask)
    while table[position] != 0:
        if slots[table[position] - 1].key == key:
            return table[position] - 1
        position = (position + 1) & mask
    return NONE


@kernel
def insert_slot(slots: NDArray[np.void], table: NDArray[np.int32], slot: int, key: int) -> None:
    """Make `slot` findable under `key`, which must not be in the table."""
    mask = table.size - 1
    position = home_position(key, mask)
    while table[position] != 0:
        position = (position + 1) & mask
    table[position] = slot + 1
    slots[slot].key = key


@kernel
def erase_slot(slots: NDArray[np.void], table: NDArray[np.int32], slot: int) -> None:
    """Make `slot`, which is in the table, unfindable."""
    mask = table.size - 1
    gap = home_position(slots[slot].key, mask)
    while table[gap] != slot + 1:
        gap = (gap + 1) & mask
    slots[slot].key = NONE
    position = (gap + 1) & mask
    while table[position] != 0:
        # An entry may move back into the gap unless its home lies behind the gap.
        home = home_position(slots[table[position] - 1].key, mask)
        if ((position - home) & mask) >= ((position - gap) & mask):
            table[gap] = table[position]
            gap = position
        position = (position + 1) & mask
    table[gap] = 0


@kernel
def append_to_lru(instance: NDArray[np.void], slots: NDArray[np.void], slot: int) -> None:
    """Put `slot` at the most recently used end of the list of slots without users."""
    tail = instance.lru_tail
    slots[slot].previous = tail
    slots[slot].next = NONE
    if tail == NONE:
        instance.lru_head = slot
    else:
        slots[tail].next = slot
    instance.lru_tail = slot


@kernel
def remove_from_lru(instance: NDArray[np.void], slots: NDArray[np.void], slot: int) -> None:
    """Take `slot` out of the list of slots without users."""
    previous, following = slots[slot].previous, slots[slot].next
    if previous == NONE:
        instance.lru_head = following
    else:
        slots[previous].next = following
    if following == NONE:
        instance.lru_tail = previous
    else:
        slots[following].previous = previous


@kernel
def reset_cache(
    instance: NDArray[np.void], slots: NDArray[np.void], table: NDArray[np.int32], num_blocks: int
) -> None:
    """An empty cache of `num_blocks` unused slots."""
    table[:] = 0
    instance.lru_head = NONE
    instance.lru_tail = NONE
    for slot in range(num_blocks):
        slots[slot].key = NONE
        slots[slot].users = 0
        append_to_lru(instance, slots, slot)
