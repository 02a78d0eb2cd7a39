"""Instances that go down and come back, and other things that happen to them from outside.

The caller sees to it that `time` is not before any event of the cluster that has happened, and that
steps which end at `time` have ended.
"""

from prefixgym.envs.cluster.block_cache import erase_slot, reset_cache
from prefixgym.envs.cluster.block_index import remove_holder
from prefixgym.envs.cluster.engine import (
    end_cancelled,
    fail_attempt,
    forget_work,
    hang,
    leap_steps_until,
    leap_ticks,
    shorten_leap,
    sum_integrals,
    unqueue,
)
from prefixgym.envs.cluster.journal import CLEARED, REMOVED, note_change
from prefixgym.envs.cluster.state import (
    BATCHED,
    DECODE_LEAP,
    HANGING,
    LOST,
    MIXED_STEP,
    NONE,
    QUEUED,
    SERVING,
    ClusterArrays,
    settings_row,
)
from prefixgym.envs.jit import cold_kernel


@cold_kernel
def take_down(c: ClusterArrays, e: int, i: int, time: int, phase: int) -> None:
    """Instance i ends at `time`, and its cache with it; `phase` is DOWN or LOST.

    If it is DOWN its requests fail, those in the batch first; if it is LOST they hang.
    """
    status, instance = c.status[e, i], c.instances[e, i]
    sum_integrals(c, e, i, time)
    if status.mode == MIXED_STEP:
        instance.busy_ticks -= status.due // 2 - time  # counted when the step began
    elif status.mode == DECODE_LEAP:
        # The step in which it falls, or that ends just now, is the last of these.
        steps = leap_steps_until(c, e, i, time)
        if leap_ticks(c, e, i, steps) > time - instance.leap_start:
            steps -= 1
        instance.steps += steps
        instance.busy_ticks += time - instance.leap_start
    instance.phase = phase
    instance.epoch += 1
    instance.stamp = 2 * time
    note_change(c.journals, e, i, instance, CLEARED, NONE, NONE)
    for b in range(status.running):
        q = c.running[e, i, b].flight
        c.flights[e, q].num_slots = 0
        c.flights[e, q].published = 0
        _lose(c, e, i, q, time)
    q = instance.waiting_head
    while q != NONE:
        following = c.flights[e, q].next
        _lose(c, e, i, q, time)
        q = following
    num_blocks = c.limits[settings_row(c, e), i].num_blocks
    for slot in range(num_blocks):
        if c.slots[e, i, slot].key != NONE:
            remove_holder(c, e, c.slots[e, i, slot].key, i)
    forget_work(c, e, i)
    reset_cache(instance, c.slots[e, i], c.slot_table[e, i], num_blocks)


@cold_kernel
def _lose(c: ClusterArrays, e: int, i: int, q: int, time: int) -> None:
    if c.flights[e, q].gone:  # nobody waits for it
        end_cancelled(c, e, q, time)
    elif c.instances[e, i].phase == LOST:
        hang(c, e, i, q)
    else:
        fail_attempt(c, e, q, time)


@cold_kernel
def bring_back(c: ClusterArrays, e: int, i: int, time: int) -> None:
    """Instance i serves from `time` on, with an empty cache; requests that hang there fail."""
    instance = c.instances[e, i]
    sum_integrals(c, e, i, time)
    instance.phase = SERVING
    instance.stamp = 2 * time
    note_change(c.journals, e, i, instance, CLEARED, NONE, NONE)
    fail_hanging(c, e, i, NONE, time)


@cold_kernel
def fail_hanging(c: ClusterArrays, e: int, i: int, replica: int, time: int) -> None:
    """Requests that hang on instance i fail: those of one router, or of all (NONE)."""
    instance = c.instances[e, i]
    q = instance.limbo_head
    instance.limbo_head = NONE
    instance.limbo_tail = NONE
    while q != NONE:
        following = c.flights[e, q].next
        if replica == NONE or c.flights[e, q].replica == replica:
            fail_attempt(c, e, q, time)
        else:
            hang(c, e, i, q)
        q = following


@cold_kernel
def flush_cache(c: ClusterArrays, e: int, i: int, time: int) -> None:
    """Blocks that no request in instance i's batch uses cannot be found any more."""
    instance, slots = c.instances[e, i], c.slots[e, i]
    instance.stamp = 2 * time
    slot = instance.lru_head
    while slot != NONE:
        key = slots[slot].key
        if key != NONE:
            erase_slot(slots, c.slot_table[e, i], slot)
            remove_holder(c, e, key, i)
            note_change(c.journals, e, i, instance, REMOVED, key, NONE)
        slot = slots[slot].next


@cold_kernel
def change_speed(c: ClusterArrays, e: int, i: int, time: int, factor: float) -> None:
    """From the next step on, steps of instance i take `factor` times their nominal time."""
    c.instances[e, i].next_factor = factor
    if c.status[e, i].mode == DECODE_LEAP:
        shorten_leap(c, e, i, time)


@cold_kernel
def let_go(c: ClusterArrays, e: int, q: int, time: int) -> None:
    """The client of flight q, which has left the router, has gone: it ends now, or with the step.

    An engine drops a request of its batch between two steps.
    """
    flight = c.flights[e, q]
    i = flight.instance
    if flight.place == BATCHED:
        flight.gone = 1
        c.instances[e, i].leaving += 1
        if c.status[e, i].mode == DECODE_LEAP:
            shorten_leap(c, e, i, time)
        return
    if flight.place == QUEUED:
        sum_integrals(c, e, i, time)
        unqueue(c, e, i, q)
        if c.status[e, i].mode == DECODE_LEAP:  # it may have kept others from the batch
            shorten_leap(c, e, i, time)
    elif flight.place == HANGING:
        _unhang(c, e, i, q)
    end_cancelled(c, e, q, time)


@cold_kernel
def _unhang(c: ClusterArrays, e: int, i: int, q: int) -> None:
    instance = c.instances[e, i]
    other = instance.limbo_head
    instance.limbo_head = NONE
    instance.limbo_tail = NONE
    while other != NONE:
        following = c.flights[e, other].next
        if other != q:
            hang(c, e, i, other)
        other = following
