"""A hash table of block ids for each environment: what routers that remember prompts are built on.

A block id names its block and everything before it, so one lookup tells whether a prompt's prefix
of that length is known. An id in the table is an *entry*, a number below the capacity; who uses the
table keeps what belongs to an entry in arrays [E, C, …] beside it.

Linear probing over twice as many slots as entries; a removal closes its gap.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import mix64

NONE = -1
"""No entry."""


class IdTable(NamedTuple):
    """Tables of E environments with room for C ids each; C is a power of two."""

    ids: NDArray[np.int64]  # [E, C]
    slots: NDArray[np.int32]  # [E, 2 C]: entry, or NONE
    spare: NDArray[np.int32]  # [E, C]: a stack of the entries not in use
    num_spare: NDArray[np.int64]  # [E]


def id_table(num_envs: int, capacity: int) -> IdTable:
    """Empty tables."""
    spare = np.arange(capacity - 1, -1, -1, dtype=np.int32)
    return IdTable(
        np.empty((num_envs, capacity), np.int64),
        np.full((num_envs, 2 * capacity), NONE, np.int32),
        np.tile(spare, (num_envs, 1)),
        np.full(num_envs, capacity, np.int64),
    )


def doubled(table: IdTable) -> IdTable:
    """The same entries with twice the room."""
    num_envs, capacity = table.ids.shape
    larger = id_table(num_envs, 2 * capacity)
    larger.ids[:, :capacity] = table.ids
    _rehash(table, larger)
    return larger


@kernel
def clear(table: IdTable, e: int) -> None:
    """Forget all entries of an environment."""
    capacity = table.ids.shape[1]
    table.slots[e, :] = NONE
    for k in range(capacity):
        table.spare[e, k] = capacity - 1 - k
    table.num_spare[e] = capacity


@kernel
def _rehash(table: IdTable, larger: IdTable) -> None:
    capacity = table.ids.shape[1]
    for e in range(len(table.ids)):
        for slot in range(2 * capacity):
            entry = table.slots[e, slot]
            if entry != NONE:
                larger.slots[e, _slot(larger, e, table.ids[e, entry])] = entry
        # The new entries stay at the bottom of the stack, below the old ones that were spare.
        for k in range(table.num_spare[e]):
            larger.spare[e, capacity + k] = table.spare[e, k]
        larger.num_spare[e] = capacity + table.num_spare[e]


@kernel
def _slot(table: IdTable, e: int, block_id: int) -> int:
    """Where `block_id` is, or would be."""
    mask = table.slots.shape[1] - 1
    slot = int(np.int64(mix64(np.uint64(block_id)) & np.uint64(mask)))
    while table.slots[e, slot] != NONE and table.ids[e, table.slots[e, slot]] != block_id:
        slot = (slot + 1) & mask
    return slot


@kernel
def find(table: IdTable, e: int, block_id: int) -> int:
    """The entry of `block_id`, or NONE."""
    return int(table.slots[e, _slot(table, e, block_id)])


@kernel
def find_or_add(table: IdTable, e: int, block_id: int) -> tuple[int, bool]:
    """The entry of `block_id`, and whether it is new. There must be room."""
    slot = _slot(table, e, block_id)
    entry = int(table.slots[e, slot])
    if entry != NONE:
        return entry, False
    table.num_spare[e] -= 1
    entry = int(table.spare[e, table.num_spare[e]])
    table.ids[e, entry] = block_id
    table.slots[e, slot] = entry
    return entry, True


@kernel
def remove(table: IdTable, e: int, entry: int) -> None:
    """Forget an entry."""
    mask = table.slots.shape[1] - 1
    gap = _slot(table, e, table.ids[e, entry])
    slot = gap
    while True:
        slot = (slot + 1) & mask
        other = table.slots[e, slot]
        if other == NONE:
            break
        first = int(np.int64(mix64(np.uint64(table.ids[e, other])) & np.uint64(mask)))
        # It may move into the gap unless its search starts after the gap.
        if ((slot - first) & mask) >= ((slot - gap) & mask):
            table.slots[e, gap] = other
            gap = slot
    table.slots[e, gap] = NONE
    table.spare[e, table.num_spare[e]] = entry
    table.num_spare[e] += 1
