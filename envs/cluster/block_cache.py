"""One instance's KV cache: blocks found by id, reference counts, LRU eviction.

As in vLLM V1's block pool: every block of memory is a slot. Slots without users form one list, from
least to most recently used, whether their content is cached or not; new blocks are taken from its
head. A request's slots join the list tail of the prefix first, so that a prefix loses its tail
before its head.

Ids are looked up in a hash table with chains through the slots, so that eviction unlinks one
element. The hash keeps consecutive ids together, so that a prompt's blocks share cache lines
instead of missing one by one.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.state import NONE
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.rng import grouped_hash


@kernel
def find_slot(slots: NDArray[np.void], table: NDArray[np.int32], key: int) -> int:
    """The slot that caches block `key`, NONE if no one does."""
    slot = table[grouped_hash(key, table.size)]
    while slot != NONE and slots[slot].key != key:
        slot = slots[slot].chain
    return slot


@kernel
def insert_slot(slots: NDArray[np.void], table: NDArray[np.int32], slot: int, key: int) -> None:
    """Make `slot` findable under `key`, which no slot must be under yet."""
    position = grouped_hash(key, table.size)
    slots[slot].key = key
    slots[slot].chain = table[position]
    table[position] = slot


@kernel
def erase_slot(slots: NDArray[np.void], table: NDArray[np.int32], slot: int) -> None:
    """Make `slot`, which is findable, unfindable."""
    position = grouped_hash(slots[slot].key, table.size)
    if table[position] == slot:
        table[position] = slots[slot].chain
    else:
        before = table[position]
        while slots[before].chain != slot:
            before = slots[before].chain
        slots[before].chain = slots[slot].chain
    slots[slot].key = NONE


@kernel
def append_to_lru(instance: Record, slots: NDArray[np.void], slot: int) -> None:
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
def remove_from_lru(instance: Record, slots: NDArray[np.void], slot: int) -> None:
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
    instance: Record, slots: NDArray[np.void], table: NDArray[np.int32], num_blocks: int
) -> None:
    """An empty cache of `num_blocks` unused slots."""
    table[:] = NONE
    instance.lru_head = NONE
    instance.lru_tail = NONE
    for slot in range(num_blocks):
        slots[slot].key = NONE
        slots[slot].users = 0
        append_to_lru(instance, slots, slot)
