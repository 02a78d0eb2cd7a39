"""The blocks of a request in an engine's batch: taken, made findable, given back."""

from prefixgym.envs.cluster.block_cache import (
    append_to_lru,
    erase_slot,
    find_slot,
    insert_slot,
    remove_from_lru,
)
from prefixgym.envs.cluster.block_index import add_holder, is_indexed, remove_holder
from prefixgym.envs.cluster.journal import REMOVED, STORED, note_change
from prefixgym.envs.cluster.state import NONE, ClusterArrays
from prefixgym.envs.jit import kernel


@kernel
def tokens_per_block(c: ClusterArrays) -> int:
    """Tokens in a block, the same on all instances."""
    return c.limits[0, 0].block_size


@kernel
def take_block(c: ClusterArrays, e: int, i: int, q: int) -> None:
    """Give flight q one more block: the least recently used one that no request uses."""
    instance, slots = c.instances[e, i], c.slots[e, i]
    slot = instance.lru_head
    remove_from_lru(instance, slots, slot)
    key = slots[slot].key
    if key != NONE:
        erase_slot(slots, c.slot_table[e, i], slot)
        remove_holder(c, e, key, i)
        note_change(c.journals, e, i, instance, REMOVED, key, NONE)
    slots[slot].users = 1
    flight = c.flights[e, q]
    c.flight_slots[e, q, flight.num_slots] = slot
    flight.num_slots += 1
    c.status[e, i].free_blocks -= 1


@kernel
def publish_blocks(c: ClusterArrays, e: int, i: int, q: int, full_blocks: int) -> None:
    """Make the first `full_blocks` blocks of flight q findable, as far as they have an id."""
    flight, slots = c.flights[e, q], c.slots[e, i]
    last = min(full_blocks, flight.cacheable)
    for j in range(flight.published, last):
        key = c.flight_blocks[e, q, j]
        if is_indexed(c):
            is_new = add_holder(c, e, key, i)
        else:
            is_new = find_slot(slots, c.slot_table[e, i], key) == NONE
        if is_new:
            insert_slot(slots, c.slot_table[e, i], c.flight_slots[e, q, j], key)
            before = c.flight_blocks[e, q, j - 1] if j > 0 else NONE
            note_change(c.journals, e, i, c.instances[e, i], STORED, key, before)
    flight.published = max(flight.published, last)


@kernel
def release_blocks(c: ClusterArrays, e: int, i: int, q: int) -> None:
    """Flight q uses its blocks no more; they become evictable, the tail first."""
    flight, slots = c.flights[e, q], c.slots[e, i]
    for j in range(flight.num_slots - 1, -1, -1):
        slot = c.flight_slots[e, q, j]
        slots[slot].users -= 1
        if slots[slot].users == 0:
            append_to_lru(c.instances[e, i], slots, slot)
            c.status[e, i].free_blocks += 1
    flight.num_slots = 0
    flight.published = 0
