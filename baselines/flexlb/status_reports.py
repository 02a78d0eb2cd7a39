"""How a FlexLB hears of its requests: it polls the status of every worker, by default every 20 ms.

Dispatch is the router's own act and known at once. That the engine took a request up, or is done
with it, is known at the next multiple of the poll interval; a report names what is done first and
what runs second. Source: `routers_flexlb_dynamo_preble_mooncake.md` §1.4, §1.11.
"""

import math

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.flexlb.batch_queue import dispatch, unqueue
from prefixgym.baselines.flexlb.books import (
    ABSENT,
    ALONE,
    NONE,
    QUEUED,
    Books,
    clock_ms,
)
from prefixgym.baselines.flexlb.ledger import leave_entry, note_status
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.view.view import DISPATCHED, FIRST_TOKEN, STARTED


@kernel
def hear(
    b: Books,
    predictor: int,
    status_poll_ms: int,
    e: int,
    events: NDArray[np.void],
    num_events: int,
    now: float,
) -> None:
    """Take in `events` (EVENT_VIEW [K]) and every status poll up to `now` (s)."""
    for k in range(num_events):
        event = events[k]
        if event.kind == DISPATCHED:
            _take_reports(b, predictor, e, clock_ms(event.time))
            if b.members[e, event.slot].state == QUEUED:
                dispatch(b, predictor, e, event.slot, event.time)
        _file(b, status_poll_ms, e, event)
    _take_reports(b, predictor, e, clock_ms(now))


@kernel
def _file(b: Books, status_poll_ms: int, e: int, event: Record) -> None:
    """Keep an event for the first poll that is not before it.

    When the engine took a request up is told by the engine's clock once it is done.
    """
    if event.kind == STARTED:
        b.members[e, event.slot].started = event.time
    report = b.reports[e, b.num_reports[e]]
    report.time = event.time
    report.due = math.ceil((event.time * 1000.0 - 1e-6) / status_poll_ms) * status_poll_ms
    report.slot = event.slot
    report.instance = event.instance
    report.kind = event.kind
    b.num_reports[e] += 1


@kernel
def _take_reports(b: Books, predictor: int, e: int, now: int) -> None:
    """All polls up to ms `now`, one after the other."""
    reports, count = b.reports[e], b.num_reports[e]
    first = 0
    while first < count and reports[first].due <= now:
        last = first
        while last < count and reports[last].due == reports[first].due:
            last += 1
        for k in range(first, last):
            if reports[k].kind != STARTED and reports[k].kind != DISPATCHED:
                _note_done(b, predictor, e, reports[k])
        for k in range(first, last):
            _note_active(b, e, reports[k])
        for k in range(first, last):
            if k == first or reports[k].instance != reports[k - 1].instance:
                note_status(b, e, reports[k].instance, reports[k].due)
        first = last
    if first > 0:
        for k in range(first, count):
            reports[k - first] = reports[k]
        b.num_reports[e] = count - first


@kernel
def _note_done(b: Books, predictor: int, e: int, report: Record) -> None:
    """A first token, or an end, which without a first token before it is a failure."""
    if report.slot == NONE:
        return
    state = b.members[e, report.slot].state
    if state == QUEUED:
        unqueue(b, e, report.slot)
        b.members[e, report.slot].state = ABSENT
    elif state != ABSENT:
        leave_entry(b, predictor, e, report.slot, report.kind == FIRST_TOKEN, report.time)


@kernel
def _note_active(b: Books, e: int, report: Record) -> None:
    """The engine has a request (it was dispatched) or runs it (it was started)."""
    if report.slot == NONE or report.kind > STARTED:
        return
    member = b.members[e, report.slot]
    if member.state == ABSENT or member.state == QUEUED:
        return
    if report.kind == DISPATCHED and member.state == ALONE and not member.reported:
        member.reported = 1
        b.endpoints[e, member.instance].reported_alone += 1
    elif report.kind == STARTED and member.state != ALONE and not member.running:
        member.running = 1
        b.entries[e, member.entry].running_members += 1


@kernel
def admit(
    b: Books, predictor: int, e: int, q: int, prompt: int, hit: int, i: int, now: float
) -> None:
    """A request in slot `q` was routed to worker i at `now` (s); it has no place yet.

    If a report about the slot's last request has not come yet, it is taken in now: at most one poll
    interval early.
    """
    for k in range(b.num_reports[e]):
        if b.reports[e, k].slot == q:
            if b.reports[e, k].kind > STARTED:
                _note_done(b, predictor, e, b.reports[e, k])
            else:
                _note_active(b, e, b.reports[e, k])
            b.reports[e, k].slot = NONE
    member = b.members[e, q]
    if member.state == QUEUED:
        unqueue(b, e, q)
    elif member.state != ABSENT:
        leave_entry(b, predictor, e, q, False, now)
    member.state = ABSENT
    member.prompt = prompt
    member.hit = hit
    member.instance = i
    member.enqueued = now
    member.started = np.nan
    member.running = 0
    member.reported = 0
