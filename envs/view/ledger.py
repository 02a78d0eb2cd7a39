"""The ledger: the router's own requests in flight, and what it booked and heard of them."""

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.state import NONE
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.arrays import ViewArrays
from prefixgym.envs.view.experience import note_booked, note_wait
from prefixgym.envs.view.view import FIRST_TOKEN, PREFILLED


@kernel
def hear(v: ViewArrays, w: int, i: int, q: int, kind: int, time: int) -> None:
    """At tick `time` router w hears of flight q on instance i."""
    place, seconds = v.num_events[w], time / TICKS_PER_SECOND
    while place > 0 and v.events[w, place - 1].time > seconds:  # polls are not told in order
        later, earlier = v.events[w, place], v.events[w, place - 1]
        later.time = earlier.time
        later.slot = earlier.slot
        later.instance = earlier.instance
        later.kind = earlier.kind
        place -= 1
    event = v.events[w, place]
    event.time = seconds
    event.slot = q
    event.instance = i
    event.kind = kind
    v.num_events[w] += 1


@kernel
def book(
    v: ViewArrays,
    e: int,
    w: int,
    i: int,
    q: int,
    new_tokens: int,
    prefill_ticks: int,
    time: int,
) -> None:
    """Router w of environment e sends the current request to instance i as flight q."""
    booking, row = v.bookings[e, q], v.instances[w, i]
    booking.routed = time
    booking.open = 1
    booking.started = 0
    booking.batch = NONE
    booking.tokens = new_tokens
    booking.ticks = prefill_ticks
    row.requests += 1
    row.prefill_requests += 1
    row.prefill_tokens += new_tokens
    row.context_tokens += v.requests[e].prompt_tokens
    _change_backlog(v, w, i, prefill_ticks)
    booking.expected = v.sources[w, i].backlog
    note_booked(v, w, i, prefill_ticks)


@kernel
def book_decoding(v: ViewArrays, e: int, w: int, i: int) -> None:
    """The current request, prefilled elsewhere, will be decoded on instance i."""
    row = v.instances[w, i]
    row.requests += 1
    row.context_tokens += v.requests[e].prompt_tokens


@kernel
def unbook_decoding(v: ViewArrays, w: int, i: int, prompt_tokens: int) -> None:
    """What was to be decoded on instance i has ended before."""
    v.instances[w, i].requests -= 1
    v.instances[w, i].context_tokens -= prompt_tokens


@kernel
def note_prefilled(
    v: ViewArrays, e: int, w: int, i: int, q: int, prompt_tokens: int, time: int
) -> None:
    """Instance i has prefilled flight q, which decodes elsewhere: it is off its books."""
    _close(v, e, w, i, q)
    note_wait(v, w, i, v.bookings[e, q].expected, time - v.bookings[e, q].routed)
    v.instances[w, i].requests -= 1
    v.instances[w, i].context_tokens -= prompt_tokens
    hear(v, w, i, q, PREFILLED, time)


@kernel
def note_first_token(v: ViewArrays, e: int, w: int, i: int, q: int, time: int) -> None:
    """Flight q on instance i has answered: its prefill is over, there or elsewhere."""
    if v.bookings[e, q].open:
        _close(v, e, w, i, q)
        note_wait(v, w, i, v.bookings[e, q].expected, time - v.bookings[e, q].routed)
    hear(v, w, i, q, FIRST_TOKEN, time)


@kernel
def note_end(
    v: ViewArrays, e: int, w: int, i: int, q: int, prompt_tokens: int, kind: int, time: int
) -> None:
    """Flight q on instance i has ended, perhaps without an answer: ENDED, FAILED or CANCELLED."""
    _close(v, e, w, i, q)
    v.instances[w, i].requests -= 1
    v.instances[w, i].context_tokens -= prompt_tokens
    hear(v, w, i, q, kind, time)


@kernel
def _close(v: ViewArrays, e: int, w: int, i: int, q: int) -> None:
    """Take the prefill of flight q off the books, if it is on them."""
    booking, row = v.bookings[e, q], v.instances[w, i]
    if booking.open:
        booking.open = 0
        row.prefill_requests -= 1
        row.prefill_tokens -= booking.tokens
        _change_backlog(v, w, i, -booking.ticks)
        if booking.batch != NONE:
            v.batches[w, i, booking.batch] -= 1


@kernel
def _change_backlog(v: ViewArrays, w: int, i: int, ticks: int) -> None:
    # Summed in whole ticks, so that an empty ledger is exactly zero.
    v.sources[w, i].backlog += ticks
    v.instances[w, i].backlog_seconds = v.sources[w, i].backlog / TICKS_PER_SECOND
