"""From decision to decision: the course of one environment, and of ranges of environments.

Everything up to the next arrival happens, in order of time over all instances; the view presents
the request that arrived; once routed, it is booked and joins its instance's queue, or the router's
own queue if that is told to hold it back. After the last request the cluster drains.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER, TICKS_PER_SECOND
from prefixgym.envs.cluster import state
from prefixgym.envs.cluster.engine import enqueue, next_due, process_event, reset_cluster
from prefixgym.envs.cluster.transfers import end_transfer, start_transfer
from prefixgym.envs.credit import (
    change_promise,
    keeps_promises,
    open_account,
    predicted_promise,
    reset_credit,
)
from prefixgym.envs.episode_state import SimulationArrays
from prefixgym.envs.heap import remove
from prefixgym.envs.incidents import begin_incidents, next_incident, note_empty
from prefixgym.envs.jit import Record, borrowed, cold_kernel, kernel, spliced_kernel
from prefixgym.envs.lent import Lent
from prefixgym.envs.requests import end_attempt, note_promise, take_off, ttft_objective, turn_away
from prefixgym.envs.view.arrays import router_row
from prefixgym.envs.view.decision import (
    begin_decision,
    booked_prefill,
    forget_events,
    present_request,
    replica_of,
    reset_view,
)
from prefixgym.envs.view.experience import fade
from prefixgym.envs.view.ledger import (
    book,
    book_decoding,
    hear,
    note_first_token,
    note_prefilled,
)
from prefixgym.envs.view.queues import (
    departure,
    first_departure,
    hold_back,
    join_batch,
    leaves_at_once,
    open_batch,
    release_first,
)
from prefixgym.envs.view.reports import first_publication, publish_until
from prefixgym.envs.view.sources import note_sent
from prefixgym.envs.view.view import DISPATCHED, STARTED
from prefixgym.envs.workload.tape import NO_ROW


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
def _take_events(s: SimulationArrays, e: int) -> None:
    """What has just happened to requests, all at one time, reaches the router; ends are judged."""
    environment, episode = s.cluster.environments[e], s.episodes[e]
    now = s.cluster.events[e, 0].time
    for k in range(environment.num_events):
        event = s.cluster.events[e, k]
        if event.kind == state.PREFILLED:
            start_transfer(s.cluster, e, event.flight, now)
        if event.kind == state.END:
            i = s.cluster.flights[e, event.flight].instance
            end_attempt(s, e, event.flight)
            note_empty(s, e, i, now)
        elif not episode.unseen:
            _tell_router(s, e, event)
    environment.num_events = 0
    if episode.num_held > 0:  # a first token may have made room for a batch
        episode.next_departure = max(now, first_departure(s.knowledge, e))


@kernel
def _tell_router(s: SimulationArrays, e: int, event: Record) -> None:
    """Responses reach the router at once, the start of a request with the next poll."""
    v, q = s.knowledge, event.flight
    flight = s.cluster.flights[e, q]
    w = router_row(v, e, flight.replica)
    if event.kind == state.PREFILLED:
        note_prefilled(v, e, w, flight.instance, q, flight.prompt_tokens, event.time)
    elif event.kind == state.FIRST_TOKEN:
        note_first_token(v, e, w, flight.instance, q, event.time)
        if keeps_promises(s.credit):
            note_promise(s, e, q)
    elif v.settings[0].poll > 0:
        v.bookings[e, q].started = 1
    else:
        hear(v, w, flight.instance, q, STARTED, event.time)


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


_ARRIVAL, _STEP, _TIMER, _DEPARTURE, _TRANSFER = range(5)

CONTINUE = -1
"""No decision: let an episode go on that is halted, at its start or by what `incidents` does."""

_HALTED = -1


@spliced_kernel
def _run_until_arrival(s: SimulationArrays, e: int) -> int:
    """Let everything up to the next arrival happen; ticks of that arrival, NEVER if none comes.

    Or everything before the next timer, if that comes first: _HALTED.
    """
    c, v, episode = s.cluster, s.knowledge, s.episodes[e]
    time, now = _next_arrival(s, e), episode.reached
    while True:
        if c.environments[e].num_events > 0:
            _take_events(s, e)
            time = _next_arrival(s, e)
        i = next_due(c, e)
        due = c.status[e, i].due
        departing, timer = episode.next_departure, episode.next_timer
        transfer = c.environments[e].next_transfer
        # Nothing else would ever happen: no order stands against leaving.
        is_stuck = (
            episode.num_held > 0
            and due == state.NEVER_DUE
            and min(time, departing, transfer) == NEVER
            and episode.num_held == c.environments[e].in_flight
        )
        # What comes next, and up to which tick polls and exchanges come before it.
        what, published = _ARRIVAL, time if time < NEVER else -1
        if is_stuck:
            what, published = _DEPARTURE, -1
        elif (
            timer <= min(time, departing)
            and due > 2 * timer
            and timer < NEVER
            and (time < NEVER or c.environments[e].in_flight > 0)
            and (due < state.NEVER_DUE or not episode.closed)
        ):
            what, published = _TIMER, timer - 1
        elif transfer <= min(time, departing) and transfer < NEVER and due > 2 * transfer:
            what, published = _TRANSFER, transfer - 1
        elif departing <= time and departing < NEVER and due > 2 * departing:
            what, published = _DEPARTURE, departing
        elif due <= 2 * time and due != state.NEVER_DUE:
            what, published = _STEP, (due - 1) // 2
        if episode.next_publication <= published:
            publish_until(c, v, e, published)
            episode.next_publication = first_publication(v, e)
        if what == _STEP:
            now = due // 2
            _step(s, e, i, time)
        elif what == _TIMER:
            episode.reached = timer
            return _HALTED
        elif what == _TRANSFER:
            now = transfer
            end_transfer(c, e)
        elif what == _DEPARTURE:
            now = now if is_stuck else departing
            _depart(s, e, now, is_stuck)
        else:
            return time


@spliced_kernel
def _step(s: SimulationArrays, e: int, i: int, arrival: int) -> None:
    """Let the next event of instance i happen, and the one after it if nothing comes between.

    Nothing can come between the end of a step and the next one, except a request that follows at
    once on another that ends elsewhere at this very instant.
    """
    c, episode = s.cluster, s.episodes[e]
    following = min(arrival, episode.next_publication, episode.next_departure, episode.next_timer)
    following = min(following, c.environments[e].next_transfer)
    while True:
        process_event(c, e, i)
        if (
            c.status[e, i].mode != state.READY
            or c.environments[e].num_events > 0
            or c.status[e, i].due >= 2 * following
            or episode.instant_follow_ups
        ):
            return


@spliced_kernel
def _advance(s: SimulationArrays, e: int) -> None:
    """Go to the next arrival and present the request; without one, the episode is over."""
    episode, shown = s.episodes[e], s.knowledge.requests[e]
    time = _run_until_arrival(s, e)
    episode.halted = time == _HALTED
    if episode.halted:
        return
    if time == NEVER:
        episode.row = NO_ROW
        episode.done = 1
        return
    episode.flight = state.NONE
    if episode.num_pending > 0 and s.pending[e, 0].time == time:
        row = s.pending[e, 0].order
        episode.flight = s.pending[e, 0].index
        remove(s.pending[e], episode.num_pending, 0)
        episode.num_pending -= 1
    else:
        row = episode.cursor
        episode.cursor += 1
        _skip_follow_ups(s, e)
    request = s.tapes[e, row]
    gap = time - episode.now if episode.decisions > 0 else 0
    episode.row = row
    episode.now = time
    episode.reached = time
    episode.replica = replica_of(s.knowledge, episode.decisions)
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
    shown.slo_ttft = ttft_objective(s, e, row) / TICKS_PER_SECOND
    shown.slo_tpot = s.objectives[e, request.slo_class].tpot / TICKS_PER_SECOND
    shown.index = episode.decisions
    shown.slot = s.cluster.environments[e].free_flight
    shown.attempt = 0
    if episode.flight != state.NONE:
        shown.slot = episode.flight
        shown.attempt = s.cluster.flights[e, episode.flight].attempt + 1
    shown.replica = episode.replica
    fade(s.knowledge, router_row(s.knowledge, e, episode.replica), time)
    present_request(s.cluster, s.knowledge, e)


@spliced_kernel
def _dispatch(s: SimulationArrays, e: int, i: int, decoder: int) -> None:
    """The current request is routed to instance i; it decodes there (NONE), or elsewhere."""
    c, v, episode = s.cluster, s.knowledge, s.episodes[e]
    q = take_off(s, e)
    request, flight = s.tapes[e, episode.row], c.flights[e, q]
    _expand_ids(s, e, episode.row, request.cacheable_blocks, c.flight_blocks[e, q])
    flight.instance = i
    flight.prefiller = i
    flight.decoder = decoder
    flight.expected = request.prompt_tokens
    if not episode.unseen:
        w = router_row(v, e, episode.replica)
        new_tokens = request.prompt_tokens - v.instances[w, i].hit_tokens
        flight.expected = new_tokens
        prefill = booked_prefill(c, v, e, w, i)
        if keeps_promises(s.credit):
            ttft = v.sources[w, i].backlog + prefill + s.frontend[0]
            promise = predicted_promise(ttft, ttft_objective(s, e, episode.row))
            change_promise(s.credit, e, q, promise)
        book(v, e, w, i, q, new_tokens, prefill, episode.now)
        full_blocks = request.prompt_tokens // c.limits[0, 0].block_size
        full_blocks = min(request.num_blocks, full_blocks)
        note_sent(v, e, episode.replica, i, full_blocks, episode.now)
        if decoder != state.NONE and decoder != i:
            book_decoding(v, e, w, decoder)
            note_sent(v, e, episode.replica, decoder, full_blocks, episode.now)
        if episode.num_held > 0 or not leaves_at_once(v, w, i, episode.now):
            hold_back(c, v, e, w, i, q)
            episode.num_held += 1
            return
    _leave(s, e, i, q, episode.now)


@kernel
def _leave(s: SimulationArrays, e: int, i: int, q: int, time: int) -> None:
    """Flight q leaves its router for instance i."""
    known_lost = False
    if not s.episodes[e].unseen:
        w = router_row(s.knowledge, e, s.cluster.flights[e, q].replica)
        hear(s.knowledge, w, i, q, DISPATCHED, time)
        known_lost = s.knowledge.sources[w, i].found_lost == s.cluster.instances[e, i].epoch
    enqueue(s.cluster, e, i, q, time, known_lost)


@cold_kernel
def _depart(s: SimulationArrays, e: int, time: int, everything: bool) -> None:
    """Of what routers hold back, everything leaves, or what may leave at tick `time`."""
    v, episode = s.knowledge, s.episodes[e]
    for replica in range(v.settings[0].replicas):
        w = router_row(v, e, replica)
        for i in range(v.instances.shape[1]):
            while departure(v, w, i) <= time or (everything and v.instances[w, i].held > 0):
                members, batch = v.instances[w, i].held, open_batch(v, w, i)
                if v.holds[w, i].size > 0:
                    members = min(members, v.holds[w, i].size)
                for _ in range(members):
                    q = release_first(s.cluster, v, e, w, i)
                    episode.num_held -= 1
                    join_batch(v, e, w, i, q, batch)
                    _leave(s, e, i, q, time)
    episode.next_departure = first_departure(v, e)


@spliced_kernel
def step_environment(s: SimulationArrays, e: int, action: int) -> None:
    """One decision of environment e, and everything up to the next one.

    `action` is an instance, their number N to reject the request, CONTINUE, or for one that is
    prefilled on i and decoded on d: i + (N + 1) · (d + 1).
    """
    episode = s.episodes[e]
    if action != CONTINUE:
        episode.good = 0
        begin_decision(s.knowledge, e, episode.replica)
        open_account(s.credit, e)
        num_actions = s.cluster.status.shape[1] + 1
        if action == num_actions - 1:
            turn_away(s, e)
        else:
            _dispatch(s, e, action % num_actions, action // num_actions - 1)
        episode.decisions += 1
    if episode.num_held > 0:  # the decision may have come with other orders
        episode.next_departure = max(episode.reached, first_departure(s.knowledge, e))
    _advance(s, e)


@cold_kernel
def reset_environment(s: SimulationArrays, e: int) -> None:
    """Environment e at the beginning of the tape in its row, halted before its first decision."""
    episode = s.episodes[e]
    episode.now = 0
    episode.reached = 0
    episode.cursor = 0
    episode.row = NO_ROW
    episode.flight = state.NONE
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
    episode.halted = 1
    reset_cluster(s.cluster, e)
    begin_incidents(s, e)
    reset_view(s.cluster, s.knowledge, e)
    reset_credit(s.credit, e)
    episode.next_publication = first_publication(s.knowledge, e)
    _skip_follow_ups(s, e)


@kernel
def _most_in_flight(s: SimulationArrays, first: int, last: int) -> int:
    most = 0
    for e in range(first, last):
        most = max(most, s.cluster.environments[e].in_flight)
    return most


@kernel
def needs_rows(episode: Record) -> bool:
    """Whether further rows must be loaded before the next decision takes effect."""
    return episode.more != 0 and episode.cursor == episode.num_requests


ONE_STEP = -1
"""No plan: one decision each, and its consequences shown."""


@kernel
def step_range(lent: Lent, first: int, last: int, actions: NDArray[np.int64], taken: int) -> int:
    """Step environments first … last - 1 that are not done; returns the most requests in flight.

    One kernel for steps and plans, as whatever contains the event loop takes minutes to compile.

    Args:
        lent: the SimulationArrays.
        first: environment.
        last: environment.
        actions: [E, 1], where CONTINUE leaves those alone that are not halted; or a plan [E, R] of
            fixed decisions, which are played without a view until flight records or rows run out.
            Without timers, nothing halts an episode meanwhile.
        taken: of a plan, how many decisions of the episode came before those in `actions`.
    """
    s: SimulationArrays = borrowed(lent.arrays)
    planned, room = taken != ONE_STEP, s.cluster.flights.shape[1]
    for e in range(first, last):
        episode = s.episodes[e]
        if planned:
            episode.unseen = 1
        elif episode.done and actions[e, 0] != CONTINUE:
            forget_events(s.knowledge, e)  # its last ones were shown once
        while not episode.done:
            if planned and (s.cluster.environments[e].in_flight >= room or needs_rows(episode)):
                break
            action = actions[e, episode.decisions - taken if planned else 0]
            if action == CONTINUE and not episode.halted:
                break
            step_environment(s, e, action)
            if not planned:
                break
    return _most_in_flight(s, first, last)


@kernel
def incident_range(lent: Lent, first: int, last: int) -> int:
    """The first timer goes off in each of environments first … last - 1 that are halted by one."""
    s: SimulationArrays = borrowed(lent.arrays)
    for e in range(first, last):
        if s.episodes[e].halted:
            next_incident(s, e)
    return 0


@kernel
def reset_range(lent: Lent, first: int, last: int, chosen: NDArray[np.bool_]) -> int:
    """Reset the chosen ones of environments first … last - 1; they are halted then."""
    s: SimulationArrays = borrowed(lent.arrays)
    for e in range(first, last):
        if chosen[e]:
            reset_environment(s, e)
    return 0
