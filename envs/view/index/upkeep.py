"""Keeping an index up to date: worked out when it is looked at, as if it had happened in time.

What a router believes at a moment is a function of the journals and of that moment. So nothing
happens between decisions: at each of them, and before what changes how an instance is heard, the
story of every instance since the last time is told, delivered and believed, in order of time. The
stories of different instances do not touch each other.
"""

from prefixgym.envs.cluster.journal import Journals
from prefixgym.envs.jit import cold_kernel
from prefixgym.envs.view.index.arrays import EVENTS, SNAPSHOTS, IndexArrays
from prefixgym.envs.view.index.delivery import next_arrival, take_first
from prefixgym.envs.view.index.events import forget, hear, send_batch, skip_unsent
from prefixgym.envs.view.index.own_decisions import expire, forget_own
from prefixgym.envs.view.index.snapshots import take_in_snapshot, take_turn


@cold_kernel
def bring_up_to_date(j: Journals, x: IndexArrays, e: int, w: int, now: int, until: int) -> None:
    """Row w knows what its router can know at tick `until`.

    At a decision `until` is `now`. Before an instance changes at `now` how it is heard (`silent`),
    or is forgotten, it is now - 1: engine steps that end at `now` come before such a change,
    snapshots and arrivals of that moment after it.

    Args:
        j: the journals, with all that happened until engine steps ended at `now`.
        x: the indexes.
        e: environment of row w.
        w: a row.
        now: ticks, never less than before.
        until: ticks, `now` or one less.
    """
    config, b = x.config[0], x.beliefs
    for i in range(x.lines.shape[1]):
        line, heap, records = x.lines[w, i], x.under_way[w, i], j.records[e, i]
        if config.source == EVENTS and j.ends[e, i] - line.position > records.size:
            skip_unsent(j, x, e, w, i)
        # At one instant arrivals come before turns, but a question is answered after what that
        # instant has brought.
        while config.source == SNAPSHOTS and min(line.next_turn, next_arrival(heap, line)) <= until:
            if next_arrival(heap, line) <= line.next_turn:
                message = heap[take_first(heap, line)]
                arrives, time = True, message.arrival
                version, position, epoch = message.number, message.start, message.epoch
            else:
                arrives, time = take_turn(j, x, e, w, i), line.last_turn
                version, position = line.position - line.epoch_start, line.position
                epoch = line.epoch
            if arrives:
                take_in_snapshot(j, x, e, w, i, version, position, epoch, time)
        while config.source == EVENTS:
            arrival = next_arrival(heap, line)
            is_behind = line.position < j.ends[e, i]
            if is_behind and records[line.position % records.size].stamp <= 2 * min(now, arrival):
                send_batch(j, x, e, w, i)
            elif arrival <= until:
                hear(j, x, e, w, i)
            else:
                break
        if config.own != 0:
            expire(b, w, i, until - config.ttl)
    control = x.control[w]
    control.entries = b.entries.shape[1] - b.table.num_spare[w]
    control.peak_entries = max(control.peak_entries, control.entries)


@cold_kernel
def forget_instance(x: IndexArrays, w: int, i: int) -> None:
    """Row w's router has found instance i to be down and closes its connection; what comes is lost.

    It must have been brought up to date. Whatever the instance tells after this is news.
    """
    line = x.lines[w, i]
    forget_own(x.beliefs, w, i)
    forget(x.beliefs, line, w, i)
    line.under_way = 0
    line.exact = 0
