"""What a router believes to be cached where: sets of instances for every block it has heard of.

An entry stays as long as anything is known of its block. `known` is what instances told, `own` what
the router assumes of its own decisions; a block counts for an instance if either says so.

Two options keep more. With tombstones, when messages can overtake each other, a change carries the
number of its message (`changed`) and a removed block stays buried for `REMEMBERED` messages, so
that an older change does not undo a newer one. With `drop_descendants` blocks are linked to the one
before them in a prompt.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.block_index import note_depth
from prefixgym.envs.jit import cold_kernel, kernel
from prefixgym.envs.view import recency
from prefixgym.envs.view.id_table import NONE, find, find_or_add, remove
from prefixgym.envs.view.index.arrays import Beliefs

REMEMBERED = 1024
"""Messages for which a removed block is remembered; one that comes later can raise it again."""


@kernel
def bit_of(i: int) -> np.uint64:
    """The set of instance i alone."""
    return np.uint64(1) << np.uint64(i)


@kernel
def entry_for(b: Beliefs, w: int, key: int) -> int:
    """The entry of block `key`, made if it is missing; NONE if there is no room."""
    if b.table.num_spare[w] == 0:
        return find(b.table, w, key)
    entry, is_new = find_or_add(b.table, w, key)
    if is_new and b.links.shape[1] > 0:
        link = b.links[w, entry]
        link.parent = NONE
        link.child = NONE
        link.previous = NONE
        link.next = NONE
    return entry


@kernel
def _is_empty(b: Beliefs, w: int, entry: int) -> bool:
    held = b.entries[w, entry]
    return (held.known | held.own | held.marked | held.buried) == 0


@cold_kernel
def _release_one(b: Beliefs, w: int, entry: int) -> int:
    """Give up an entry of which nothing is known; the entry of the block before it, or NONE."""
    if not _is_empty(b, w, entry):
        return NONE
    parent = NONE
    if b.links.shape[1] > 0:
        link = b.links[w, entry]
        if link.child != NONE:
            return NONE
        parent = link.parent
        if link.previous != NONE:
            b.links[w, link.previous].next = link.next
        elif parent != NONE:
            b.links[w, parent].child = link.next
        if link.next != NONE:
            b.links[w, link.next].previous = link.previous
    remove(b.table, w, entry)
    return parent


@kernel
def release(b: Beliefs, w: int, entry: int) -> None:
    """Give up an entry of which nothing is known, and those before it that it alone kept."""
    while entry != NONE and _is_empty(b, w, entry):
        entry = _release_one(b, w, entry)


@kernel
def link_to_parent(b: Beliefs, w: int, entry: int, parent_key: int) -> None:
    """Note which block is before that of `entry` in a prompt."""
    if parent_key == NONE or b.links[w, entry].parent != NONE:
        return
    parent = entry_for(b, w, parent_key)
    if parent == NONE:
        return
    link = b.links[w, entry]
    link.parent = parent
    link.next = b.links[w, parent].child
    if link.next != NONE:
        b.links[w, link.next].previous = entry
    b.links[w, parent].child = entry


@kernel
def _deepest(b: Beliefs, w: int, entry: int) -> int:
    """The first leaf below an entry, itself if it has none."""
    while b.links[w, entry].child != NONE:
        entry = b.links[w, entry].child
    return entry


@cold_kernel
def forget_descendants(b: Beliefs, w: int, i: int, top: int) -> None:
    """What follows the block of entry `top` in prompts is no more known of instance i."""
    bit, entry = bit_of(i), _deepest(b, w, top)
    while entry != top:
        after = b.links[w, entry].next
        following = b.links[w, entry].parent if after == NONE else _deepest(b, w, after)
        b.entries[w, entry].known &= ~bit
        _release_one(b, w, entry)
        entry = following


@kernel
def unbury(b: Beliefs, w: int, i: int, entry: int) -> None:
    """Forget that instance i removed the block."""
    recency.drop(b.buried, w, i, entry)
    b.entries[w, entry].buried &= ~bit_of(i)


@kernel
def bury(b: Beliefs, w: int, i: int, entry: int, number: int) -> None:
    """Remember that instance i removed the block in message `number`."""
    recency.touch(b.buried, w, i, entry)
    b.entries[w, entry].buried |= bit_of(i)
    b.changed[w, entry, i] = number


@cold_kernel
def unbury_old(b: Beliefs, w: int, i: int, before: int) -> None:
    """Forget what instance i removed in messages before `before`, as far as it was removed first.

    Removals that came out of order wait for the one before them in the list.
    """
    while True:
        entry = b.buried.ends[w, i]["oldest"]
        if entry == recency.NOBODY or b.changed[w, entry, i] >= before:
            return
        unbury(b, w, i, entry)
        release(b, w, entry)


@kernel
def is_newer(b: Beliefs, w: int, i: int, entry: int, number: int) -> bool:
    """Whether a message after `number` has changed the block at instance i."""
    held, bit = b.entries[w, entry], bit_of(i)
    return ((held.known | held.buried) & bit) != 0 and b.changed[w, entry, i] > number


@cold_kernel
def forget_known(b: Beliefs, w: int, i: int) -> None:
    """Nothing that instance i told counts any more."""
    bit = bit_of(i)
    for entry in range(b.entries.shape[1]):
        if ((b.entries[w, entry].known | b.entries[w, entry].buried) & bit) == 0:
            continue
        b.entries[w, entry].known &= ~bit
        if (b.entries[w, entry].buried & bit) != 0:
            unbury(b, w, i, entry)
        release(b, w, entry)


@kernel
def depths(
    b: Beliefs, w: int, block_ids: NDArray[np.int64], num_blocks: int, out: NDArray[np.int64]
) -> None:
    """For every instance, how many leading blocks of a prompt row w believes it to have.

    Args:
        b: the beliefs.
        w: a row.
        block_ids: of the prompt, at least `num_blocks`.
        num_blocks: how many of them are looked up.
        out: int64 [N], written.
    """
    alive = ~np.uint64(0) >> np.uint64(64 - out.size)
    for j in range(num_blocks):
        entry = find(b.table, w, block_ids[j])
        having = np.uint64(0)
        if entry != NONE:
            having = b.entries[w, entry].known | b.entries[w, entry].own
        note_depth(alive & ~having, j, out)
        alive &= having
        if alive == 0:
            return
    note_depth(alive, num_blocks, out)
