"""The cache of an instance as it was at a place in its journal, made what the router believes.

A snapshot or dump names a place in the journal instead of carrying the ids themselves. The set
there is that of now with the journal undone back to it, newest first. If the cache has been cleared
since, that cannot be undone: then it is what was stored and not removed since it was last empty.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.journal import CLEARED, STORED, Journals
from prefixgym.envs.jit import cold_kernel, kernel
from prefixgym.envs.view.id_table import NONE, find
from prefixgym.envs.view.index.arrays import Beliefs, IndexArrays
from prefixgym.envs.view.index.beliefs import (
    bit_of,
    entry_for,
    is_newer,
    release,
    unbury,
)

FAILED = -1


@kernel
def settle(b: Beliefs, w: int, i: int, entry: int) -> int:
    """Clear the mark of a change; 1 if there was one."""
    held, bit = b.entries[w, entry], bit_of(i)
    if (held.marked & bit) == 0:
        return 0
    held.marked &= ~bit
    release(b, w, entry)
    return 1


@kernel
def _set(b: Beliefs, w: int, i: int, key: int, cached: bool, dated: bool, number: int) -> bool:
    """Block `key` is (not) cached, unless a message after `number` has told of it.

    False if there is no room for it.
    """
    entry = entry_for(b, w, key) if cached else find(b.table, w, key)
    if entry == NONE:
        return not cached
    if dated and is_newer(b, w, i, entry, number):
        return True
    held, bit = b.entries[w, entry], bit_of(i)
    if ((held.known & bit) != 0) == cached:
        return True
    held.known ^= bit
    held.marked ^= bit
    if dated:
        b.changed[w, entry, i] = number
        if cached and (held.buried & bit) != 0:
            unbury(b, w, i, entry)
    if (held.marked & bit) == 0:
        release(b, w, entry)
    return True


@kernel
def _where_empty(records: NDArray[np.void], end: int, position: int) -> tuple[int, bool]:
    """Whether the cache was cleared after `position`; if so, where it was empty before.

    FAILED if it was before all that the journal still has.
    """
    oldest = max(0, end - records.size)
    cleared = False
    for k in range(max(position, oldest), end):
        cleared = cleared or records[k % records.size].kind == CLEARED
    if not cleared:
        return position, False
    for k in range(position - 1, oldest - 1, -1):
        if records[k % records.size].kind == CLEARED:
            return k, True
    return (0 if oldest == 0 else FAILED), True


@cold_kernel
def rebuild(j: Journals, x: IndexArrays, e: int, w: int, i: int, position: int, number: int) -> int:
    """`known` of instance i becomes its cache after `position` records.

    Args:
        j: the journals.
        x: the indexes.
        e: the environment.
        w: the row.
        i: the instance.
        position: a place in the journal.
        number: of the last message before it; what newer ones told stands (if `dated`).

    Returns:
        How many blocks have changed, FAILED if too much of the journal is written over.
    """
    records, end, num_slots = j.records[e, i], j.ends[e, i], j.slots.shape[2]
    start, forward = _where_empty(records, end, position)
    if end - position > records.size or start == FAILED:
        return FAILED
    b, bit, dated, control = x.beliefs, bit_of(i), x.config[0].dated != 0, x.control[w]
    for entry in range(b.entries.shape[1]):
        held = b.entries[w, entry]
        if (held.known & bit) != 0 and not (dated and is_newer(b, w, i, entry, number)):
            held.known ^= bit
            held.marked ^= bit
    # From the empty cache on, or the slots of now and then the journal from its end.
    for k in range(position - start if forward else num_slots + end - position):
        record = records[(start + k if forward else end - 1 - (k - num_slots)) % records.size]
        key, cached = record.key, (record.kind == STORED) == forward
        if not forward and k < num_slots:
            key, cached = j.slots[e, i, k].key, True
        if key != NONE and not _set(b, w, i, key, cached, dated, number):
            control.refused += 1
    changes = 0
    for entry in range(b.entries.shape[1]):
        changes += settle(b, w, i, entry)
    return changes
