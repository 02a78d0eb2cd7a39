"""The ledger: the router's own requests in flight, and the prefill work it booked for them."""

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.arrays import ViewArrays


@kernel
def book(v: ViewArrays, e: int, i: int, q: int, new_tokens: int, prefill_ticks: int) -> None:
    """The current request leaves for instance i as flight q."""
    booking, row = v.bookings[e, q], v.instances[e, i]
    booking.open = 1
    booking.tokens = new_tokens
    booking.ticks = prefill_ticks
    row.requests += 1
    row.prefill_requests += 1
    row.prefill_tokens += new_tokens
    row.context_tokens += v.requests[e].prompt_tokens
    _change_backlog(v, e, i, prefill_ticks)


@kernel
def note_first_token(v: ViewArrays, e: int, i: int, q: int) -> None:
    """Flight q on instance i has answered: its prefill is over."""
    booking, row = v.bookings[e, q], v.instances[e, i]
    if booking.open:
        booking.open = 0
        row.prefill_requests -= 1
        row.prefill_tokens -= booking.tokens
        _change_backlog(v, e, i, -booking.ticks)


@kernel
def note_end(v: ViewArrays, e: int, i: int, q: int, prompt_tokens: int) -> None:
    """Flight q on instance i has ended, perhaps without an answer."""
    note_first_token(v, e, i, q)
    v.instances[e, i].requests -= 1
    v.instances[e, i].context_tokens -= prompt_tokens


@kernel
def _change_backlog(v: ViewArrays, e: int, i: int, ticks: int) -> None:
    # Summed in whole ticks, so that an empty ledger is exactly zero.
    v.sources[e, i].backlog += ticks
    v.instances[e, i].backlog_seconds = v.sources[e, i].backlog / TICKS_PER_SECOND
