"""The ledger: the router's own requests in flight, and what it booked and heard of them."""

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.state import NONE
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.arrays import ViewArrays
from prefixgym.envs.view.view import ENDED, FIRST_TOKEN


@kernel
def hear(v: ViewArrays, e: int, i: int, q: int, kind: int, time: int) -> None:
    """At tick `time` the router hears of flight q on instance i."""
    place, seconds = v.num_events[e], time / TICKS_PER_SECOND
    while place > 0 and v.events[e, place - 1].time > seconds:  # polls are not told in order
        later, earlier = v.events[e, place], v.events[e, place - 1]
        later.time = earlier.time
        later.slot = earlier.slot
        later.instance = earlier.instance
        later.kind = earlier.kind
        place -= 1
    event = v.events[e, place]
    event.time = seconds
    event.slot = q
    event.instance = i
    event.kind = kind
    v.num_events[e] += 1


@kernel
def book(v: ViewArrays, e: int, i: int, q: int, new_tokens: int, prefill_ticks: int) -> None:
    """The current request is routed to instance i as flight q."""
    booking, row = v.bookings[e, q], v.instances[e, i]
    booking.open = 1
    booking.started = 0
    booking.batch = NONE
    booking.tokens = new_tokens
    booking.ticks = prefill_ticks
    row.requests += 1
    row.prefill_requests += 1
    row.prefill_tokens += new_tokens
    row.context_tokens += v.requests[e].prompt_tokens
    _change_backlog(v, e, i, prefill_ticks)


@kernel
def note_first_token(v: ViewArrays, e: int, i: int, q: int, time: int) -> None:
    """Flight q on instance i has answered: its prefill is over."""
    _close(v, e, i, q)
    hear(v, e, i, q, FIRST_TOKEN, time)


@kernel
def note_end(v: ViewArrays, e: int, i: int, q: int, prompt_tokens: int, time: int) -> None:
    """Flight q on instance i has ended, perhaps without an answer."""
    _close(v, e, i, q)
    v.instances[e, i].requests -= 1
    v.instances[e, i].context_tokens -= prompt_tokens
    hear(v, e, i, q, ENDED, time)


@kernel
def _close(v: ViewArrays, e: int, i: int, q: int) -> None:
    """Take the prefill of flight q off the books, if it is on them."""
    booking, row = v.bookings[e, q], v.instances[e, i]
    if booking.open:
        booking.open = 0
        row.prefill_requests -= 1
        row.prefill_tokens -= booking.tokens
        _change_backlog(v, e, i, -booking.ticks)
        if booking.batch != NONE:
            v.batches[e, i, booking.batch] -= 1


@kernel
def _change_backlog(v: ViewArrays, e: int, i: int, ticks: int) -> None:
    # Summed in whole ticks, so that an empty ledger is exactly zero.
    v.sources[e, i].backlog += ticks
    v.instances[e, i].backlog_seconds = v.sources[e, i].backlog / TICKS_PER_SECOND
