"""From decision to decision: the course of one environment, and of ranges of environments.

Everything up to the next arrival happens, in order of time over all instances; the view presents
the request that arrived; once routed, it is booked and joins its instance's queue, or the router's
own queue if that is told to hold it back. After the last request the cluster drains.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER, TICKS_PER_SECOND
from prefixgym.envs.cluster import state
from prefixgym.envs.cluster.engine import (
    enqueue,
    next_due,
    process_event,
    reset_cluster,
    return_flight,
    take_flight,
)
from prefixgym.envs.credit import (
    PROMISE,
    CreditArrays,
    change_promise,
    keeps_promises,
    open_account,
    predicted_promise,
    promise_nothing,
    reset_credit,
    settle,
)
from prefixgym.envs.follow_ups import pop, push
from prefixgym.envs.jit import Record, borrowed, kernel
from prefixgym.envs.lent import Lent
from prefixgym.envs.view import arrays as view_arrays
from prefixgym.envs.view.decision import booked_prefill, present_request, reset_view
from prefixgym.envs.view.ledger import book, hear, note_end, note_first_token
from prefixgym.envs.view.queues import (
    departure,
    first_departure,
    hold_back,
    join_batch,
    leaves_at_once,
    let_go,
    open_batch,
)
from prefixgym.envs.view.reports import first_publication, publish_until
from prefixgym.envs.view.view import DISPATCHED, STARTED
from prefixgym.envs.workload.tape import NO_ROW

EPISODE = np.dtype(
    [
        ("now", np.int64),  # ticks: arrival of the current request
        ("next_publication", np.int64),  # ticks
        ("next_departure", np.int64),  # ticks: of what the router holds back
        ("num_requests", np.int32),  # rows of the tape
        ("cursor", np.int32),  # first root of the tape that has not arrived
        ("row", np.int32),  # current request, NO_ROW when all have been routed
        ("num_pending", np.int32),  # follow-ups whose arrival is known
        ("num_held", np.int32),  # requests that the router holds back
        ("num_ids", np.int32),  # block ids of the current request in the view
        ("instant_follow_ups", np.int32),  # 1 if some follow-up of the tape has no think time
        ("more", np.int32),  # 1 if further rows are to be loaded once the last root is current
        ("unseen", np.int32),  # 1 if decisions are fixed in advance: no view is kept
        ("closed", np.int32),  # 1 if nothing arrives any more, see `envs/forks.py`
        ("decisions", np.int32),
        ("ended", np.int32),  # requests that finished or were rejected
        ("good", np.int32),  # of those since the last decision, how many met their objectives
        ("done", np.int32),
    ],
    align=True,
)

OBJECTIVE = np.dtype(
    [("ttft", np.int64), ("ttft_per_token", np.int64), ("tpot", np.int64)], align=True
)
"""Ticks: TTFT ≤ ttft + ttft_per_token · prompt tokens; TPOT ≤ tpot."""

FINISHED, REJECTED = range(2)

OUTCOME = np.dtype(
    [
        ("arrival", np.float64),  # s since the episode's start
        ("ttft", np.float64),  # s, NaN if rejected
        ("tpot", np.float64),  # s per token after the first; 0 for single-token answers
        ("end", np.float64),  # s since the episode's start
        ("prompt_tokens", np.int32),
        ("output_tokens", np.int32),
        ("hit_tokens", np.int32),  # found cached when the request was admitted first
        ("instance", np.int32),  # NONE if the router itself turned the request away
        ("session", np.int32),
        ("slo_class", np.int32),
        ("row", np.int32),  # of the tape
        ("status", np.int32),  # FINISHED or REJECTED
        ("good", np.int32),  # 1 if the request met its objectives
    ],
    align=True,
)


class SimulationArrays(NamedTuple):
    """Everything that a kernel may need. E environments, R requests an episode, U runs."""

    cluster: state.ClusterArrays
    knowledge: view_arrays.ViewArrays
    frontend: NDArray[np.int64]  # [1], ticks of latency outside the engine
    objectives: NDArray[np.void]  # OBJECTIVE [E, slo classes]
    tapes: NDArray[np.void]  # REQUEST [E, R]; `waits_for` counts down
    runs: NDArray[np.void]  # RUN [E, U]
    episodes: NDArray[np.void]  # EPISODE [E]
    pending: NDArray[np.void]  # PENDING [E, P], a binary heap
    outcomes: NDArray[np.void]  # OUTCOME [E, R], or [E, 0] if not recorded
    credit: CreditArrays


@kernel
def _next_arrival(s: SimulationArrays, e: int) -> int:
    """Ticks of the next arrival that is known by now, NEVER if none is."""
    episode = s.episodes[e]
    time = NEVER
    if episode.closed:
        return time
    if episode.cursor < episode.num_requests:
        time = s.tapes[e, episode.cursor].arrival
    if episode.num_pending > 0:
        time = min(time, s.pending[e, 0].time)
    return time


@kernel
def _skip_follow_ups(s: SimulationArrays, e: int) -> None:
    """Move the cursor to the next root."""
    episode = s.episodes[e]
    while episode.cursor < episode.num_requests and s.tapes[e, episode.cursor].parent != NO_ROW:
        episode.cursor += 1


@kernel
def _release(s: SimulationArrays, e: int, row: int, end: int) -> None:
    """Of the ends that `row` waits for, one more has come: at tick `end`."""
    follow_up, episode = s.tapes[e, row], s.episodes[e]
    follow_up.waits_for -= 1
    if follow_up.waits_for == 0:
        push(s.pending[e], episode.num_pending, end + follow_up.arrival, row)
        episode.num_pending += 1


@kernel
def _ttft_objective(s: SimulationArrays, e: int, row: int) -> int:
    """Most ticks to the first token of request `row`."""
    request = s.tapes[e, row]
    objective = s.objectives[e, request.slo_class]
    return objective.ttft + objective.ttft_per_token * request.prompt_tokens


@kernel
def _resolve(s: SimulationArrays, e: int, q: int) -> None:
    """Flight q has ended: judge it, record it, release its follow-ups and its record."""
    episode, flight = s.episodes[e], s.cluster.flights[e, q]
    request = s.tapes[e, flight.row]
    objective = s.objectives[e, request.slo_class]
    ttft_objective = _ttft_objective(s, e, flight.row)
    ttft = flight.first_token - flight.arrival + s.frontend[0]
    decoding = flight.end - flight.first_token
    met = (
        flight.rejected == 0
        and ttft <= ttft_objective
        and decoding <= objective.tpot * (flight.output_tokens - 1)
    )
    if s.outcomes.shape[1] > 0:
        outcome = s.outcomes[e, episode.ended]
        outcome.arrival = flight.arrival / TICKS_PER_SECOND
        outcome.ttft = ttft / TICKS_PER_SECOND if flight.rejected == 0 else np.nan
        outcome.tpot = 0.0
        if flight.rejected == 0 and flight.output_tokens > 1:
            outcome.tpot = decoding / TICKS_PER_SECOND / (flight.output_tokens - 1)
        outcome.end = flight.end / TICKS_PER_SECOND
        outcome.prompt_tokens = flight.prompt_tokens
        outcome.output_tokens = flight.output_tokens
        outcome.hit_tokens = flight.hit_tokens
        outcome.instance = flight.instance
        outcome.session = request.session
        outcome.slo_class = request.slo_class
        outcome.row = flight.row
        outcome.status = REJECTED if flight.rejected else FINISHED
        outcome.good = met
    episode.ended += 1
    episode.good += met
    if keeps_promises(s.credit):
        change_promise(s.credit, e, q, 0)
    settle(s.credit, e, flight, ttft, ttft_objective, decoding, objective.tpot, met)
    child = request.first_child
    while child != NO_ROW:
        _release(s, e, child, flight.end)
        child = s.tapes[e, child].next_sibling
    if request.then != NO_ROW:
        _release(s, e, request.then, flight.end)
    return_flight(s.cluster, e, q)


@kernel
def _note_promise(s: SimulationArrays, e: int, q: int) -> None:
    """Flight q has its first token: what was promised of it has come true, or not."""
    flight = s.cluster.flights[e, q]
    ttft = flight.first_token - flight.arrival + s.frontend[0]
    in_time = ttft <= _ttft_objective(s, e, flight.row)
    change_promise(s.credit, e, q, PROMISE if in_time else 0)


@kernel
def _take_events(s: SimulationArrays, e: int) -> None:
    """What has just happened to requests, all at one time, reaches the router; ends are judged."""
    environment, episode = s.cluster.environments[e], s.episodes[e]
    for k in range(environment.num_events):
        event = s.cluster.events[e, k]
        if not episode.unseen:
            _tell_router(s, e, event)
        if event.kind == state.END:
            _resolve(s, e, event.flight)
    environment.num_events = 0
    if episode.num_held > 0:  # a first token may have made room for a batch
        now = s.cluster.events[e, 0].time
        episode.next_departure = max(now, first_departure(s.knowledge, e))


@kernel
def _tell_router(s: SimulationArrays, e: int, event: Record) -> None:
    """Responses reach the router at once, the start of a request with the next poll."""
    v, q = s.knowledge, event.flight
    flight = s.cluster.flights[e, q]
    if event.kind == state.FIRST_TOKEN:
        note_first_token(v, e, flight.instance, q, event.time)
        if keeps_promises(s.credit):
            _note_promise(s, e, q)
    elif event.kind == state.END:
        note_end(v, e, flight.instance, q, flight.prompt_tokens, event.time)
    elif v.intervals[0].poll > 0:
        v.bookings[e, q].started = 1
    else:
        hear(v, e, flight.instance, q, STARTED, event.time)


@kernel
def _expand_ids(s: SimulationArrays, e: int, row: int, count: int, ids: NDArray[np.int64]) -> None:
    """Write the first `count` block ids of request `row`."""
    k, written = s.tapes[e, row].first_run, 0
    while written < count:
        run = s.runs[e, k]
        length = min(run.count, count - written)
        for j in range(length):
            ids[written + j] = run.start + j
        written += length
        k += 1


@kernel
def _run_until_arrival(s: SimulationArrays, e: int) -> int:
    """Let everything up to the next arrival happen; ticks of that arrival, NEVER if none comes."""
    c, v, episode = s.cluster, s.knowledge, s.episodes[e]
    time, now = _next_arrival(s, e), episode.now
    while True:
        if c.environments[e].num_events > 0:
            _take_events(s, e)
            time = _next_arrival(s, e)
        i = next_due(c, e)
        due = c.status[e, i].due
        departing = episode.next_departure
        # Nothing else would ever happen: no order stands against leaving.
        is_stuck = due == state.NEVER_DUE and min(time, departing) == NEVER and episode.num_held > 0
        if is_stuck or (departing <= time and departing < NEVER and due > 2 * departing):
            if is_stuck:
                departing = now
            elif episode.next_publication <= departing:
                publish_until(c, v, e, departing)
                episode.next_publication = first_publication(v, e)
            now = departing
            _depart(s, e, now, is_stuck)
            continue
        if due > 2 * time or due == state.NEVER_DUE:
            break
        if 2 * episode.next_publication < due:
            publish_until(c, v, e, (due - 1) // 2)
            episode.next_publication = first_publication(v, e)
        now = due // 2
        process_event(c, e, i)
        due = c.status[e, i].due
        # Nothing can come between the end of a step and the next one, except a request that follows
        # at once on another that ends elsewhere at this very instant.
        if (
            c.status[e, i].mode == state.READY
            and c.environments[e].num_events == 0
            and due < 2 * min(time, episode.next_publication, episode.next_departure)
            and not episode.instant_follow_ups
        ):
            process_event(c, e, i)
    if episode.next_publication <= time < NEVER:
        publish_until(c, v, e, time)
        episode.next_publication = first_publication(v, e)
    return time


@kernel
def _advance(s: SimulationArrays, e: int) -> None:
    """Go to the next arrival and present the request; without one, the episode is over."""
    episode, shown = s.episodes[e], s.knowledge.requests[e]
    time = _run_until_arrival(s, e)
    if time == NEVER:
        episode.row = NO_ROW
        episode.done = 1
        return
    if episode.num_pending > 0 and s.pending[e, 0].time == time:
        row = pop(s.pending[e], episode.num_pending)
        episode.num_pending -= 1
    else:
        row = episode.cursor
        episode.cursor += 1
        _skip_follow_ups(s, e)
    request = s.tapes[e, row]
    gap = time - episode.now if episode.decisions > 0 else 0
    episode.row = row
    episode.now = time
    if episode.unseen:
        return
    ids = s.knowledge.block_ids[e]
    _expand_ids(s, e, row, request.num_blocks, ids)
    for j in range(request.num_blocks, episode.num_ids):
        ids[j] = NO_ROW
    episode.num_ids = request.num_blocks
    shown.gap = gap / TICKS_PER_SECOND
    shown.time = time / TICKS_PER_SECOND
    shown.prompt_tokens = request.prompt_tokens
    shown.num_blocks = request.num_blocks
    shown.session = request.session
    shown.slo_class = request.slo_class
    shown.slo_ttft = _ttft_objective(s, e, row) / TICKS_PER_SECOND
    shown.slo_tpot = s.objectives[e, request.slo_class].tpot / TICKS_PER_SECOND
    shown.index = episode.decisions
    shown.slot = s.cluster.environments[e].free_flight
    present_request(s.cluster, s.knowledge, e)


@kernel
def _take_off(s: SimulationArrays, e: int) -> int:
    """The current request becomes a flight."""
    episode = s.episodes[e]
    q = take_flight(s.cluster, e)
    request, flight = s.tapes[e, episode.row], s.cluster.flights[e, q]
    flight.arrival = episode.now
    flight.prompt_tokens = request.prompt_tokens
    flight.output_tokens = request.output_tokens
    flight.cacheable = request.cacheable_blocks
    flight.row = episode.row
    flight.decision = episode.decisions
    promise_nothing(s.credit, e, q)
    return q


@kernel
def _turn_away(s: SimulationArrays, e: int) -> None:
    """The current request is rejected by the router: it ends at once, and no instance sees it."""
    q = _take_off(s, e)
    flight = s.cluster.flights[e, q]
    flight.instance = state.NONE
    flight.first_token = NEVER
    flight.end = flight.arrival
    flight.hit_tokens = 0
    flight.rejected = 1
    _resolve(s, e, q)


@kernel
def _dispatch(s: SimulationArrays, e: int, i: int) -> None:
    """The current request is routed to instance i."""
    c, v, episode = s.cluster, s.knowledge, s.episodes[e]
    q = _take_off(s, e)
    request, flight = s.tapes[e, episode.row], c.flights[e, q]
    _expand_ids(s, e, episode.row, request.cacheable_blocks, c.flight_blocks[e, q])
    flight.instance = i
    flight.expected = request.prompt_tokens
    if not episode.unseen:
        new_tokens = request.prompt_tokens - v.instances[e, i].hit_tokens
        flight.expected = new_tokens
        prefill = booked_prefill(c, v, e, i)
        if keeps_promises(s.credit):
            ttft = v.sources[e, i].backlog + prefill + s.frontend[0]
            promise = predicted_promise(ttft, _ttft_objective(s, e, episode.row))
            change_promise(s.credit, e, q, promise)
        book(v, e, i, q, new_tokens, prefill)
        if episode.num_held > 0 or not leaves_at_once(v, e, i, episode.now):
            hold_back(c, v, e, i, q)
            episode.num_held += 1
            return
    _leave(s, e, i, q, episode.now)


@kernel
def _leave(s: SimulationArrays, e: int, i: int, q: int, time: int) -> None:
    """Flight q leaves the router for instance i."""
    if not s.episodes[e].unseen:
        hear(s.knowledge, e, i, q, DISPATCHED, time)
    enqueue(s.cluster, e, i, q, time)


@kernel
def _depart(s: SimulationArrays, e: int, time: int, everything: bool) -> None:
    """Of what the router holds back, everything leaves, or what may leave at tick `time`."""
    v, episode = s.knowledge, s.episodes[e]
    for i in range(v.instances.shape[1]):
        while departure(v, e, i) <= time or (everything and v.instances[e, i].held > 0):
            members, batch = v.instances[e, i].held, open_batch(v, e, i)
            if v.holds[e, i].size > 0:
                members = min(members, v.holds[e, i].size)
            for _ in range(members):
                q = let_go(s.cluster, v, e, i)
                episode.num_held -= 1
                join_batch(v, e, i, q, batch)
                _leave(s, e, i, q, time)
    episode.next_departure = first_departure(v, e)


@kernel
def step_environment(s: SimulationArrays, e: int, action: int) -> None:
    """One decision of environment e, and everything up to the next one.

    `action` is an instance, or their number N to reject the request.
    """
    episode = s.episodes[e]
    episode.good = 0
    s.knowledge.num_events[e] = 0
    open_account(s.credit, e)
    if action == s.cluster.status.shape[1]:
        _turn_away(s, e)
    else:
        _dispatch(s, e, action)
    if episode.num_held > 0:  # the decision may have come with other orders
        episode.next_departure = max(episode.now, first_departure(s.knowledge, e))
    episode.decisions += 1
    _advance(s, e)


@kernel
def reset_environment(s: SimulationArrays, e: int) -> None:
    """Environment e at the first decision of the tape in its row."""
    episode = s.episodes[e]
    episode.now = 0
    episode.cursor = 0
    episode.row = NO_ROW
    episode.num_pending = 0
    episode.num_held = 0
    episode.next_departure = NEVER
    episode.decisions = 0
    episode.ended = 0
    episode.good = 0
    episode.done = 0
    episode.num_ids = s.knowledge.block_ids.shape[1]  # rows of the view may hold anything yet
    episode.unseen = 0
    episode.closed = 0
    reset_cluster(s.cluster, e)
    reset_view(s.cluster, s.knowledge, e)
    reset_credit(s.credit, e)
    episode.next_publication = first_publication(s.knowledge, e)
    _skip_follow_ups(s, e)
    _advance(s, e)


@kernel
def _most_in_flight(s: SimulationArrays, first: int, last: int) -> int:
    most = 0
    for e in range(first, last):
        most = max(most, s.cluster.environments[e].in_flight)
    return most


@kernel
def step_range(lent: Lent, first: int, last: int, actions: NDArray[np.int64]) -> int:
    """Step environments first … last - 1 that are not done; returns the most requests in flight."""
    s: SimulationArrays = borrowed(lent.arrays)
    for e in range(first, last):
        if s.episodes[e].done:
            s.knowledge.num_events[e] = 0  # its last ones were shown once
        else:
            step_environment(s, e, actions[e])
    return _most_in_flight(s, first, last)


@kernel
def needs_rows(episode: Record) -> bool:
    """Whether further rows must be loaded before the next decision takes effect."""
    return episode.more != 0 and episode.cursor == episode.num_requests


@kernel
def play_range(lent: Lent, first: int, last: int, actions: NDArray[np.int64], taken: int) -> int:
    """Play episodes of fixed decisions from the first on; the first `taken` are not in `actions`.

    Stops where flight records or rows run out.
    """
    s: SimulationArrays = borrowed(lent.arrays)
    room = s.cluster.flights.shape[1]
    for e in range(first, last):
        episode = s.episodes[e]
        episode.unseen = 1
        while (
            not episode.done
            and s.cluster.environments[e].in_flight < room
            and not needs_rows(episode)
        ):
            step_environment(s, e, actions[e, episode.decisions - taken])
    return _most_in_flight(s, first, last)


@kernel
def reset_range(lent: Lent, first: int, last: int, chosen: NDArray[np.bool_]) -> int:
    """Reset the chosen ones of environments first … last - 1."""
    s: SimulationArrays = borrowed(lent.arrays)
    for e in range(first, last):
        if chosen[e]:
            reset_environment(s, e)
    return 0
