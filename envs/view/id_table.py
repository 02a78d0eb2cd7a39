"""A hash table of block ids for each environment: what routers that remember prompts are built on.

A block id names its block and everything before it, so one lookup tells whether a prompt's prefix
of that length is known. An id in the table is an *entry*, a number below the capacity; who uses the
table keeps what belongs to an entry in arrays [E, C, …] beside it.

Linear probing over twice as many slots as entries; a removal closes its gap. Blocks that follow
each other in a prompt usually have consecutive ids: their slots lie side by side, in groups of
eight, so that a prompt's lookup reads a few lines of memory from end to end.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import zeros_together
from prefixgym.envs.rng import grouped_hash

NONE = -1
"""No entry."""


SLOT = np.dtype([("id", np.int64), ("entry", np.int32)], align=True)
"""A place for an entry, NONE if it is free; the id is here too so that a search reads no more."""


class IdTable(NamedTuple):
    """Tables of E environments with room for C ids each; C is a power of two."""

    ids: NDArray[np.int64]  # [E, C]
    slots: NDArray[np.void]  # SLOT [E, 2 C]
    spare: NDArray[np.int32]  # [E, C]: a stack of the entries not in use
    num_spare: NDArray[np.int64]  # [E]


def id_table(num_envs: int, capacity: int) -> IdTable:
    """Empty tables."""
    shape = (num_envs, capacity)
    arrays = zeros_together(
        {
            "slots": ((num_envs, 2 * capacity), SLOT),
            "ids": (shape, np.int64),
            "spare": (shape, np.int32),
        }
    )
    arrays["slots"]["entry"] = NONE
    arrays["spare"][:] = np.arange(capacity - 1, -1, -1)
    return IdTable(**arrays, num_spare=np.full(num_envs, capacity, np.int64))


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
    for slot in range(2 * capacity):
        table.slots[e, slot].entry = NONE
    for k in range(capacity):
        table.spare[e, k] = capacity - 1 - k
    table.num_spare[e] = capacity


@kernel
def _rehash(table: IdTable, larger: IdTable) -> None:
    capacity = table.ids.shape[1]
    for e in range(len(table.ids)):
        for slot in range(2 * capacity):
            held = table.slots[e, slot]
            if held.entry != NONE:
                place = larger.slots[e, _slot(larger, e, held.id)]
                place.id = held.id
                place.entry = held.entry
        # The new entries stay at the bottom of the stack, below the old ones that were spare.
        for k in range(table.num_spare[e]):
            larger.spare[e, capacity + k] = table.spare[e, k]
        larger.num_spare[e] = capacity + table.num_spare[e]


@kernel
def _slot(table: IdTable, e: int, block_id: int) -> int:
    """Where `block_id` is, or would be."""
    size = table.slots.shape[1]
    slot = int(grouped_hash(block_id, size))
    while table.slots[e, slot].entry != NONE and table.slots[e, slot].id != block_id:
        slot = (slot + 1) & (size - 1)
    return slot


@kernel
def find(table: IdTable, e: int, block_id: int) -> int:
    """The entry of `block_id`, or NONE."""
    return int(table.slots[e, _slot(table, e, block_id)].entry)


@kernel
def find_or_add(table: IdTable, e: int, block_id: int) -> tuple[int, bool]:
    """The entry of `block_id`, and whether it is new. There must be room."""
    slot = table.slots[e, _slot(table, e, block_id)]
    entry = int(slot.entry)
    if entry != NONE:
        return entry, False
    table.num_spare[e] -= 1
    entry = int(table.spare[e, table.num_spare[e]])
    table.ids[e, entry] = block_id
    slot.id = block_id
    slot.entry = entry
    return entry, True


@kernel
def remove(table: IdTable, e: int, entry: int) -> None:
    """Forget an entry."""
    size = table.slots.shape[1]
    gap = slot = _slot(table, e, table.ids[e, entry])
    while True:
        slot = (slot + 1) & (size - 1)
        other = table.slots[e, slot]
        if other.entry == NONE:
            break
        first = int(grouped_hash(other.id, size))
        # It may move into the gap unless its search starts after the gap.
        if ((slot - first) & (size - 1)) >= ((slot - gap) & (size - 1)):
            table.slots[e, gap].id = other.id
            table.slots[e, gap].entry = other.entry
            gap = slot
    table.slots[e, gap].entry = NONE
    table.spare[e, table.num_spare[e]] = entry
    table.num_spare[e] += 1
