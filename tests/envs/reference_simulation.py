"""A whole episode in plain Python: clusters of `ReferenceEngine`, their routers and their clients.

At one instant steps end first, then timers run (what happens to instances, health checks, clients
who give up), then KV arrives that was moved, then instances report, then what routers hold back
leaves, then requests arrive (retries and follow-ups before roots, by row), then steps start;
instances in order of their index. A rejected request ends when it comes to its instance, if it is
too large for that, or at its arrival, if the router turns it away.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from random_cases import SLOS, Case
from reference_clients import ReferenceClients, client_key
from reference_engine import Event, ReferenceEngine, Request
from reference_faults import Instance, Phase, ReferenceFaults, Timers
from reference_outcomes import most_ttft, outcomes_of
from reference_replica import Ledger, ReferenceReplica, total, turns

from prefixgym.envs.clients import Clients
from prefixgym.envs.clock import TICKS_PER_SECOND, to_seconds, to_ticks
from prefixgym.envs.cluster.faults import Autoscaler, Fault
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.cluster.state import CANCELLED, FAILED, FINISHED, NONE, REJECTED
from prefixgym.envs.cluster.step_time import step_ticks
from prefixgym.envs.rng import stream_key, uniform
from prefixgym.envs.simulation import INSTANCE_TOTALS
from prefixgym.envs.slo import Slo
from prefixgym.envs.view.knowledge import Knowledge
from prefixgym.envs.view.view import DISPATCHED, INSTANCE_VIEW, REQUEST_VIEW
from prefixgym.envs.workload.tape import NO_ROW, Tape

REPLICA_KEY = stream_key(0, 7)


@dataclass
class Decision:
    """What a router saw at an arrival."""

    time: int
    row: int
    replica: int
    request: NDArray[np.void]  # REQUEST_VIEW []
    instances: NDArray[np.void]  # INSTANCE_VIEW [N]
    block_ids: list[int]
    caches: list[list[int | None]]  # keys of each instance's unused blocks, LRU first
    reported: list[set[int]]  # keys that each instance last reported to this router
    events: list[tuple[float, int, int, int]]  # time (s), row, instance, kind


@dataclass
class ReferenceSimulation:
    """Play `tape` with fixed decisions; results are in `decisions`, `outcomes`, `totals`."""

    cluster: ClusterSpec
    tape: Tape
    slos: Sequence[Slo]
    knowledge: Knowledge
    actions: Sequence[int]
    decoders: Sequence[int] | None  # NONE where it was prefilled
    orders: NDArray[np.void] | None  # as in `Case`, of this tape
    faults: Sequence[Fault] = ()
    autoscaler: Autoscaler | None = None
    clients: Clients = field(default_factory=Clients)
    client_key: np.uint64 = field(default_factory=np.uint64)  # of its clients
    decisions: list[Decision] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)
    corners: set[str] = field(default_factory=set)  # what random cases must reach

    def __post_init__(self) -> None:
        size = self.cluster.block_size
        instances = []
        for i, spec in enumerate(self.cluster.instances):
            cost = spec.profile.step_cost(self.cluster.kv_blocks(i) * size)
            sizes = (spec.max_batched_tokens, spec.max_sequences)
            engine = ReferenceEngine(cost, self.cluster.kv_blocks(i), size, *sizes)
            instances.append(Instance(engine, cost))
        self.engines = [instance.engine for instance in instances]
        self.now = 0
        rows = self.tape.requests
        self.waits_for: list[int] = rows["waits_for"].tolist()
        self.arrivals = [  # (time, 0 for retries and follow-ups and 1 for roots, row)
            (int(rows["arrival"][row]), 1, row)
            for row in np.flatnonzero(rows["parent"] == NO_ROW).tolist()
        ]
        self.flights: dict[int, Request] = {}  # last attempts of those that have not ended, by row
        index, replicas = self.knowledge.index, self.knowledge.replicas
        report = index.snapshots.interval if index.source == "snapshots" else 0.0
        places = [(w, replicas.count, len(self.engines)) for w in range(replicas.count)]
        self.replicas = [
            ReferenceReplica(
                place[0],
                self.engines,
                reports=turns(int(to_ticks(report)), *place),
                polls=turns(int(to_ticks(self.knowledge.telemetry.interval)), *place),
            )
            for place in places
        ]
        shares = np.array(replicas.shares or (1.0,) * replicas.count)
        self.shares = np.cumsum(shares / shares.sum()).tolist()
        self.sync = int(to_ticks(replicas.load_sync))
        self.next_sync = self.sync
        self.transfers: list[tuple[int, int, Request]] = []  # (arrival, row, request)
        self.sends_until = [0] * len(self.engines)
        self.receives_until = [0] * len(self.engines)
        self.running_ticks = [0] * len(self.engines)
        self.waiting_ticks = [0] * len(self.engines)
        self.refusals: list[Event] = []  # of what has come to instances; heard of next
        self.timers = Timers()
        self.lives = ReferenceFaults(self, instances, self.knowledge, self.faults, self.autoscaler)
        self.instances = instances
        self.crowd = ReferenceClients(self, self.clients, self.client_key, len(rows))
        while self.arrivals or self.flights:
            self._next_instant()

    # --- one instant ---

    def _next_instant(self) -> None:
        ends = [engine.step_end for engine in self.engines if engine.step_end is not None]
        departure = self._first_departure()
        times = [time for time, _, _ in self.arrivals] + ends
        times += [] if departure is None else [max(departure, self.now)]
        times += [arrival for arrival, _, _ in self.transfers]
        hanging = any(instance.limbo for instance in self.instances)
        is_over = not times and not hanging  # what would be held back for ever leaves now
        if not is_over:
            times += self.timers.times() + self._turns()
        now = min(times, default=self.now)
        for i, engine in enumerate(self.engines):
            self.running_ticks[i] += len(engine.running) * (now - self.now)
            self.waiting_ticks[i] += len(engine.waiting) * (now - self.now)
        self.now = now
        for i, engine in enumerate(self.engines):
            if engine.step_end == now:
                self._notice(engine.end_step(now))
                self.lives.check_drained(i)
        self.timers.run(now)
        self._receive()
        self._publish()
        self._depart(is_over)
        while self.arrivals and min(self.arrivals)[0] == now:
            arrival = min(self.arrivals)
            self.arrivals.remove(arrival)
            self._arrive(arrival[2])
            self._depart()
        for engine in self.engines:
            if engine.step_end is None:
                for event in engine.start_step(now):
                    if event.kind == "started":
                        self.replicas[event.request.replica].hear_start(now, event.request)
                    else:
                        self._notice([event])

    def _turns(self) -> list[int]:
        """When each instance and each exchange of ledgers has its next turn."""
        found = [self.next_sync] if self.sync > 0 else []
        for replica in self.replicas:
            found += [turn.next for turn in replica.reports + replica.polls]
        return found

    def _publish(self) -> None:
        for replica in self.replicas:
            for i, instance in enumerate(self.instances):
                down = instance.phase in (Phase.DOWN, Phase.LOST)
                speaks = not down and not instance.is_silent
                if replica.reports and replica.reports[i].comes(self.now) and speaks:
                    replica.report(i)
                if replica.polls and replica.polls[i].comes(self.now) and speaks:
                    replica.poll(self.now, i)
        if self.sync > 0 and self.next_sync == self.now:
            self.next_sync += self.sync
            for replica in self.replicas:
                replica.board = [replica.ledger(i) for i in range(len(self.engines))]

    def _notice(self, events: list[Event]) -> None:
        """Responses reach the router; an end releases the follow-ups."""
        for request, kind in events:
            if kind == "failed":
                self.fail(request)
            elif kind == "cancelled":
                self.end_cancelled(request)
            else:
                self.replicas[request.replica].hear_response(self.now, Event(request, kind))
                if kind == "prefilled":
                    self._send_kv(request)
                if kind == "end":
                    self._end(request, REJECTED if request.rejected else FINISHED)

    def _end(self, request: Request, status: int) -> None:
        request.end, request.status = self.now, status
        del self.flights[request.row]
        self.ended.append(request)
        child = int(self.tape.requests["first_child"][request.row])
        while child != NO_ROW:
            self._release(child)
            child = int(self.tape.requests["next_sibling"][child])
        if self.tape.requests["then"][request.row] != NO_ROW:
            self._release(int(self.tape.requests["then"][request.row]))

    def _release(self, row: int) -> None:
        """One more of the ends that `row` waits for has come."""
        self.waits_for[row] -= 1
        if self.waits_for[row] == 0:
            think = int(self.tape.requests["arrival"][row])
            self.arrivals.append((self.now + think, 0, row))

    # --- from where they are prefilled to where they are decoded ---

    def _send_kv(self, request: Request) -> None:
        sender, receiver, size = request.instance, request.decoder, self.cluster.block_size
        assert receiver is not None
        whole = request.keys[: request.prompt_tokens // size]
        held = len(self.engines[receiver].pool.longest_prefix(whole))
        start = max(self.now, self.sends_until[sender], self.receives_until[receiver])
        spec, link = self.cluster.instances[sender].profile, self.cluster.link
        seconds = spec.kv_bytes_per_token / link.bandwidth
        tokens = request.prompt_tokens - held * size
        end = start + round(tokens * (seconds * TICKS_PER_SECOND))
        self.sends_until[sender] = self.receives_until[receiver] = end
        arrival = end + int(to_ticks(link.latency))
        self.transfers.append((arrival, request.row, request))
        self.corners.add("moved")
        if start > self.now:
            self.corners.add("waited for a port")
        if held:
            self.corners.add("moved in part")

    def _receive(self) -> None:
        """Transfers that arrive now."""
        for transfer in sorted(self.transfers, key=lambda transfer: transfer[:2]):
            if transfer[0] == self.now:
                self.transfers.remove(transfer)
                request = transfer[2]
                assert request.decoder is not None
                self.engines[request.instance].release(request)
                request.instance = request.decoder
                self.engines[request.instance].receive(request)

    # --- attempts without an answer, and clients who do not wait for one ---

    def fail(self, request: Request) -> None:
        """The attempt ends without an answer; the client may try again."""
        self.replicas[request.replica].hear_response(self.now, Event(request, "failed"))
        if request.first_token is not None:
            self.corners.add("lost after its first token")
        if request.attempts <= self.clients.retries:
            request.first_token = None  # nothing of this attempt counts any more
            delay = int(to_ticks(self.clients.retry_delay))
            self.arrivals.append((self.now + delay, 0, request.row))
        else:
            self._end(request, FAILED)

    def end_cancelled(self, request: Request) -> None:
        """The request ends because its client has gone; its router may never know."""
        replica = self.replicas[request.replica]
        if request.row in replica.bookings:
            if self.crowd.leaks(request.row):
                self.corners.add("leaked")
            else:
                replica.hear_response(self.now, Event(request, "cancelled"))
        self._end(request, CANCELLED)

    # --- what routers hold back ---

    def _first_departure(self) -> int | None:
        count = len(self.engines)
        times = [replica.departure(i) for replica in self.replicas for i in range(count)]
        return min((time for time in times if time is not None), default=None)

    def _depart(self, is_over: bool = False) -> None:
        """Everything leaves that may leave now; then what was refused is heard of."""
        for replica in self.replicas:
            for i in range(len(self.engines)):
                while replica.held[i] and (is_over or self._may_leave(replica, i)):
                    for request in replica.let_go(i):
                        self._dispatch(replica, request)
        if self.refusals:
            events, self.refusals = self.refusals, []
            self._notice(events)
            self._depart()

    def _may_leave(self, replica: ReferenceReplica, i: int) -> bool:
        time = replica.departure(i)
        return time is not None and time <= self.now

    def _dispatch(self, replica: ReferenceReplica, request: Request) -> None:
        replica.hear(self.now, request, DISPATCHED)
        instance = self.instances[request.instance]
        if instance.phase is Phase.DOWN or replica.number in instance.found:
            self.refusals.append(Event(request, "failed"))
            self.corners.add("refused")
        elif instance.phase is Phase.LOST:
            instance.limbo.append(request)
            self.corners.add("sent into limbo")
        else:
            last = request.instance if request.decoder is None else request.decoder
            self.refusals += instance.engine.enqueue(request, self.engines[last], self.now)

    # --- decisions ---

    def _arrive(self, row: int) -> None:
        request, ids = self.tape.requests[row], self.tape.block_ids(row).tolist()
        drawn = uniform(REPLICA_KEY, len(self.decisions))
        number = next((w for w, share in enumerate(self.shares) if share > drawn), 0)
        replica, before = self.replicas[number], self.flights.get(row)
        prompt = int(request["prompt_tokens"])
        flight = Request(
            row=row,
            arrival=self.now if before is None else before.arrival,
            prompt_tokens=prompt,
            output_tokens=int(request["output_tokens"]),
            keys=ids[: request["cacheable_blocks"]],
            replica=number,
            routed=self.now,
            attempts=1 if before is None else before.attempts + 1,
        )
        self.flights[row] = flight
        replica.decide(self.now)
        decision = self._present(replica, flight)
        if not any(replica.available):
            self.corners.add("nobody available")
        action = int(self.actions[len(self.decisions)])
        if self.orders is not None:
            replica.holds = self.orders[len(self.decisions)].copy()
            replica.holds["release"] += self.now / TICKS_PER_SECOND
        replica.events = []
        self.decisions.append(decision)
        if before is None:
            self.crowd.announce_end(row)
        if action == len(self.engines):
            flight.hit_tokens = 0
            self._end(flight, REJECTED)
            return
        hit = int(decision.instances["hit_tokens"][action])
        ticks = self._prefill_known(action, hit, prompt)
        decoder = NONE if self.decoders is None else int(self.decoders[len(self.decisions) - 1])
        flight.decoder = None if decoder == NONE else decoder
        flight.prefiller = action
        replica.book(action, flight, hit, ticks)
        flight.instance, flight.expected = action, prompt - hit
        replica.held[action].append(flight)

    def _prefill_known(self, i: int, computed: int, tokens: int) -> int:
        """The tokens from `computed` to `tokens`, alone and in chunks of the budget."""
        ticks = 0
        while computed < tokens:
            chunk = min(tokens - computed, self.engines[i].max_batched_tokens)
            work = chunk * (computed + chunk / 2)
            ticks += step_ticks(self.instances[i].cost, chunk, work, 0, 0, 1)
            computed += chunk
        return ticks

    def _present(self, replica: ReferenceReplica, flight: Request) -> Decision:
        request = self.tape.requests[flight.row]
        size, prompt = self.tape.block_size, flight.prompt_tokens
        ids = self.tape.block_ids(flight.row)[: request["num_blocks"]].tolist()
        shown = np.zeros((), REQUEST_VIEW)
        shown["time"] = self.now / TICKS_PER_SECOND
        if self.decisions:
            shown["gap"] = (self.now - self.decisions[-1].time) / TICKS_PER_SECOND
        shown["prompt_tokens"] = prompt
        shown["num_blocks"] = len(ids)
        shown["session"] = request["session"]
        shown["slo_class"] = request["slo_class"]
        slo = self.slos[request["slo_class"]]
        shown["slo_ttft"] = to_seconds(most_ttft(slo, prompt))
        shown["slo_tpot"] = to_seconds(to_ticks(slo.tpot))
        shown["index"] = len(self.decisions)
        shown["attempt"] = flight.attempts - 1
        shown["replica"] = replica.number
        instances = np.zeros(len(self.engines), INSTANCE_VIEW)
        for i in range(len(self.engines)):
            known, depth = replica.known_blocks(i), 0
            while depth < min(len(ids), (prompt - 1) // size) and ids[depth] in known:
                depth += 1
            ledger = self._shown_ledger(replica, i)
            instances[i]["available"] = replica.available[i]
            instances[i]["hit_tokens"] = depth * size
            instances[i]["prefill_seconds"] = (
                self._prefill_known(i, depth * size, prompt) / TICKS_PER_SECOND
            )
            instances[i]["backlog_seconds"] = ledger.backlog / TICKS_PER_SECOND
            for name in ("requests", "prefill_requests", "prefill_tokens", "context_tokens"):
                instances[i][name] = getattr(ledger, name)
            for part in (replica.known_state(i)._asdict(), vars(replica.experience[i])):
                for name, value in part.items():
                    instances[i][name] = value
            instances[i]["held"] = len(replica.held[i])
            if replica.held[i]:
                instances[i]["held_since"] = replica.held[i][0].routed / TICKS_PER_SECOND
        return Decision(
            self.now,
            flight.row,
            replica.number,
            shown,
            instances,
            ids,
            self.caches(),
            list(replica.reported),
            replica.events,
        )

    def _shown_ledger(self, replica: ReferenceReplica, i: int) -> Ledger:
        """Its own bookings, and those of the others as of the last exchange."""
        others = [other.board[i] for other in self.replicas if other is not replica]
        return total([replica.ledger(i), *others])

    # --- results ---

    def caches(self) -> list[list[int | None]]:
        """For every instance the keys of its blocks without users, least recently used first."""
        return [[block.key for block in engine.pool.unused] for engine in self.engines]

    @property
    def outcomes(self) -> NDArray[np.void]:
        """OUTCOME records in the order of the requests' ends."""
        frontend = int(to_ticks(self.cluster.frontend_latency))
        return outcomes_of(self.ended, self.tape, self.slos, frontend)

    @property
    def totals(self) -> NDArray[np.void]:
        """INSTANCE_TOTALS records [N]."""
        totals = np.zeros(len(self.engines), INSTANCE_TOTALS)
        columns: dict[str, list[Any]] = {
            "running_seconds": [ticks / TICKS_PER_SECOND for ticks in self.running_ticks],
            "waiting_seconds": [ticks / TICKS_PER_SECOND for ticks in self.waiting_ticks],
            "busy_seconds": [engine.busy_ticks / TICKS_PER_SECOND for engine in self.engines],
            "prefilled_tokens": [engine.prefilled_tokens for engine in self.engines],
            "preemptions": [engine.preemptions for engine in self.engines],
            "steps": [engine.steps for engine in self.engines],
        }
        for name, values in columns.items():
            totals[name] = values
        return totals


def play_reference(case: Case, tape: int = 0) -> ReferenceSimulation:
    """Tape number `tape` of a case."""
    return ReferenceSimulation(
        case.cluster,
        case.tapes[tape],
        SLOS,
        case.knowledge,
        case.actions[tape].tolist(),
        None if case.decoders is None else case.decoders[tape].tolist(),
        None if case.orders is None else case.orders[tape],
        case.faults,
        case.autoscaler,
        case.clients,
        client_key(tape),
    )
