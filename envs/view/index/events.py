"""The index that events feed: after every engine step an instance tells what it stored and removed.

The changes of one moment are one message, numbered from 0 within an incarnation of the instance.
The protections of the router are those of Dynamo's indexer
(`routers_flexlb_dynamo_preble_mooncake.md` §2.6, §2.7, §2.9) and can be switched off one by one,
see `knowledge.Events`.

A dead publisher numbers nothing: vLLM's numbers a batch when its thread sends it, so a message that
no thread sends leaves no gap behind (Dynamo #11783). The router cannot know that it missed
something, until a block is told of again or a dump is sent for another reason.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER
from prefixgym.envs.cluster.journal import REMOVED, STORED, Journals
from prefixgym.envs.jit import Record, cold_kernel, kernel
from prefixgym.envs.view.id_table import NONE, find
from prefixgym.envs.view.index.arrays import HASH_BYTES, HEADER_BYTES, Beliefs, IndexArrays
from prefixgym.envs.view.index.beliefs import (
    REMEMBERED,
    bit_of,
    bury,
    entry_for,
    forget_descendants,
    forget_known,
    is_newer,
    link_to_parent,
    release,
    unbury,
    unbury_old,
)
from prefixgym.envs.view.index.delivery import (
    BATCH,
    DUMP,
    NO_ANSWER,
    QUESTION,
    REPLAY,
    put_under_way,
    send,
    take_first,
)
from prefixgym.envs.view.index.rebuild import FAILED, rebuild

# --- the instance ---


@kernel
def _batch_bytes(records: NDArray[np.void], stored_bytes: int, start: int, count: int) -> int:
    """Size of a message: a run of stored blocks names the block before it once."""
    size, before = HEADER_BYTES, NONE
    for k in range(start, start + count):
        record = records[k % records.size]
        size += stored_bytes if record.kind == STORED else HASH_BYTES
        if record.kind == STORED and (record.parent != before or before == NONE):
            size += HASH_BYTES
        before = record.key if record.kind == STORED else NONE
    return size


@kernel
def _number(sent: NDArray[np.void], line: Record, start: int, count: int) -> int:
    """The number of a new message with these records, which can be asked for from now on."""
    place = sent[line.sent % sent.size]
    place.start = start
    place.count = count
    line.sent += 1
    line.next_number += 1
    return line.next_number - 1


@kernel
def _begin_epoch(line: Record, epoch: int) -> None:
    """The instance has started anew, and numbers from 0."""
    line.epoch = epoch
    line.epoch_sent = line.sent
    line.next_number = 0


@kernel
def skip_unsent(j: Journals, x: IndexArrays, e: int, w: int, i: int) -> None:
    """Records that were written over before they were sent are lost: one message in a gap."""
    line, records = x.lines[w, i], j.records[e, i]
    oldest = j.ends[e, i] - records.size
    x.control[w].overrun += oldest - line.position
    line.position = oldest
    epoch = records[oldest % records.size].epoch
    if epoch != line.epoch:
        _begin_epoch(line, epoch)
    if j.silent[e, i] == 0:
        _number(x.sent[w, i], line, NONE, 0)


@kernel
def send_batch(j: Journals, x: IndexArrays, e: int, w: int, i: int) -> None:
    """Instance i sends the next records of one moment, unless it is silent."""
    line, records, end = x.lines[w, i], j.records[e, i], j.ends[e, i]
    start = line.position
    first = records[start % records.size]
    while line.position < end:
        record = records[line.position % records.size]
        if record.stamp != first.stamp or record.epoch != first.epoch:
            break
        line.position += 1
    if first.epoch != line.epoch:
        _begin_epoch(line, first.epoch)
    if j.silent[e, i] != 0:
        return
    count = line.position - start
    x.control[w].bytes += _batch_bytes(records, x.config[0].stored_bytes, start, count)
    number = _number(x.sent[w, i], line, start, count)
    send(x, w, i, first.stamp >> 1, BATCH, number, start, count)


@kernel
def _answer(
    j: Journals,
    x: IndexArrays,
    e: int,
    w: int,
    i: int,
    time: int,
    asked: int,
    last: int,
    epoch: int,
) -> None:
    """Instance i is asked at tick `time` for its messages `asked` … `last` of `epoch`."""
    line, control, kept = x.lines[w, i], x.control[w], x.sent.shape[2]
    heap, records = x.under_way[w, i], j.records[e, i]
    arrival, newest = time + x.config[0].back, line.next_number - 1
    another = x.config[0].barriers != 0 and epoch != line.epoch
    if j.silent[e, i] != 0 or (asked > newest and not another):
        put_under_way(heap, line, control, arrival, NO_ANSWER, 0, 0, 0, epoch)
        return
    control.messages += 1
    last = min(last, newest)
    whole = another or asked < line.next_number - min(x.config[0].replay, kept)
    size, number = 0, asked
    while number <= last and not whole:
        sent = x.sent[w, i, (line.epoch_sent + number) % kept]
        whole = sent.start == NONE or sent.start < j.ends[e, i] - records.size
        if not whole:
            size += _batch_bytes(records, x.config[0].stored_bytes, sent.start, sent.count)
        number += 1
    if whole:
        put_under_way(heap, line, control, arrival, DUMP, newest, line.position, 0, line.epoch)
    else:
        control.bytes += size
        put_under_way(
            heap, line, control, arrival, REPLAY, asked, line.epoch_sent, last, line.epoch
        )


# --- the router ---


@kernel
def _ask(
    heap: NDArray[np.void], config: Record, line: Record, control: Record, time: int, last: int
) -> None:
    """Ask the instance for the messages after the last one heard, up to number `last`."""
    there, first = time + config.there, line.heard + 1
    if put_under_way(heap, line, control, there, QUESTION, first, 0, last, line.heard_epoch):
        line.asked = 1
        control.messages += 1
        control.gaps += 1


@kernel
def _clear(b: Beliefs, dated: bool, line: Record, w: int, i: int, number: int) -> None:
    """Message `number` says that the cache was emptied."""
    if not dated:
        forget_known(b, w, i)
        return
    if number < line.floor:
        return
    line.floor = number
    for entry in range(b.entries.shape[1]):
        held = b.entries[w, entry]
        if (held.known & bit_of(i)) != 0 and b.changed[w, entry, i] <= number:
            held.known &= ~bit_of(i)
            release(b, w, entry)


@kernel
def _store(
    b: Beliefs,
    config: Record,
    line: Record,
    control: Record,
    w: int,
    i: int,
    record: Record,
    number: int,
) -> None:
    """Message `number` says that a block is cached."""
    bit, dated = bit_of(i), config.dated != 0
    if dated:
        entry = find(b.table, w, record.key)
        old = entry != NONE and is_newer(b, w, i, entry, number)
        if old or number < line.floor:
            return
    if config.require_parent != 0 and record.parent != NONE:
        entry = find(b.table, w, record.parent)
        if entry == NONE or (b.entries[w, entry].known & bit) == 0:
            control.dropped += 1
            return
    entry = entry_for(b, w, record.key)
    if entry == NONE:
        control.refused += 1
        return
    if dated:
        if (b.entries[w, entry].buried & bit) != 0:
            unbury(b, w, i, entry)
        b.changed[w, entry, i] = number
    b.entries[w, entry].known |= bit
    if config.drop_descendants != 0:
        link_to_parent(b, w, entry, record.parent)


@kernel
def _remove(
    b: Beliefs,
    config: Record,
    line: Record,
    control: Record,
    w: int,
    i: int,
    record: Record,
    number: int,
) -> None:
    """Message `number` says that a block is cached no more."""
    dated = config.dated != 0
    if dated and number < line.floor:
        return
    # Of a block that was never heard of it is worth remembering that it is gone.
    entry = entry_for(b, w, record.key) if dated else find(b.table, w, record.key)
    if entry == NONE:
        control.refused += dated
        return
    if dated and is_newer(b, w, i, entry, number):
        return
    b.entries[w, entry].known &= ~bit_of(i)
    if dated:
        bury(b, w, i, entry, number)
    if config.drop_descendants != 0:
        forget_descendants(b, w, i, entry)
    release(b, w, entry)


@cold_kernel
def _take_in(
    records: NDArray[np.void],
    end: int,
    b: Beliefs,
    config: Record,
    line: Record,
    control: Record,
    w: int,
    i: int,
    start: int,
    count: int,
    number: int,
) -> bool:
    """Believe a message; False if the journal, which is at `end`, no longer has its content."""
    if start == NONE or start < end - records.size:
        control.overrun += 1
        return False
    for k in range(start, start + count):
        record = records[k % records.size]
        if record.kind == STORED:
            _store(b, config, line, control, w, i, record, number)
        elif record.kind == REMOVED:
            _remove(b, config, line, control, w, i, record, number)
        elif config.barriers != 0:
            _clear(b, config.dated != 0, line, w, i, number)
    if config.dated != 0:
        unbury_old(b, w, i, number - REMEMBERED)
    return True


@kernel
def _hold(
    held: NDArray[np.void], line: Record, control: Record, number: int, start: int, count: int
) -> None:
    """Keep a message for later, in order; of too many the oldest goes."""
    at = line.held
    while at > 0 and held[at - 1].number > number:
        at -= 1
    if at > 0 and held[at - 1].number == number:
        return  # its second copy
    control.held_back += 1
    if line.held == held.size:
        if at == 0:
            return
        at -= 1
        for k in range(at):
            held[k] = held[k + 1]
    else:
        for k in range(line.held, at, -1):
            held[k] = held[k - 1]
        line.held += 1
    held[at].number = number
    held[at].start = start
    held[at].count = count


@kernel
def _take_in_order(
    j: Journals,
    x: IndexArrays,
    e: int,
    w: int,
    i: int,
    first: int,
    last: int,
    start: int,
    count: int,
    epoch_sent: int,
) -> None:
    """Take in messages `first` … `last`, then all held ones that now follow without a gap.

    A single message comes with `start` and `count` of its records, those of a replay are found in
    `sent` from `epoch_sent` on (NONE for a single one).
    """
    config, line, control = x.config[0], x.lines[w, i], x.control[w]
    held, records, end = x.held[w, i], j.records[e, i], j.ends[e, i]
    number, taken = first, 0
    while True:
        if number <= last:
            if epoch_sent != NONE:
                place = epoch_sent + number
                sent = x.sent[w, i, place % x.sent.shape[2]]
                known = place >= line.sent - x.sent.shape[2]
                start, count = (sent.start, sent.count) if known else (NONE, 0)
                # A late one may have come by itself since it was asked for.
                if number <= line.heard and config.buffer > 0:
                    number += 1
                    continue
        elif taken < line.held and held[taken].number <= line.heard + 1:
            message = held[taken]
            number, start, count = message.number, message.start, message.count
            taken += 1
            if number <= line.heard:
                continue
        else:
            break
        if _take_in(records, end, x.beliefs, config, line, control, w, i, start, count, number):
            line.heard = max(line.heard, number)
        elif config.buffer > 0:
            break  # a gap
        number += 1
    if taken > 0:
        line.held -= taken
        for k in range(line.held):
            held[k] = held[k + taken]


@kernel
def hear(j: Journals, x: IndexArrays, e: int, w: int, i: int) -> None:
    """The first message under way arrives."""
    config, line, control = x.config[0], x.lines[w, i], x.control[w]
    heap = x.under_way[w, i]
    message = heap[take_first(heap, line)]
    time, kind, number = message.arrival, message.kind, message.number
    start, count, epoch = message.start, message.count, message.epoch
    if kind == QUESTION:
        _answer(j, x, e, w, i, time, number, count, epoch)
        return
    if config.barriers != 0 and epoch < line.heard_epoch:
        control.ignored += 1
        return
    if config.barriers != 0 and epoch > line.heard_epoch:
        forget(x.beliefs, line, w, i)
        line.heard_epoch = epoch
    first, last, epoch_sent = number, number, NONE
    if kind == NO_ANSWER:
        line.asked = 0
        line.held = 0
        control.unanswered += 1
        return
    if kind == BATCH:
        if number <= line.heard and config.ignore_old != 0:
            control.ignored += 1
            return
        if number > line.heard + 1 and config.recover != 0:
            if config.buffer > 0:
                _hold(x.held[w, i], line, control, number, start, count)
                if line.asked == 0:
                    _ask(heap, config, line, control, time, NEVER)
                return
            _ask(heap, config, line, control, time, number - 1)
    elif kind == REPLAY:
        line.asked = 0
        control.replays += 1
        last, epoch_sent = count, start
    else:
        line.asked = 0
        last = NONE  # a dump is no message
        if number > line.heard or config.buffer == 0:
            _take_dump(j, x, e, w, i, number, start)
    _take_in_order(j, x, e, w, i, first, last, start, count, epoch_sent)
    if line.held > 0 and line.asked == 0:
        _ask(heap, config, line, control, time, NEVER)


@kernel
def _take_dump(
    j: Journals, x: IndexArrays, e: int, w: int, i: int, number: int, position: int
) -> None:
    """Believe a whole cache, in which messages up to `number` are contained."""
    config, line, control = x.config[0], x.lines[w, i], x.control[w]
    b = x.beliefs
    if config.dated != 0 and number < line.floor:
        control.ignored += 1
        return
    if rebuild(j, x, e, w, i, position, number) == FAILED:
        control.overrun += 1
        line.held = 0
        return
    control.dumps += 1
    control.bytes += HEADER_BYTES
    for entry in range(b.entries.shape[1]):
        if (b.entries[w, entry].known & bit_of(i)) != 0:
            control.bytes += HASH_BYTES + config.stored_bytes
    line.heard = max(line.heard, number)
    line.floor = number + 1


@kernel
def forget(b: Beliefs, line: Record, w: int, i: int) -> None:
    """Start anew with instance i, of which nothing is known."""
    forget_known(b, w, i)
    line.heard = NONE
    line.floor = 0
    line.held = 0
    line.asked = 0
