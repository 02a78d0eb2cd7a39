"""Which instances hold a block: one table an environment, answered for all instances at once.

Looking a prompt up costs one probe a block, however many instances there are: the sets of holders are
bits of a word, intersected along the prompt. Beside the truth (`held`) an entry keeps what instances
last reported (`reported`), so that a stale index costs no second table.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.block_cache import home_position
from prefixgym.envs.jit import kernel


@kernel
def find_entry(holders: NDArray[np.void], key: int) -> int:
    """Position of block `key`, or of the empty position where it would go."""
    mask = holders.size - 1
    position = home_position(key, mask)
    while (holders[position].held | holders[position].reported) != 0:
        if holders[position].key == key:
            break
        position = (position + 1) & mask
    return position


@kernel
def _erase_entry(holders: NDArray[np.void], gap: int) -> None:
    """Remove the entry at `gap`, whose sets are empty, closing the probe sequence behind it."""
    mask = holders.size - 1
    position = (gap + 1) & mask
    while (holders[position].held | holders[position].reported) != 0:
        home = home_position(holders[position].key, mask)
        if ((position - home) & mask) >= ((position - gap) & mask):
            holders[gap].key = holders[position].key
            holders[gap].held = holders[position].held
            holders[gap].reported = holders[position].reported
            holders[position].held = 0
            holders[position].reported = 0
            gap = position
        position = (position + 1) & mask


@kernel
def add_holder(holders: NDArray[np.void], key: int, instance: int) -> None:
    """`instance` now holds block `key`."""
    position = find_entry(holders, key)
    holders[position].key = key
    holders[position].held |= np.uint64(1) << np.uint64(instance)


@kernel
def remove_holder(holders: NDArray[np.void], key: int, instance: int) -> None:
    """`instance` holds block `key` no more."""
    position = find_entry(holders, key)
    holders[position].held &= ~(np.uint64(1) << np.uint64(instance))
    if (holders[position].held | holders[position].reported) == 0:
        _erase_entry(holders, position)


@kernel
def _report_entry(holders: NDArray[np.void], position: int, instance: int) -> bool:
    """Copy the truth about `instance` into its report; True if that emptied the entry."""
    bit = np.uint64(1) << np.uint64(instance)
    holders[position].reported = (holders[position].reported & ~bit) | (
        holders[position].held & bit
    )
    if (holders[position].held | holders[position].reported) == 0:
        _erase_entry(holders, position)
        return True
    return False


@kernel
def report_changes(
    holders: NDArray[np.void], changes: NDArray[np.int64], num_changes: int, instance: int
) -> None:
    """`instance` reports: its bits in `reported` become those in `held`.

    `changes[:num_changes]` are the ids whose bit may differ; if there were more than fit, the whole
    table is gone through instead.
    """
    if num_changes <= changes.size:
        for key in changes[:num_changes]:
            position = find_entry(holders, key)
            if (holders[position].held | holders[position].reported) != 0:
                _report_entry(holders, position, instance)
        return
    mask = holders.size - 1
    start = 0  # begin behind an empty position, so that no erasure moves an entry past the end
    while (holders[start].held | holders[start].reported) != 0:
        start += 1
    position, left = (start + 1) & mask, mask
    while left > 0:
        occupied = (holders[position].held | holders[position].reported) != 0
        if occupied and _report_entry(holders, position, instance):
            continue  # another entry may have moved here
        position = (position + 1) & mask
        left -= 1


@kernel
def _note_depth(instances: np.uint64, depth: int, depths: NDArray[np.int64]) -> None:
    """depths[i] = depth for every bit i of `instances`."""
    i = 0
    while instances != 0:
        if instances & np.uint64(1):
            depths[i] = depth
        instances >>= np.uint64(1)
        i += 1


@kernel
def prefix_depths(
    holders: NDArray[np.void],
    block_ids: NDArray[np.int64],
    num_blocks: int,
    reported: bool,
    depths: NDArray[np.int64],
) -> None:
    """For every instance, how many leading blocks of a prompt it holds (or reported to hold)."""
    num_instances = depths.size
    alive = ~np.uint64(0) >> np.uint64(64 - num_instances)
    for j in range(num_blocks):
        position = find_entry(holders, block_ids[j])
        entry = holders[position].reported if reported else holders[position].held
        _note_depth(alive & ~entry, j, depths)
        alive &= entry
        if alive == 0:
            return
    _note_depth(alive, num_blocks, depths)
