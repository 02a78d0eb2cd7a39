"""The course of a request: it takes off, fails and is sent again, or ends and is judged."""

import numpy as np

from prefixgym.envs.clock import NEVER, TICKS_PER_SECOND
from prefixgym.envs.cluster import state
from prefixgym.envs.cluster.engine import return_flight, take_flight
from prefixgym.envs.cluster.outages import let_go
from prefixgym.envs.credit import (
    PROMISE,
    change_promise,
    keeps_promises,
    promise_nothing,
    settle,
)
from prefixgym.envs.episode_state import SimulationArrays
from prefixgym.envs.heap import first_time, push, remove
from prefixgym.envs.jit import cold_kernel, kernel
from prefixgym.envs.rng import uniform
from prefixgym.envs.timers import CANCELLATION, TIMEOUT
from prefixgym.envs.view.arrays import router_row
from prefixgym.envs.view.experience import note_decode
from prefixgym.envs.view.ledger import note_end, unbook_decoding
from prefixgym.envs.view.queues import take_out
from prefixgym.envs.view.view import CANCELLED, ENDED, FAILED
from prefixgym.envs.workload.tape import NO_ROW

_AHEAD = 2**62
"""More than the timers of an episode."""


@kernel
def ttft_objective(s: SimulationArrays, e: int, row: int) -> int:
    """Most ticks to the first token of request `row`."""
    request = s.tapes[e, row]
    objective = s.objectives[e, request.slo_class]
    return objective.ttft + objective.ttft_per_token * request.prompt_tokens


@kernel
def take_off(s: SimulationArrays, e: int) -> int:
    """The current request becomes a flight, or is the one again that failed before."""
    episode = s.episodes[e]
    q = episode.flight
    if q == state.NONE:
        q = take_flight(s.cluster, e)
        request, flight = s.tapes[e, episode.row], s.cluster.flights[e, q]
        flight.arrival = episode.now
        flight.prompt_tokens = request.prompt_tokens
        flight.output_tokens = request.output_tokens
        flight.cacheable = request.cacheable_blocks
        flight.row = episode.row
        flight.attempt = 0
        flight.gone = 0
        promise_nothing(s.credit, e, q)
        if s.timers.clients[0].timeout < NEVER or s.timers.clients[0].cancel > 0.0:
            _set_patience(s, e, q)
    else:
        s.cluster.flights[e, q].attempt += 1
    flight = s.cluster.flights[e, q]
    flight.first_token = NEVER
    flight.hit_tokens = state.NONE
    flight.decision = episode.decisions
    flight.replica = episode.replica
    flight.status = state.FINISHED
    return q


@cold_kernel
def turn_away(s: SimulationArrays, e: int) -> None:
    """The current request is rejected by the router: it ends at once, and no instance sees it."""
    q = take_off(s, e)
    flight = s.cluster.flights[e, q]
    flight.instance = state.NONE
    flight.prefiller = state.NONE
    flight.decoder = state.NONE
    flight.end = s.episodes[e].now
    flight.status = state.REJECTED
    resolve(s, e, q)


@kernel
def note_promise(s: SimulationArrays, e: int, q: int) -> None:
    """Flight q has its first token: what was promised of it has come true, or not."""
    flight = s.cluster.flights[e, q]
    ttft = flight.first_token - flight.arrival + s.frontend[0]
    in_time = ttft <= ttft_objective(s, e, flight.row)
    change_promise(s.credit, e, q, PROMISE if in_time else 0)


@kernel
def end_attempt(s: SimulationArrays, e: int, q: int) -> None:
    """Flight q has ended: its router hears of it, and its client may try again."""
    v, flight, clients = s.knowledge, s.cluster.flights[e, q], s.timers.clients[0]
    if not s.episodes[e].unseen and not _leaks(s, e, q):
        kind = ENDED
        if flight.status == state.FAILED:
            kind = FAILED
        elif flight.status == state.CANCELLED:
            kind = CANCELLED
        w = router_row(v, e, flight.replica)
        if flight.status == state.FINISHED and flight.output_tokens > 1:
            decoding = flight.end - flight.first_token
            note_decode(v, w, flight.instance, flight.output_tokens - 1, decoding)
        note_end(v, e, w, flight.instance, q, flight.prompt_tokens, kind, flight.end)
        if flight.decoder != state.NONE and flight.decoder != flight.instance:
            unbook_decoding(v, w, flight.decoder, flight.prompt_tokens)
    if flight.status == state.FAILED and flight.attempt < clients.retries:
        _send_again(s, e, q, flight.end + clients.retry_delay)
    else:
        resolve(s, e, q)


@kernel
def _leaks(s: SimulationArrays, e: int, q: int) -> bool:
    """Whether flight q was cancelled and its router is never told."""
    flight, clients, episode = s.cluster.flights[e, q], s.timers.clients[0], s.episodes[e]
    if flight.status != state.CANCELLED or clients.leak == 0.0:
        return False
    return uniform(episode.client_key, 2 * episode.num_requests + flight.row) < clients.leak


@cold_kernel
def _send_again(s: SimulationArrays, e: int, q: int, time: int) -> None:
    """Flight q has failed; its client sends it again at `time`."""
    episode, flight = s.episodes[e], s.cluster.flights[e, q]
    flight.place = state.AWAY
    flight.first_token = NEVER
    if keeps_promises(s.credit):
        change_promise(s.credit, e, q, 0)
    push(s.pending[e], episode.num_pending, time, flight.row, 0, q, 0)
    episode.num_pending += 1


@kernel
def resolve(s: SimulationArrays, e: int, q: int) -> None:
    """Flight q is over: judge it, record it, release its follow-ups and its record."""
    episode, flight = s.episodes[e], s.cluster.flights[e, q]
    request = s.tapes[e, flight.row]
    objective = s.objectives[e, request.slo_class]
    most_ttft = ttft_objective(s, e, flight.row)
    answered = flight.first_token != NEVER and flight.status in (state.FINISHED, state.CANCELLED)
    finished = flight.status == state.FINISHED
    ttft = flight.first_token - flight.arrival + s.frontend[0]
    decoding = flight.end - flight.first_token
    met = finished and ttft <= most_ttft and decoding <= objective.tpot * (flight.output_tokens - 1)
    if s.outcomes.shape[1] > 0:
        outcome = s.outcomes[e, episode.ended]
        outcome.arrival = flight.arrival / TICKS_PER_SECOND
        outcome.ttft = ttft / TICKS_PER_SECOND if answered else np.nan
        outcome.tpot = 0.0
        if finished and flight.output_tokens > 1:
            outcome.tpot = decoding / TICKS_PER_SECOND / (flight.output_tokens - 1)
        outcome.end = flight.end / TICKS_PER_SECOND
        outcome.prompt_tokens = flight.prompt_tokens
        outcome.output_tokens = flight.output_tokens
        outcome.hit_tokens = max(0, flight.hit_tokens)
        outcome.instance = flight.prefiller
        outcome.decoder = flight.prefiller if flight.decoder == state.NONE else flight.decoder
        outcome.session = request.session
        outcome.slo_class = request.slo_class
        outcome.row = flight.row
        outcome.status = flight.status
        outcome.attempts = flight.attempt + 1
        outcome.replica = flight.replica
        outcome.good = met
    episode.ended += 1
    episode.good += met
    if keeps_promises(s.credit):
        change_promise(s.credit, e, q, 0)
    settle(s.credit, e, flight, ttft, most_ttft, decoding, objective.tpot, met)
    child = request.first_child
    while child != NO_ROW:
        _release(s, e, child, flight.end)
        child = s.tapes[e, child].next_sibling
    if request.then != NO_ROW:
        _release(s, e, request.then, flight.end)
    if s.timers.clients[0].timeout < NEVER or s.timers.clients[0].cancel > 0.0:
        _forget_patience(s, e, q)
    return_flight(s.cluster, e, q)


@kernel
def _release(s: SimulationArrays, e: int, row: int, end: int) -> None:
    """Of the ends that `row` waits for, one more has come: at tick `end`."""
    follow_up, episode = s.tapes[e, row], s.episodes[e]
    follow_up.waits_for -= 1
    if follow_up.waits_for == 0:
        time = end + follow_up.arrival
        push(s.pending[e], episode.num_pending, time, row, 0, state.NONE, 0)
        episode.num_pending += 1


# --- clients who do not wait ------------------------------------------------------------------


@cold_kernel
def set_timer(s: SimulationArrays, e: int, time: int, kind: int, index: int, check: int) -> None:
    """At tick `time` something will happen, see `prefixgym.envs.timers`."""
    _add_timer(s, e, time, s.timers.serial[e], kind, index, check)


@cold_kernel
def set_first_timer(
    s: SimulationArrays, e: int, time: int, kind: int, index: int, check: int
) -> None:
    """The same, before all that `set_timer` has announced for that tick."""
    _add_timer(s, e, time, s.timers.serial[e] - _AHEAD, kind, index, check)


@kernel
def _add_timer(
    s: SimulationArrays, e: int, time: int, order: int, kind: int, index: int, check: int
) -> None:
    episode = s.episodes[e]
    push(s.timers.due[e], episode.num_timers, time, order, kind, index, check)
    s.timers.serial[e] += 1
    episode.num_timers += 1
    episode.next_timer = first_time(s.timers.due[e], episode.num_timers)


@cold_kernel
def drop_timer(s: SimulationArrays, e: int, position: int) -> None:
    """Take a timer out of the heap."""
    episode = s.episodes[e]
    remove(s.timers.due[e], episode.num_timers, position)
    episode.num_timers -= 1
    episode.next_timer = first_time(s.timers.due[e], episode.num_timers)


@cold_kernel
def _set_patience(s: SimulationArrays, e: int, q: int) -> None:
    """Flight q is new: set the timers of its client."""
    clients, flight, key = s.timers.clients[0], s.cluster.flights[e, q], s.episodes[e].client_key
    if clients.timeout < NEVER:
        set_timer(s, e, flight.arrival + clients.timeout, TIMEOUT, q, 0)
    if clients.cancel > 0.0 and uniform(key, 2 * flight.row) < clients.cancel:
        seconds = -clients.cancel_after * np.log(1.0 - uniform(key, 2 * flight.row + 1))
        ticks = int(np.rint(seconds * TICKS_PER_SECOND))
        set_timer(s, e, flight.arrival + ticks, CANCELLATION, q, 0)


@cold_kernel
def _forget_patience(s: SimulationArrays, e: int, q: int) -> None:
    """Flight q is over: its client's timers are void."""
    due, position = s.timers.due[e], 0
    while position < s.episodes[e].num_timers:
        timer = due[position]
        if timer.index == q and (timer.kind == TIMEOUT or timer.kind == CANCELLATION):
            drop_timer(s, e, position)
            position = 0  # others may have moved up
        else:
            position += 1


@cold_kernel
def cancel(s: SimulationArrays, e: int, q: int, time: int) -> None:
    """The client of flight q has gone."""
    c, v, episode, flight = s.cluster, s.knowledge, s.episodes[e], s.cluster.flights[e, q]
    if flight.place == state.AWAY:
        position = 0
        while s.pending[e, position].index != q:
            position += 1
        remove(s.pending[e], episode.num_pending, position)
        episode.num_pending -= 1
    elif flight.place != state.HELD:
        let_go(c, e, q, time)
        return
    flight.status = state.CANCELLED
    flight.end = time
    if flight.place == state.AWAY:  # its router has forgotten it
        resolve(s, e, q)
        return
    take_out(c, v, e, router_row(v, e, flight.replica), flight.instance, q)
    episode.num_held -= 1
    end_attempt(s, e, q)
