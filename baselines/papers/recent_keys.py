"""How often each key occurred among the last requests: popularity as LMetric and its kin see it.

For each environment a window of the last requests, each with up to `width` keys, and how often each
of them occurs in it. A key is a block id: it names its block and all blocks before it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.view.id_table import NONE, IdTable, doubled, find, find_or_add, id_table, remove

NO_KEY = -1
_START_CAPACITY = 1024


class RecentKeys(NamedTuple):
    """Windows of W requests in E environments. C keys fit in the table."""

    keys: NDArray[np.int64]  # [E, W, width], a ring buffer of requests; NO_KEY where there is none
    head: NDArray[np.int64]  # [E]: the oldest request
    length: NDArray[np.int64]  # [E]: requests in the window
    table: IdTable
    counts: NDArray[np.int32]  # [E, C]: occurrences of an entry's key in the window
    notes: NDArray[np.int32]  # [E, C]: a number that a router keeps with a key, at first 0


def recent_keys(num_envs: int, window: int, width: int = 1) -> RecentKeys:
    """Empty windows."""
    table = id_table(num_envs, _START_CAPACITY)
    return RecentKeys(
        np.full((num_envs, window, width), NO_KEY, np.int64),
        np.zeros(num_envs, np.int64),
        np.zeros(num_envs, np.int64),
        table,
        np.zeros(table.ids.shape, np.int32),
        np.zeros(table.ids.shape, np.int32),
    )


def with_room(recent: RecentKeys) -> RecentKeys:
    """The same windows, with room for one more request in each."""
    while recent.table.num_spare.min() < recent.keys.shape[2]:
        table = doubled(recent.table)
        capacity = table.ids.shape[1]
        recent = recent._replace(
            table=table,
            counts=widened(recent.counts, capacity),
            notes=widened(recent.notes, capacity),
        )
    return recent


@kernel
def enter(recent: RecentKeys, e: int, keys: NDArray[np.int64], num_keys: int) -> None:
    """A request with the first `num_keys` of `keys` comes; if the window is full, the oldest goes.

    There must be room. The keys are at least 0 and all different.
    """
    size, width = recent.keys.shape[1:]
    if recent.length[e] == size:
        oldest = recent.head[e]
        for k in range(width):
            if recent.keys[e, oldest, k] != NO_KEY:
                entry = find(recent.table, e, recent.keys[e, oldest, k])
                recent.counts[e, entry] -= 1
                if recent.counts[e, entry] == 0:
                    remove(recent.table, e, entry)
        recent.head[e] = (oldest + 1) % size
        recent.length[e] -= 1
    newest = (recent.head[e] + recent.length[e]) % size
    recent.length[e] += 1
    for k in range(width):
        recent.keys[e, newest, k] = keys[k] if k < num_keys else NO_KEY
    for k in range(num_keys):
        entry, new = find_or_add(recent.table, e, keys[k])
        if new:
            recent.counts[e, entry] = 0
            recent.notes[e, entry] = 0
        recent.counts[e, entry] += 1


@kernel
def count_of(recent: RecentKeys, e: int, key: int) -> int:
    """Occurrences of `key` in the window."""
    entry = find(recent.table, e, key)
    return int(recent.counts[e, entry]) if entry != NONE else 0


@kernel
def note_of(recent: RecentKeys, e: int, key: int) -> int:
    """The number kept with `key`; 0 if it is not in the window."""
    entry = find(recent.table, e, key)
    return int(recent.notes[e, entry]) if entry != NONE else 0


@kernel
def set_note(recent: RecentKeys, e: int, key: int, note: int) -> None:
    """Keep a number with `key`, which is in the window."""
    recent.notes[e, find(recent.table, e, key)] = note
