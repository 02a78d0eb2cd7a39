"""How much of a workload one LRU cache of a given size would find again, without an engine.

One cache, requests in the order of the tape. A request hits with its leading blocks that are
cached; then all its blocks are touched, the head last, so that a prefix loses its tail before its
head. All blocks count, a partial last one included. The method is that of `traces.md` §3, which has
the resulting numbers for public traces; engines cache full blocks alone and hold what is in use.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.block_cache import (
    append_to_lru,
    erase_slot,
    find_slot,
    insert_slot,
    remove_from_lru,
    reset_cache,
)
from prefixgym.envs.cluster.state import INSTANCE, NONE, SLOT
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.workload.tape import Tape


@kernel
def _touch(instance: Record, slots: NDArray[np.void], table: NDArray[np.int32], key: int) -> None:
    """Block `key` becomes the most recently used; if it is new, the least recently used goes."""
    slot = find_slot(slots, table, key)
    if slot == NONE:
        slot = instance.lru_head
        if slots[slot].key != NONE:
            erase_slot(slots, table, slot)
        insert_slot(slots, table, slot, key)
    remove_from_lru(instance, slots, slot)
    append_to_lru(instance, slots, slot)


@kernel
def _replay_request(
    instances: NDArray[np.void],
    slots: NDArray[np.void],
    table: NDArray[np.int32],
    ids: NDArray[np.int64],
) -> int:
    """Touch all blocks of a prompt; how many leading ones were cached before."""
    hits = 0
    while hits < ids.size and find_slot(slots, table, ids[hits]) != NONE:
        hits += 1
    for j in range(ids.size - 1, -1, -1):
        _touch(instances[0], slots, table, ids[j])
    return hits


@kernel
def _reset(instances: NDArray[np.void], slots: NDArray[np.void], table: NDArray[np.int32]) -> None:
    reset_cache(instances[0], slots, table, slots.size)


def lru_hit_rate(tape: Tape, num_blocks: int) -> float:
    """Share of the prompts' blocks that an LRU cache of `num_blocks` blocks finds.

    Args:
        tape: the requests, taken in the order of their rows.
        num_blocks: blocks that the cache holds, at least 1. As many as the tape has blocks, or
            more, make it infinite.

    Raises:
        ValueError: `num_blocks` is below 1.
    """
    if num_blocks < 1:
        raise ValueError(f"num_blocks: found {num_blocks}, must be at least 1")
    counts = tape.requests["num_blocks"].astype(int).tolist()
    size = min(num_blocks, max(1, sum(counts)))
    instances, slots = np.zeros(1, INSTANCE), np.zeros(size, SLOT)
    table = np.zeros(1 << (2 * size - 1).bit_length(), np.int32)
    _reset(instances, slots, table)
    hits = 0
    for row, count in enumerate(counts):
        hits += _replay_request(instances, slots, table, tape.block_ids(row)[:count])
    return hits / max(1, sum(counts))
