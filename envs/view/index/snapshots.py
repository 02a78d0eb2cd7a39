"""The index that snapshots feed: at its turn an instance sends all it has cached, with a version.

The version counts the changes of a cache since its instance started. The router takes in what is
newer than what it has, and changes its belief by the difference (FlexLB,
`routers_flexlb_dynamo_preble_mooncake.md` §1.11). The adaptive interval follows the mean of the
last `DIFFS` differences, once there are three and unless it is within a tenth of the target:
×0.7 above it, ×1.3 below (FlexLB has one interval for all instances; here each has its own).
"""

from prefixgym.envs.cluster.journal import CLEARED, STORED, Journals
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.id_table import NONE, find
from prefixgym.envs.view.index.arrays import (
    DIFFS,
    HASH_BYTES,
    HEADER_BYTES,
    IndexArrays,
)
from prefixgym.envs.view.index.beliefs import bit_of, entry_for, release
from prefixgym.envs.view.index.delivery import SNAPSHOT, send
from prefixgym.envs.view.index.rebuild import FAILED, rebuild, settle

_LEAST_DIFFS = 3


@kernel
def _skip_overwritten(j: Journals, x: IndexArrays, e: int, w: int, i: int) -> None:
    """Records that were written over before their turn are lost to snapshots."""
    line, end, length = x.lines[w, i], j.ends[e, i], j.records.shape[2]
    x.control[w].overrun += end - length - line.position
    line.position = end - length
    # What is cached now, with the rest of the journal undone, was cached there.
    line.cached = 0
    for slot in range(j.slots.shape[2]):
        line.cached += j.slots[e, i, slot].key != NONE
    for k in range(end - 1, line.position - 1, -1):
        kind = j.records[e, i, k % length].kind
        line.cached = 0 if kind == CLEARED else line.cached + (1 if kind != STORED else -1)


@kernel
def _follow(j: Journals, x: IndexArrays, e: int, w: int, i: int, stamp: int) -> None:
    """Count what instance i wrote down up to `stamp`."""
    line, end, length = x.lines[w, i], j.ends[e, i], j.records.shape[2]
    if end - line.position > length:
        _skip_overwritten(j, x, e, w, i)
    while line.position < end:
        record = j.records[e, i, line.position % length]
        if record.stamp > stamp:
            return
        if record.epoch != line.epoch:
            line.epoch = record.epoch
            line.epoch_start = line.position
        if record.kind == CLEARED:
            line.cached = 0
        else:
            line.cached += 1 if record.kind == STORED else -1
        line.position += 1


@kernel
def take_turn(j: Journals, x: IndexArrays, e: int, w: int, i: int) -> bool:
    """Instance i sends a snapshot, unless it is silent; whether it arrives at once."""
    line, control = x.lines[w, i], x.control[w]
    time = line.next_turn
    _follow(j, x, e, w, i, 2 * time)
    line.last_turn = time
    line.next_turn = time + line.interval
    if j.silent[e, i] != 0:
        return False
    version = line.position - line.epoch_start
    control.bytes += HEADER_BYTES + HASH_BYTES * line.cached
    if not x.config[0].perfect:
        send(x, w, i, time, SNAPSHOT, version, line.position, 0)
        return False
    control.messages += 1
    if version == line.heard and line.epoch == line.heard_epoch:  # it tells nothing new
        control.ignored += 1
        return False
    return True


@kernel
def _advance_belief(j: Journals, x: IndexArrays, e: int, w: int, i: int, position: int) -> int:
    """`known` of instance i goes on from the last snapshot to this one; how many blocks changed.

    That number is only found if the interval is adaptive.
    """
    b, bit, length = x.beliefs, bit_of(i), j.records.shape[2]
    counts = x.config[0].adaptive != 0
    start, cleared = x.lines[w, i].believed, False
    for k in range(start, position):
        record = j.records[e, i, k % length]
        if record.kind == CLEARED:
            cleared = True
            for entry in range(b.entries.shape[1]):
                held = b.entries[w, entry]
                if (held.known & bit) != 0:
                    held.known ^= bit
                    held.marked ^= bit
                    if not counts:
                        settle(b, w, i, entry)
            continue
        stored = record.kind == STORED
        entry = entry_for(b, w, record.key) if stored else find(b.table, w, record.key)
        if entry == NONE:
            x.control[w].refused += stored
            continue
        held = b.entries[w, entry]
        if ((held.known & bit) != 0) != stored:
            held.known ^= bit
            if counts:
                held.marked ^= bit
            if (held.marked & bit) == 0:
                release(b, w, entry)
    changes = 0
    if counts and cleared:
        for entry in range(b.entries.shape[1]):
            changes += settle(b, w, i, entry)
    elif counts:
        for k in range(start, position):
            entry = find(b.table, w, j.records[e, i, k % length].key)
            if entry != NONE:
                changes += settle(b, w, i, entry)
    return changes


@kernel
def _adapt(x: IndexArrays, w: int, i: int, changes: int, time: int) -> None:
    """Choose the interval by what snapshots have changed lately."""
    config, line = x.config[0], x.lines[w, i]
    x.diffs[w, i, line.next_diff] = changes
    line.next_diff = (line.next_diff + 1) % DIFFS
    line.num_diffs = min(line.num_diffs + 1, DIFFS)
    total = 0
    for k in range(line.num_diffs):
        total += x.diffs[w, i, k]
    expected = config.target * line.num_diffs
    if line.num_diffs < _LEAST_DIFFS or 10 * abs(total - expected) < expected:
        return
    factor = 7 if total > expected else 13
    line.interval = min(max(line.interval * factor // 10, config.shortest), config.longest)
    line.next_turn = max(time, line.last_turn + line.interval)


@kernel
def take_in_snapshot(
    j: Journals,
    x: IndexArrays,
    e: int,
    w: int,
    i: int,
    version: int,
    position: int,
    epoch: int,
    time: int,
) -> None:
    """A snapshot arrives: of the journal up to `position`, its epoch's version `version`."""
    config, line, control = x.config[0], x.lines[w, i], x.control[w]
    same_epoch = epoch == line.heard_epoch or config.accept_restarts == 0
    if version <= line.heard if same_epoch else epoch < line.heard_epoch:
        control.ignored += 1
        return
    changes = FAILED
    if (
        line.exact
        and position >= line.believed
        and j.ends[e, i] - line.believed <= j.records.shape[2]
    ):
        changes = _advance_belief(j, x, e, w, i, position)
    else:
        changes = rebuild(j, x, e, w, i, position, version)
    if changes == FAILED:
        control.overrun += 1
        return
    line.heard = version
    line.heard_epoch = epoch
    line.believed = position
    line.exact = 1
    if config.adaptive != 0:
        _adapt(x, w, i, changes, time)
