"""Simulation: a workload played on clusters, one routing decision at a time, batch first.

`Simulation` is what the Gymnasium environments, the leaderboard and the benchmarks have in common.
It owns the arrays, loads tapes into them and shares the work among threads; what happens
between two decisions is in `prefixgym.envs.decisions`.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs import credit as credit_arrays
from prefixgym.envs import timers
from prefixgym.envs.clients import Clients
from prefixgym.envs.clock import TICKS_PER_SECOND, to_ticks
from prefixgym.envs.cluster import state
from prefixgym.envs.cluster.engine import sum_integrals
from prefixgym.envs.cluster.faults import Autoscaler, Fault
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.credit import PROMISE, Credit
from prefixgym.envs.decisions import (
    CONTINUE,
    ONE_STEP,
    incident_range,
    reset_range,
    step_range,
)
from prefixgym.envs.episode_state import EPISODE, OBJECTIVE, OUTCOME, SimulationArrays
from prefixgym.envs.heap import DUE
from prefixgym.envs.jit import kernel
from prefixgym.envs.knowing import know_range
from prefixgym.envs.lent import lend
from prefixgym.envs.memory import widened
from prefixgym.envs.rng import stream_key
from prefixgym.envs.slo import Slo
from prefixgym.envs.view import arrays as view_arrays
from prefixgym.envs.view.index.arrays import with_room
from prefixgym.envs.view.knowledge import Knowledge
from prefixgym.envs.view.sources import journal_size
from prefixgym.envs.view.view import View
from prefixgym.envs.workload.tape import NO_ROW, REQUEST, RUN, Tape, Workload

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


@kernel
def _close_integrals(s: SimulationArrays) -> None:
    for e in range(s.episodes.size):
        end = s.episodes[e].now
        for i in range(s.cluster.status.shape[1]):
            end = max(end, s.cluster.instances[e, i].changed_at)
        for i in range(s.cluster.status.shape[1]):
            sum_integrals(s.cluster, e, i, end)


_FLIGHTS_AT_FIRST = 256

Call = tuple[Any, ...]
"""A kernel of a range of environments, and what it gets besides arrays and range."""

CLIENT_STREAM = 200
"""The stream of an environment's seed that its clients draw from."""
KNOWLEDGE_STREAM = 300
"""The first of those that its routers' knowledge draws from, one for each replica."""


class Simulation:
    """E clusters, each playing its own tape.

    Attributes:
        is_calm: nothing happens but requests that arrive and are served.
        is_indexed: the routers' index is made of messages and decisions, instead of the truth.

    Args:
        cluster: the instances.
        workload: source of tapes; its block size must be the cluster's.
        slos: objectives, one for each class that the workload names.
        knowledge: what routers know of the cluster, by default everything at once.
        num_envs: E.
        faults: what happens to instances.
        autoscaler: adds and drains instances.
        clients: whether they cancel, give up and try again.
        record: keep an OUTCOME for every request.
        threads: how many threads share a step.
        longest_leap: decode steps taken at once; 1 steps one by one, to the same results.
        credit: what rewards need to know besides `good`.
        own_conditions: environments may be given conditions of their own, see `set_conditions`.

    Raises:
        ValueError: block sizes differ, the workload names a class without an objective, or
            instances have roles and something disturbs them.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        workload: Workload,
        slos: Sequence[Slo],
        knowledge: Knowledge | None = None,
        num_envs: int = 1,
        *,
        faults: Sequence[Fault] = (),
        autoscaler: Autoscaler | None = None,
        clients: Clients | None = None,
        record: bool = False,
        threads: int = 1,
        longest_leap: int = np.iinfo(np.int32).max,
        credit: Credit | None = None,
        own_conditions: bool = False,
    ) -> None:
        if workload.block_size != cluster.block_size:
            raise ValueError(
                f"workload.block_size: found {workload.block_size}, "
                f"the cluster's block_size is {cluster.block_size}"
            )
        disturbed = bool(faults) or autoscaler is not None or (clients or Clients()) != Clients()
        if cluster.is_split and disturbed:
            raise ValueError(
                "cluster.instances: found roles, which go with neither faults, nor an autoscaler, "
                "nor clients who do not just wait"
            )
        self.cluster = cluster
        self.workload = workload
        self.slos = tuple(slos)
        self.knowledge = knowledge or Knowledge()
        self.faults = tuple(faults)
        self.autoscaler = autoscaler
        self.clients = clients or Clients()
        self.is_calm = not self.faults and autoscaler is None and self.clients == Clients()
        self.is_indexed = self.knowledge.index.source != "engine"
        self.num_envs = num_envs
        self.record = record
        self._threads = max(1, min(threads, num_envs))
        self._pool: ThreadPoolExecutor | None = None
        num_instances, num_routers = len(cluster.instances), self.knowledge.replicas.count
        journal = journal_size(self.knowledge, cluster)
        objectives = np.zeros((num_envs, len(self.slos)), OBJECTIVE)
        objectives[:] = self._objectives(1.0)
        self.arrays = SimulationArrays(
            cluster=state.allocate(
                cluster,
                num_envs,
                num_flights=_FLIGHTS_AT_FIRST,
                blocks_per_flight=1,
                journal=journal,
                longest_leap=longest_leap,
                own_instances=own_conditions,
                changing_speed=any(fault.kind == "slow" for fault in self.faults),
                block_index=not self.is_indexed,
            ),
            knowledge=view_arrays.allocate(
                self.knowledge,
                cluster,
                num_envs,
                num_flights=_FLIGHTS_AT_FIRST,
                num_blocks=1,
                journal=journal,
            ),
            frontend=np.atleast_1d(to_ticks(cluster.frontend_latency)),
            objectives=objectives,
            tapes=np.zeros((num_envs, 0), REQUEST),
            runs=np.zeros((num_envs, 0), RUN),
            episodes=np.zeros(num_envs, EPISODE),
            pending=np.zeros((num_envs, 0), DUE),
            timers=timers.allocate(
                self.faults,
                self.autoscaler,
                self.clients,
                num_envs,
                num_instances,
                num_routers,
                _FLIGHTS_AT_FIRST,
            ),
            outcomes=np.zeros((num_envs, 0), OUTCOME),
            credit=credit_arrays.allocate(credit or Credit(), num_envs, _FLIGHTS_AT_FIRST),
        )

    @property
    def arrays(self) -> SimulationArrays:
        """The whole state; arrays may be changed in place, or the tuple replaced."""
        return self._arrays

    @arrays.setter
    def arrays(self, arrays: SimulationArrays) -> None:
        self._arrays = arrays
        self._lent = lend(arrays)
        self._view = view_arrays.show(self.cluster, arrays.knowledge)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes: neither pointers nor threads."""
        made_anew = ("_lent", "_pool", "_view")
        return {key: value for key, value in vars(self).items() if key not in made_anew}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _pool=None)
        self.arrays = self._arrays

    def _objectives(self, scale: float) -> NDArray[np.void]:
        """OBJECTIVE records [slo classes], all times multiplied by `scale`."""
        objectives = np.zeros(len(self.slos), OBJECTIVE)
        for name in OBJECTIVE.names or ():
            objectives[name] = to_ticks([getattr(slo, name) * scale for slo in self.slos])
        return objectives

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
        self.begin(chosen)

    def begin(self, chosen: NDArray[np.bool_], *then: Call) -> None:
        """Go to the first decisions of the tapes in the chosen environments (bool [E]).

        Args:
            chosen: bool [E].
            then: kernels to be run when all are there, with what they get besides the arrays.
        """
        self.run(reset_range, chosen)
        self.advance(np.full(self.num_envs, CONTINUE), *then)

    def load(self, seeds: Sequence[int | None], chosen: NDArray[np.bool_]) -> None:
        """Put the tapes of `seeds` into the chosen environments, which must then be reset."""
        tapes: dict[int | None, Tape] = {}
        for e in np.flatnonzero(chosen).tolist():
            seed = seeds[e]
            if seed not in tapes:
                tapes[seed] = self.admit(self.workload.tape(int(seed or 0)))
            self.write_tape(e, tapes[seed])
            self.set_chance(e, int(seed or 0))

    def set_chance(self, e: int, seed: int) -> None:
        """Let what is drawn in environment e, besides its tape, follow from `seed`."""
        arrays, replicas = self.arrays, self.knowledge.replicas.count
        arrays.episodes["client_key"][e] = stream_key(seed, CLIENT_STREAM)
        for r in range(replicas):
            key = stream_key(seed, KNOWLEDGE_STREAM + r)
            arrays.knowledge.keys[e * replicas + r] = key

    def set_conditions(
        self,
        env: int,
        cost: NDArray[np.void],
        num_blocks: NDArray[np.int64],
        slo_scale: float,
    ) -> None:
        """Give one environment, which must then be reset, a cluster and objectives of its own.

        Args:
            env: which.
            cost: STEP_COST [N].
            num_blocks: blocks of KV cache of each instance, at most those of the simulation's
                cluster; 0 for an instance that is not there.
            slo_scale: factor on all objectives.
        """
        state.set_instances(self.arrays.cluster, env, cost, num_blocks)
        self.arrays.objectives[env] = self._objectives(slo_scale)

    def admit(self, tape: Tape) -> Tape:
        """A whole tape, once there is room for it; ValueError if a follow-up would never come."""
        requests = tape.requests
        lost = (requests["parent"] != NO_ROW) & (requests["waits_for"] < 1)
        if lost.any():
            row = int(np.argmax(lost))
            raise ValueError(
                f"requests[{row}].waits_for: found {requests['waits_for'][row]}, a follow-up waits "
                "for at least one end (prefixgym.envs.workload.links.link_rows counts them)"
            )
        return self.make_room(tape)

    def make_room(self, tape: Tape) -> Tape:
        """The tape, once there is room for it in all arrays, which keep what is in them."""
        most = int(tape.requests["slo_class"].max(initial=0))
        if most >= len(self.slos):
            raise ValueError(f"slos: found {len(self.slos)}, the workload names class {most}")
        tokens = tape.requests["prompt_tokens"] + tape.requests["output_tokens"]
        known = np.maximum(tape.requests["num_blocks"], tape.requests["cacheable_blocks"])
        blocks = max(int((-(-tokens // tape.block_size)).max(initial=1)), int(known.max(initial=1)))
        arrays, rows = self.arrays, len(tape.requests)
        self.reserve(arrays.cluster.flights.shape[1], blocks)
        if rows > arrays.tapes.shape[1]:
            self.arrays = self.arrays._replace(
                tapes=widened(arrays.tapes, rows),
                outcomes=widened(arrays.outcomes, rows if self.record else 0),
            )
        if len(tape.runs) > arrays.runs.shape[1]:
            self.arrays = self.arrays._replace(runs=widened(arrays.runs, len(tape.runs)))
        comes_later = (tape.requests["parent"] != NO_ROW).any() or self.clients.retries > 0
        if comes_later and rows > arrays.pending.shape[1]:
            self.arrays = self.arrays._replace(pending=widened(arrays.pending, rows))
        return tape

    def write_tape(self, e: int, tape: Tape, *, more: bool = False) -> None:
        """Put a tape that there is room for into environment e; `more` rows may come later."""
        self.arrays.tapes[e, : len(tape.requests)] = tape.requests
        self.arrays.runs[e, : len(tape.runs)] = tape.runs
        self.arrays.episodes["num_requests"][e] = len(tape.requests)
        self.arrays.episodes["more"][e] = more
        follow_ups = tape.requests["parent"] != NO_ROW
        instant = (tape.requests["arrival"][follow_ups] == 0).any()
        self.arrays.episodes["instant_follow_ups"][e] = instant

    def reserve(self, num_flights: int, num_blocks: int) -> None:
        """Make room for requests in flight and for the blocks of one request."""
        arrays = self.arrays
        _, flights, blocks = arrays.cluster.flight_blocks.shape
        if num_flights > flights or num_blocks > blocks:
            more = max(0, num_flights - flights)
            flights, blocks = flights + more, max(blocks, num_blocks)
            self.arrays = arrays._replace(
                cluster=state.grow_flights(arrays.cluster, flights, blocks),
                knowledge=view_arrays.grow(arrays.knowledge, flights, blocks),
                credit=credit_arrays.grow(arrays.credit, flights),
                timers=timers.grow(arrays.timers, more),
            )
            # The free list may start elsewhere now.
            fresh = self.arrays.episodes["flight"] == state.NONE
            free = self.arrays.cluster.environments["free_flight"]
            self.arrays.knowledge.requests["slot"][fresh] = free[fresh]

    # --- decisions ---

    def step(self, actions: NDArray[np.int64]) -> None:
        """Route the current request of every environment that is not done.

        Args:
            actions: instances [E], or their number N where the router rejects the request; or pairs
                [E, 2], the instance that prefills it (or N) and the one that decodes it.
        """
        self.advance(self.encoded(actions))

    def encoded(self, actions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Actions as kernels take them, [E]: see `decisions.step_environment`."""
        actions = np.ascontiguousarray(actions, np.int64)
        if actions.ndim == 1:
            return actions
        rejects = actions[:, 0] == len(self.cluster.instances)
        return actions[:, 0] + (len(self.cluster.instances) + 1) * np.where(
            rejects, 0, actions[:, 1] + 1
        )

    def advance(self, actions: NDArray[np.int64], *then: Call) -> None:
        """The same, and what is to be done at the decisions that it leads to.

        Args:
            actions: int64 [E], or CONTINUE.
            then: kernels to be run when all are there, with what they get besides the arrays.
        """
        knowing: tuple[Call, ...] = ((know_range,),) if self.is_indexed else ()
        step: Call = (step_range, actions.reshape(-1, 1), ONE_STEP)
        while True:
            self.run_in_turn(step, *knowing, *then)
            if self.is_indexed:
                self._make_room_for_beliefs()
            if self.is_calm or not self.arrays.episodes["halted"].any():
                return
            step = (step_range, np.full((self.num_envs, 1), CONTINUE), ONE_STEP)
            self.run(incident_range)

    def _make_room_for_beliefs(self) -> None:
        index = self.arrays.knowledge.known
        larger = with_room(index, self.arrays.knowledge.block_ids.shape[1])
        if larger is not index:
            knowledge = self.arrays.knowledge._replace(known=larger)
            self.arrays = self.arrays._replace(knowledge=knowledge)

    @property
    def can_play_plans(self) -> bool:
        """Whether decisions may be fixed in advance, for `play`."""
        return self.is_calm and self.knowledge.replicas.count == 1

    def play(self, actions: NDArray[np.int64]) -> None:
        """Play whole episodes of fixed decisions, actions [E, R] in order of arrival.

        For routers that look at nothing: no view is kept meanwhile. Call it right after `reset`,
        if `can_play_plans`; ValueError if not.
        """
        if not self.can_play_plans:
            raise ValueError(
                "play: found faults, an autoscaler, clients who do not just wait or several "
                "routers; decisions cannot be fixed in advance"
            )
        actions = np.ascontiguousarray(actions, np.int64)
        while not self.arrays.episodes["done"].all():
            self.run(step_range, actions, 0)

    def run(self, kernel_of_range: Callable[..., int], *args: Any) -> None:
        """Call `kernel(lent arrays, first, last, *args)` on all environments, one range a thread.

        The kernel returns the most requests in flight, so that there is room for one more.
        """
        self.run_in_turn((kernel_of_range, *args))

    def run_in_turn(self, *calls: Call) -> None:
        """The same with several kernels, one after the other in each range."""
        if self._threads == 1:
            most = self._run_calls(0, self.num_envs, calls)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads - 1, "prefixgym")
            bounds = [self.num_envs * k // self._threads for k in range(self._threads + 1)]
            others = [
                self._pool.submit(self._run_calls, first, last, calls)
                for first, last in itertools.pairwise(bounds[1:])
            ]
            most = self._run_calls(bounds[0], bounds[1], calls)
            most = max([most, *(other.result() for other in others)])
        flights = self.arrays.cluster.flights.shape[1]
        if most >= flights:  # the next dispatch must find an unused record
            self.reserve(2 * flights, 1)

    def _run_calls(self, first: int, last: int, calls: Sequence[Call]) -> int:
        return max(
            [kernel_of_range(self._lent, first, last, *args) for kernel_of_range, *args in calls]
        )

    # --- results ---

    @property
    def view(self) -> View:
        """The current decision of every environment; overwritten by the next step."""
        return self._view

    @property
    def done(self) -> NDArray[np.bool_]:
        """Environments whose requests have all ended, bool [E]."""
        done: NDArray[np.bool_] = self.arrays.episodes["done"] != 0
        return done

    def is_over(self, env: int) -> bool:
        """`done` of one environment, for those who step but one."""
        return bool(self.arrays.episodes["done"][env])

    @property
    def good(self) -> NDArray[np.int32]:
        """Requests that met their objectives, among those ended since the last decision, [E]."""
        good: NDArray[np.int32] = self.arrays.episodes["good"]
        return good

    @property
    def tardiness(self) -> NDArray[np.float64]:
        """Summed tardiness of the same requests, [E], if `credit` has a cap for it."""
        tardiness: NDArray[np.float64] = self.arrays.credit.environments["tardiness"]
        return tardiness

    @property
    def promised(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Promises of the requests in flight, at the last decision and now, [E] each.

        If `credit` keeps them.
        """
        environments = self.arrays.credit.environments
        return environments["promised_before"] / PROMISE, environments["promised"] / PROMISE

    def settled(self, stepped: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """The requests that ended since the last decision, if `credit` attributes them.

        Args:
            stepped: bool [E], environments to look at.

        Returns:
            The environment of each, ascending, and its SETTLED record.
        """
        credit = self.arrays.credit
        counts = np.where(stepped, credit.environments["num_settled"], 0)
        env = np.repeat(np.arange(self.num_envs), counts)
        place = np.arange(len(env)) - np.repeat(np.cumsum(counts) - counts, counts)
        return env, credit.settled[env, place]

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

    @property
    def control(self) -> NDArray[np.void]:
        """What each router's index has cost so far: CONTROL records (`view.index.arrays`) [E, R].

        With a shared index R is 1. All zero if the index is the truth.
        """
        control: NDArray[np.void] = self.arrays.knowledge.known.control
        return control.reshape(self.num_envs, -1)

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
