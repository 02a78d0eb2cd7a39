"""Simulation: a workload played on clusters, one routing decision at a time, batch first.

`Simulation` is what the Gymnasium environments, the leaderboard and the benchmarks have in common.
It wires tape, cluster and view together and holds no rule of its own but the order of things:

1. Everything up to the next arrival happens, in order of time over all instances.
2. The view presents the arrived request. The router decides.
3. The request is booked, joins its instance's queue; back to 1. After the last one the cluster
   drains.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER, TICKS_PER_SECOND, to_ticks
from prefixgym.envs.cluster import state
from prefixgym.envs.cluster.engine import (
    enqueue,
    next_due,
    process_event,
    reset_cluster,
    return_flight,
    sum_integrals,
    take_flight,
)
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import borrowed, kernel
from prefixgym.envs.slo import Slo
from prefixgym.envs.view import arrays as view_arrays
from prefixgym.envs.view.decision import booked_prefill, present_request, reset_view
from prefixgym.envs.view.knowledge import Knowledge
from prefixgym.envs.view.ledger import book, note_end, note_first_token
from prefixgym.envs.view.reports import first_publication, publish_until
from prefixgym.envs.view.view import View
from prefixgym.envs.workload.tape import NO_ROW, REQUEST, RUN, Tape, Workload

EPISODE = np.dtype(
    [
        ("now", np.int64),  # ticks: arrival of the current request
        ("next_publication", np.int64),  # ticks
        ("num_requests", np.int32),  # rows of the tape
        ("cursor", np.int32),  # first root of the tape that has not arrived
        ("row", np.int32),  # current request, NO_ROW when all have been routed
        ("num_pending", np.int32),  # follow-ups whose arrival is known
        ("num_ids", np.int32),  # block ids of the current request in the view
        ("instant_follow_ups", np.int32),  # 1 if some follow-up of the tape has no think time
        ("unseen", np.int32),  # 1 if decisions are fixed in advance: no view is kept
        ("decisions", np.int32),
        ("ended", np.int32),  # requests that finished or were rejected
        ("good", np.int32),  # of those since the last decision, how many met their objectives
        ("done", np.int32),
    ],
    align=True,
)

PENDING = np.dtype([("time", np.int64), ("row", np.int64)], align=True)

OBJECTIVE = np.dtype([("ttft", np.int64), ("tpot", np.int64)], align=True)

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
        ("instance", np.int32),
        ("session", np.int32),
        ("slo_class", np.int32),
        ("row", np.int32),  # of the tape
        ("status", np.int32),  # FINISHED or REJECTED
        ("good", np.int32),  # 1 if the request met its objectives
    ],
    align=True,
)

INSTANCE_TOTALS = np.dtype(
    [
        ("running_seconds", np.float64),  # ∫ running requests dt
        ("waiting_seconds", np.float64),  # ∫ waiting requests dt
        ("busy_seconds", np.float64),  # spent in steps
        ("prefilled_tokens", np.int64),
        ("preemptions", np.int64),
        ("steps", np.int64),
    ],
    align=True,
)


class SimulationArrays(NamedTuple):
    """Everything that a kernel may need. E environments, R requests an episode, U runs."""

    cluster: state.ClusterArrays
    knowledge: view_arrays.ViewArrays
    frontend: NDArray[np.int64]  # [1], ticks of latency outside the engine
    objectives: NDArray[np.void]  # OBJECTIVE [slo classes]
    tapes: NDArray[np.void]  # REQUEST [E, R]
    runs: NDArray[np.void]  # RUN [E, U]
    episodes: NDArray[np.void]  # EPISODE [E]
    pending: NDArray[np.void]  # PENDING [E, P], a binary heap
    outcomes: NDArray[np.void]  # OUTCOME [E, R], or [E, 0] if not recorded


# --- follow-ups: a heap ordered by (time, row) --------------------------------------------------


@kernel
def _precedes(heap: NDArray[np.void], a: int, b: int) -> bool:
    if heap[a].time != heap[b].time:
        return heap[a].time < heap[b].time
    return heap[a].row < heap[b].row


@kernel
def _swap(heap: NDArray[np.void], a: int, b: int) -> None:
    time, row = heap[a].time, heap[a].row
    heap[a].time, heap[a].row = heap[b].time, heap[b].row
    heap[b].time, heap[b].row = time, row


@kernel
def _push_pending(s: SimulationArrays, e: int, time: int, row: int) -> None:
    heap, episode = s.pending[e], s.episodes[e]
    position = episode.num_pending
    heap[position].time = time
    heap[position].row = row
    episode.num_pending += 1
    while position > 0 and _precedes(heap, position, (position - 1) // 2):
        _swap(heap, position, (position - 1) // 2)
        position = (position - 1) // 2


@kernel
def _pop_pending(s: SimulationArrays, e: int) -> int:
    heap, episode = s.pending[e], s.episodes[e]
    row = heap[0].row
    episode.num_pending -= 1
    size = episode.num_pending
    _swap(heap, 0, size)
    position = 0
    while True:
        smallest = position
        for child in (2 * position + 1, 2 * position + 2):
            if child < size and _precedes(heap, child, smallest):
                smallest = child
        if smallest == position:
            return row
        _swap(heap, position, smallest)
        position = smallest


# --- one environment ----------------------------------------------------------------------------


@kernel
def _next_arrival(s: SimulationArrays, e: int) -> int:
    """Ticks of the next arrival that is known by now, NEVER if none is."""
    episode = s.episodes[e]
    time = NEVER
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
def _resolve(s: SimulationArrays, e: int, q: int) -> None:
    """Flight q has ended: judge it, record it, release its follow-ups and its record."""
    episode, flight = s.episodes[e], s.cluster.flights[e, q]
    request = s.tapes[e, flight.row]
    objective = s.objectives[request.slo_class]
    ttft = flight.first_token - flight.arrival + s.frontend[0]
    decoding = flight.end - flight.first_token
    met = (
        flight.rejected == 0
        and ttft <= objective.ttft
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
    child = request.first_child
    while child != NO_ROW:
        _push_pending(s, e, flight.end + s.tapes[e, child].arrival, child)
        child = s.tapes[e, child].next_sibling
    return_flight(s.cluster, e, q)


@kernel
def _take_events(s: SimulationArrays, e: int) -> None:
    """What clients have just seen reaches the router's ledger."""
    environment = s.cluster.environments[e]
    for k in range(environment.num_events):
        event = s.cluster.events[e, k]
        flight = s.cluster.flights[e, event.flight]
        if not s.episodes[e].unseen:
            if event.kind == state.FIRST_TOKEN:
                note_first_token(s.knowledge, e, flight.instance, event.flight)
            else:
                note_end(s.knowledge, e, flight.instance, event.flight, flight.prompt_tokens)
        if event.kind == state.END:
            _resolve(s, e, event.flight)
    environment.num_events = 0


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
    time = _next_arrival(s, e)
    while True:
        i = next_due(c, e)
        due = c.status[e, i].due
        if due > 2 * time or due == state.NEVER_DUE:
            break
        if 2 * episode.next_publication < due:
            publish_until(c, v, e, (due - 1) // 2)
            episode.next_publication = first_publication(v, e)
        process_event(c, e, i)
        if c.environments[e].num_events > 0:
            _take_events(s, e)
            time = _next_arrival(s, e)
        due = c.status[e, i].due
        # Nothing can come between the end of a step and the next one, except a request that follows
        # at once on another that ends elsewhere at this very instant.
        if (
            c.status[e, i].mode == state.READY
            and due < 2 * min(time, episode.next_publication)
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
        row = _pop_pending(s, e)
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
    shown.slo_ttft = s.objectives[request.slo_class].ttft / TICKS_PER_SECOND
    shown.slo_tpot = s.objectives[request.slo_class].tpot / TICKS_PER_SECOND
    shown.index = episode.decisions
    present_request(s.cluster, s.knowledge, e)


@kernel
def _dispatch(s: SimulationArrays, e: int, i: int) -> None:
    """The current request goes to instance i."""
    c, v, episode = s.cluster, s.knowledge, s.episodes[e]
    q = take_flight(c, e)
    request, flight = s.tapes[e, episode.row], c.flights[e, q]
    flight.arrival = episode.now
    flight.prompt_tokens = request.prompt_tokens
    flight.output_tokens = request.output_tokens
    flight.cacheable = request.cacheable_blocks
    flight.row = episode.row
    _expand_ids(s, e, episode.row, request.cacheable_blocks, c.flight_blocks[e, q])
    if not episode.unseen:
        new_tokens = request.prompt_tokens - v.instances[e, i].hit_tokens
        book(v, e, i, q, new_tokens, booked_prefill(c, v, e, i))
    enqueue(c, e, i, q, episode.now)
    _take_events(s, e)
    episode.decisions += 1


@kernel
def step_environment(s: SimulationArrays, e: int, action: int) -> None:
    """One decision of environment e, and everything up to the next one."""
    s.episodes[e].good = 0
    _dispatch(s, e, action)
    _advance(s, e)


@kernel
def reset_environment(s: SimulationArrays, e: int) -> None:
    """Environment e at the first decision of the tape in its row."""
    episode = s.episodes[e]
    episode.now = 0
    episode.cursor = 0
    episode.row = NO_ROW
    episode.num_pending = 0
    episode.decisions = 0
    episode.ended = 0
    episode.good = 0
    episode.done = 0
    episode.num_ids = s.knowledge.block_ids.shape[1]  # rows of the view may hold anything yet
    episode.unseen = 0
    reset_cluster(s.cluster, e)
    reset_view(s.knowledge, e)
    episode.next_publication = first_publication(s.knowledge, e)
    _skip_follow_ups(s, e)
    _advance(s, e)


# --- ranges of environments, for threads ---------------------------------------------------------


@kernel
def _most_in_flight(s: SimulationArrays, first: int, last: int) -> int:
    most = 0
    for e in range(first, last):
        most = max(most, s.cluster.environments[e].in_flight)
    return most


@kernel
def step_range(s: SimulationArrays, first: int, last: int, actions: NDArray[np.int64]) -> int:
    """Step environments first … last - 1 that are not done; returns the most requests in flight."""
    s = borrowed(s)
    for e in range(first, last):
        if not s.episodes[e].done:
            step_environment(s, e, actions[e])
    return _most_in_flight(s, first, last)


@kernel
def play_range(s: SimulationArrays, first: int, last: int, actions: NDArray[np.int64]) -> int:
    """Play episodes, just reset, of fixed decisions [E, R]; stops where flight records run out."""
    s = borrowed(s)
    room = s.cluster.flights.shape[1]
    for e in range(first, last):
        episode = s.episodes[e]
        episode.unseen = 1
        while not episode.done and s.cluster.environments[e].in_flight < room:
            step_environment(s, e, actions[e, episode.decisions])
    return _most_in_flight(s, first, last)


@kernel
def reset_range(s: SimulationArrays, first: int, last: int, chosen: NDArray[np.bool_]) -> int:
    """Reset the chosen ones of environments first … last - 1."""
    s = borrowed(s)
    for e in range(first, last):
        if chosen[e]:
            reset_environment(s, e)
    return 0


@kernel
def _close_integrals(s: SimulationArrays) -> None:
    for e in range(s.episodes.size):
        end = s.episodes[e].now
        for i in range(s.cluster.status.shape[1]):
            end = max(end, s.cluster.instances[e, i].changed_at)
        for i in range(s.cluster.status.shape[1]):
            sum_integrals(s.cluster, e, i, end)


_FLIGHTS_AT_FIRST = 256


class Simulation:
    """E clusters, each playing its own tape.

    Args:
        cluster: the instances.
        workload: source of tapes; its block size must be the cluster's.
        slos: objectives, one for each class that the workload names.
        knowledge: how fresh the router's view is.
        num_envs: E.
        record: keep an OUTCOME for every request.
        threads: how many threads share a step.
        longest_leap: decode steps taken at once; 1 steps one by one, to the same results.

    Raises:
        ValueError: block sizes differ, or the workload names a class without an objective.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        workload: Workload,
        slos: Sequence[Slo],
        knowledge: Knowledge | None = None,
        num_envs: int = 1,
        *,
        record: bool = False,
        threads: int = 1,
        longest_leap: int = np.iinfo(np.int32).max,
    ) -> None:
        if workload.block_size != cluster.block_size:
            raise ValueError(
                f"workload.block_size: found {workload.block_size}, "
                f"the cluster's block_size is {cluster.block_size}"
            )
        self.cluster = cluster
        self.workload = workload
        self.slos = tuple(slos)
        self.knowledge = knowledge or Knowledge()
        self.num_envs = num_envs
        self.record = record
        self._threads = max(1, min(threads, num_envs))
        self._pool: ThreadPoolExecutor | None = None
        num_instances = len(cluster.instances)
        journal = max(cluster.kv_blocks(i) for i in range(num_instances))
        objectives = np.zeros(len(self.slos), OBJECTIVE)
        objectives["ttft"] = to_ticks([slo.ttft for slo in self.slos])
        objectives["tpot"] = to_ticks([slo.tpot for slo in self.slos])
        self.arrays = SimulationArrays(
            cluster=state.allocate(
                cluster,
                num_envs,
                num_flights=_FLIGHTS_AT_FIRST,
                blocks_per_flight=1,
                journal=journal if self.knowledge.report_interval > 0 else 0,
                longest_leap=longest_leap,
            ),
            knowledge=view_arrays.allocate(
                self.knowledge,
                num_envs,
                num_instances,
                num_flights=_FLIGHTS_AT_FIRST,
                num_blocks=1,
            ),
            frontend=np.atleast_1d(to_ticks(cluster.frontend_latency)),
            objectives=objectives,
            tapes=np.zeros((num_envs, 0), REQUEST),
            runs=np.zeros((num_envs, 0), RUN),
            episodes=np.zeros(num_envs, EPISODE),
            pending=np.zeros((num_envs, 0), PENDING),
            outcomes=np.zeros((num_envs, 0), OUTCOME),
        )

    # --- episodes ---

    def reset(self, seeds: Sequence[int | None], envs: NDArray[np.bool_] | None = None) -> None:
        """Start new episodes: environment e plays the workload's tape of seeds[e].

        Args:
            seeds: one seed an environment; equal seeds are generated once.
            envs: bool [E], the environments to reset (all by default); others keep their state, and
                their seeds are not looked at.
        """
        chosen = np.ones(self.num_envs, np.bool_) if envs is None else envs
        self.load(seeds, chosen)
        self.run(reset_range, chosen)

    def load(self, seeds: Sequence[int | None], chosen: NDArray[np.bool_]) -> None:
        """Put the tapes of `seeds` into the chosen environments, which must then be reset."""
        tapes: dict[int | None, Tape] = {}
        for e in np.flatnonzero(chosen).tolist():
            seed = seeds[e]
            if seed not in tapes:
                tapes[seed] = self._checked(self.workload.tape(int(seed or 0)))
            self._write_tape(e, tapes[seed])

    def _checked(self, tape: Tape) -> Tape:
        """The tape, once there is room for it in all arrays."""
        most = int(tape.requests["slo_class"].max(initial=0))
        if most >= len(self.slos):
            raise ValueError(f"slos: found {len(self.slos)}, the workload names class {most}")
        tokens = tape.requests["prompt_tokens"] + tape.requests["output_tokens"]
        known = np.maximum(tape.requests["num_blocks"], tape.requests["cacheable_blocks"])
        blocks = max(int((-(-tokens // tape.block_size)).max(initial=1)), int(known.max(initial=1)))
        arrays, rows = self.arrays, len(tape.requests)
        self._reserve(arrays.cluster.flights.shape[1], blocks)
        if rows > arrays.tapes.shape[1]:
            self.arrays = self.arrays._replace(
                tapes=_widened(arrays.tapes, rows),
                outcomes=_widened(arrays.outcomes, rows if self.record else 0),
            )
        if len(tape.runs) > arrays.runs.shape[1]:
            self.arrays = self.arrays._replace(runs=_widened(arrays.runs, len(tape.runs)))
        if (tape.requests["parent"] != NO_ROW).any() and rows > arrays.pending.shape[1]:
            self.arrays = self.arrays._replace(pending=_widened(arrays.pending, rows))
        return tape

    def _write_tape(self, e: int, tape: Tape) -> None:
        self.arrays.tapes[e, : len(tape.requests)] = tape.requests
        self.arrays.runs[e, : len(tape.runs)] = tape.runs
        self.arrays.episodes["num_requests"][e] = len(tape.requests)
        follow_ups = tape.requests["parent"] != NO_ROW
        instant = (tape.requests["arrival"][follow_ups] == 0).any()
        self.arrays.episodes["instant_follow_ups"][e] = instant

    def _reserve(self, num_flights: int, num_blocks: int) -> None:
        """Make room for requests in flight and for the blocks of one request."""
        arrays = self.arrays
        _, flights, blocks = arrays.cluster.flight_blocks.shape
        if num_flights > flights or num_blocks > blocks:
            flights, blocks = max(flights, num_flights), max(blocks, num_blocks)
            self.arrays = arrays._replace(
                cluster=state.grow_flights(arrays.cluster, flights, blocks),
                knowledge=view_arrays.grow(arrays.knowledge, flights, blocks),
            )

    # --- decisions ---

    def step(self, actions: NDArray[np.int64]) -> None:
        """Route the current request of every environment that is not done, actions [E]."""
        self.run(step_range, np.ascontiguousarray(actions, np.int64))

    def play(self, actions: NDArray[np.int64]) -> None:
        """Play whole episodes of fixed decisions, actions [E, R] in order of arrival.

        For routers that look at nothing: no view is kept meanwhile. Call it right after `reset`.
        """
        actions = np.ascontiguousarray(actions, np.int64)
        while not self.arrays.episodes["done"].all():
            self.run(play_range, actions)

    def run(self, kernel_of_range: Callable[..., int], *args: Any) -> None:
        """Call `kernel(arrays, first, last, *args)` on all environments, one range a thread.

        The kernel returns the most requests in flight, so that there is room for one more.
        """
        if self._threads == 1:
            most = kernel_of_range(self.arrays, 0, self.num_envs, *args)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads - 1, "prefixgym")
            bounds = [self.num_envs * k // self._threads for k in range(self._threads + 1)]
            others = [
                self._pool.submit(kernel_of_range, self.arrays, first, last, *args)
                for first, last in itertools.pairwise(bounds[1:])
            ]
            most = kernel_of_range(self.arrays, bounds[0], bounds[1], *args)
            most = max([most, *(other.result() for other in others)])
        flights = self.arrays.cluster.flights.shape[1]
        if most >= flights:  # the next dispatch must find an unused record
            self._reserve(2 * flights, 1)

    # --- results ---

    @property
    def view(self) -> View:
        """The current decision of every environment; overwritten by the next step."""
        view = self.arrays.knowledge
        return View(self.cluster, view.requests, view.block_ids, view.instances)

    @property
    def done(self) -> NDArray[np.bool_]:
        """Environments whose requests have all ended, bool [E]."""
        done: NDArray[np.bool_] = self.arrays.episodes["done"] != 0
        return done

    @property
    def good(self) -> NDArray[np.int32]:
        """Requests that met their objectives, among those ended since the last decision, [E]."""
        good: NDArray[np.int32] = self.arrays.episodes["good"]
        return good

    @property
    def num_ended(self) -> NDArray[np.int32]:
        """Requests that finished or were rejected so far, [E]."""
        ended: NDArray[np.int32] = self.arrays.episodes["ended"]
        return ended

    def outcomes(self, env: int) -> NDArray[np.void]:
        """OUTCOME records of the requests of `env` that have ended, in that order."""
        if not self.record:
            raise ValueError("outcomes: the simulation was made without record=True")
        return self.arrays.outcomes[env, : self.arrays.episodes["ended"][env]].copy()

    @property
    def instance_totals(self) -> NDArray[np.void]:
        """INSTANCE_TOTALS records, shape [E, N], up to the last event."""
        _close_integrals(self.arrays)
        instances = self.arrays.cluster.instances
        totals = np.zeros(instances.shape, INSTANCE_TOTALS)
        for name in ("running", "waiting", "busy"):
            totals[f"{name}_seconds"] = instances[f"{name}_ticks"] / TICKS_PER_SECOND
        for name in ("prefilled_tokens", "preemptions", "steps"):
            totals[name] = instances[name]
        return totals

    def close(self) -> None:
        """Stop the threads; the next step would start new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def snapshot(self) -> SimulationArrays:
        """A copy of the whole state, for `restore`."""
        return copy.deepcopy(self.arrays)

    def restore(self, snapshot: SimulationArrays) -> None:
        """Go back to a snapshot, which stays usable."""
        self.arrays = copy.deepcopy(snapshot)


def _widened(rows: NDArray[np.void], width: int) -> NDArray[np.void]:
    """`rows` [E, W] with room for `width` columns."""
    wider = np.zeros((len(rows), width), rows.dtype)
    wider[:, : rows.shape[1]] = rows
    return wider
