"""What becomes of the blocks of every instance, as its engine writes it down for those who listen.

The journal of an instance is a ring of records in order of time; the router's index
(`prefixgym.envs.view.index`) makes messages of it. The set of cached blocks after any record is
that of STORED and not REMOVED since the last CLEARED: a record is only written when that set
changes, and at the beginning of each incarnation, whose first record is a CLEARED. An instance that
goes down writes one, of the incarnation to come, and another when it serves again.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import Record, kernel

STORED, REMOVED, CLEARED = range(3)
"""A block can be found from now on; it can no more; none can."""

JOURNAL = np.dtype(
    [
        # Twice the time in ticks, plus one at the start of a step: never falls.
        ("stamp", np.int64),
        ("key", np.int64),  # id of the block, -1 with CLEARED
        ("parent", np.int64),  # id of the block before it in the prompt, -1 for the first
        ("epoch", np.int32),  # incarnation of the instance, from 0
        ("kind", np.int32),  # STORED, REMOVED or CLEARED
    ],
    align=True,
)
"""One change of an instance's cache."""


class Journals(NamedTuple):
    """What E environments of N instances wrote down, and what they have. C blocks of memory."""

    records: NDArray[np.void]  # JOURNAL [E, N, J]; record k of an instance is at k % J
    ends: NDArray[np.int64]  # [E, N]: records ever written
    silent: NDArray[np.int32]  # [E, N]: 1 while nothing is sent: down, or its publisher is dead
    slots: NDArray[np.void]  # [E, N, C], with a field `key`: ids of the blocks cached now, or -1


@kernel
def note_change(
    j: Journals, e: int, i: int, instance: Record, kind: int, key: int, parent: int
) -> None:
    """`instance`, number i, has just stored or removed block `key`, or all blocks."""
    if j.records.shape[2] == 0:
        return
    record = j.records[e, i, j.ends[e, i] % j.records.shape[2]]
    record.stamp = instance.stamp
    record.key = key
    record.parent = parent
    record.epoch = instance.epoch
    record.kind = kind
    j.ends[e, i] += 1


@kernel
def reset_journal(j: Journals, e: int, i: int) -> None:
    """Nothing has happened yet."""
    j.ends[e, i] = 0
    j.silent[e, i] = 0
