"""An episode of any length in bounded memory: its tape comes in chunks while it is played.

Once the last root that is loaded has become the current request, the next chunk is loaded before
time goes on: its first root may be the next to arrive. The rows that still matter are kept beside
it: the current one, those in flight, follow-ups whose arrival is known, and all that wait for other
rows' ends. The others have ended; their outcomes are handed out and dropped. So memory is
proportional to a chunk and to the requests in flight or still to follow on them, whatever the
length of the whole. Rows stay in the order of the whole tape, which decides between follow-ups that
arrive at once: the episode is the whole tape's, bit for bit.
"""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.decisions import needs_rows, step_range
from prefixgym.envs.episode_state import SimulationArrays
from prefixgym.envs.jit import kernel
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.workload.chunk import Chunk
from prefixgym.envs.workload.split import runs_of
from prefixgym.envs.workload.tape import NO_ROW, Tape

_ENDED = -2
"""`parent` of a follow-up whose parent was dropped."""

MOST_ROWS = 2**31
"""Rows are counted in 32 bits."""

OnOutcomes = Callable[[NDArray[np.void], NDArray[np.int32]], None]


@kernel
def _flights_in_use(s: SimulationArrays, e: int) -> NDArray[np.bool_]:
    in_use = np.ones(s.cluster.flights.shape[1], np.bool_)
    q = s.cluster.environments[e].free_flight
    for _ in range(in_use.size - s.cluster.environments[e].in_flight):
        in_use[q] = False
        q = s.cluster.flights[e, q].next
    return in_use


@kernel
def _mark_rows_that_matter(s: SimulationArrays, e: int, matter: NDArray[np.bool_]) -> None:
    """Fill `matter` [num_requests] in; every root has become current before."""
    episode, in_use = s.episodes[e], _flights_in_use(s, e)
    for row in range(episode.num_requests):
        matter[row] = s.tapes[e, row].waits_for > 0
    for k in range(episode.num_pending):
        matter[s.pending[e, k].order] = True
    for q in range(in_use.size):
        if in_use[q]:
            matter[s.cluster.flights[e, q].row] = True
    matter[episode.row] = True


@kernel
def _renumber(s: SimulationArrays, e: int, place: NDArray[np.int64]) -> None:
    """Row r is now row place[r]. The order of rows stays, so `pending` stays a heap."""
    episode, in_use = s.episodes[e], _flights_in_use(s, e)
    for k in range(episode.num_pending):
        s.pending[e, k].order = place[s.pending[e, k].order]
    for q in range(in_use.size):
        if in_use[q]:
            s.cluster.flights[e, q].row = place[s.cluster.flights[e, q].row]
    episode.row = place[episode.row]


class StreamedEpisode:
    """One long episode, played in a simulation of one environment, chunk by chunk.

    One environment, because each would need new rows at a decision of its own, and a trace is one
    episode anyway: other routers or clusters play it in other processes.

    Args:
        simulation: made with num_envs=1 and record=True; its workload is not asked. Step it only
            through this object; its view, totals and snapshots are as always. Its outcomes are
            those not yet handed out, their rows those of the tape as loaded.
        chunks: the tape.
        on_outcomes: called with OUTCOME records, in order of their ends, `row` being that of the
            whole tape; and with the sessions of which requests that have not ended are loaded.

    Raises:
        ValueError: the simulation is none for this, there is no chunk, or a chunk breaks the
            contract of `Chunk`.
    """

    def __init__(
        self, simulation: Simulation, chunks: Iterable[Chunk], on_outcomes: OnOutcomes
    ) -> None:
        if simulation.num_envs != 1 or not simulation.record:
            raise ValueError(
                f"simulation: found num_envs={simulation.num_envs}, record={simulation.record}, "
                "must be 1 and True"
            )
        if simulation.clients.cancel > 0:  # drawn by rows, which change
            raise ValueError(
                f"clients.cancel: found {simulation.clients.cancel}, must be 0 where a trace is "
                "streamed"
            )
        self.simulation = simulation
        self._chunks = iter(chunks)
        self._on_outcomes = on_outcomes
        chunk = next(self._chunks, None)
        if chunk is None:
            raise ValueError("chunks: found none, must be at least one")
        self._rows = np.empty(0, np.int64)
        self._last_root = (0, NO_ROW)  # arrival and row
        self._check(chunk)
        self._load(chunk, chunk.rows)
        simulation.begin(np.ones(1, np.bool_))

    @property
    def done(self) -> bool:
        """Whether all requests have ended, and their outcomes are handed out."""
        return bool(self.simulation.arrays.episodes["done"][0])

    def step(self, actions: NDArray[np.int64]) -> None:
        """Route the current request, actions [1]."""
        if self._needs_rows:
            self._next_chunk()
        self.simulation.step(actions)
        self._finish()

    def play(self, plan: Callable[[int, int], NDArray[np.int64]]) -> None:
        """Play to the end by fixed decisions; call it right after making the episode.

        For routers that look at nothing: no view is kept meanwhile.

        Args:
            plan: called with numbers n and k; returns decisions k … k + n - 1, shape [1, n].
        """
        while not self.done:
            if self._needs_rows:
                self._next_chunk()
            episode = self.simulation.arrays.episodes[0]
            taken = int(episode["decisions"])
            actions = np.ascontiguousarray(plan(int(episode["num_requests"]), taken), np.int64)
            while not self.done and not self._needs_rows:
                self.simulation.run(step_range, actions, taken)
        self._finish()

    @property
    def _needs_rows(self) -> bool:
        return needs_rows(self.simulation.arrays.episodes[0])

    def _finish(self) -> None:
        if self.done:
            self._on_outcomes(self._outcomes(), np.empty(0, np.int32))

    def _outcomes(self) -> NDArray[np.void]:
        """What has ended since the last time, under the rows of the whole tape."""
        outcomes = self.simulation.outcomes(0)
        outcomes["row"] = self._rows[outcomes["row"]]
        self.simulation.arrays.episodes["ended"][0] = 0
        return outcomes

    def _next_chunk(self) -> None:
        """Load the next chunk beside the rows that matter, or learn that there is none."""
        chunk = next(self._chunks, None)
        arrays = self.simulation.arrays
        if chunk is None:
            arrays.episodes["more"][0] = 0
            return
        self._check(chunk)
        outcomes = self._outcomes()
        loaded = len(self._rows)
        matter = np.empty(loaded, np.bool_)
        _mark_rows_that_matter(arrays, 0, matter)
        kept = np.flatnonzero(matter)

        rows = np.concatenate([self._rows[kept], chunk.rows])
        order = np.argsort(rows)
        position = np.empty(len(rows), np.int64)
        position[order] = np.arange(len(rows))
        place = np.full(loaded, NO_ROW)
        place[kept] = position[: len(kept)]
        old = _linked(arrays.tapes[0][kept], place)
        new = _linked(chunk.requests, position[len(kept) :])
        where, num_runs = runs_of(old)
        old["first_run"] = np.cumsum(num_runs) - num_runs
        new["first_run"] += len(where)
        requests = np.concatenate([old, new])[order]
        runs = np.concatenate([arrays.runs[0][where], chunk.runs])

        self._load(Tape(requests, runs, chunk.block_size), rows[order])
        arrays = self.simulation.arrays
        _renumber(arrays, 0, place)
        first_root = int(np.argmax(chunk.requests["parent"] == NO_ROW))
        arrays.episodes["cursor"][0] = position[len(kept) + first_root]
        self._on_outcomes(outcomes, np.unique(requests["session"]))

    def _load(self, tape: Tape, rows: NDArray[np.int64]) -> None:
        self.simulation.write_tape(0, self.simulation.make_room(tape), more=True)
        self._rows = rows

    def _check(self, chunk: Chunk) -> None:
        """ValueError unless the chunk goes on where those before ended."""
        block_size = self.simulation.cluster.block_size
        if chunk.block_size != block_size:
            raise ValueError(
                f"chunk.block_size: found {chunk.block_size}, the cluster's is {block_size}"
            )
        roots = np.flatnonzero(chunk.requests["parent"] == NO_ROW)
        if len(roots) == 0:
            raise ValueError("chunk: found no root, must be at least one")
        arrival, row = chunk.requests["arrival"][roots], chunk.rows[roots]
        for name, found, before in zip(
            ("arrival", "row"), (arrival[0], row[0]), self._last_root, strict=True
        ):
            if found < before:
                raise ValueError(
                    f"chunk: first root's {name}: found {found}, must not be before {before}, that "
                    "of the last root of the chunks before"
                )
        if chunk.rows[-1] >= MOST_ROWS:
            raise ValueError(f"chunk.rows: found {chunk.rows[-1]}, must be below {MOST_ROWS}")
        self._last_root = (int(arrival[-1]), int(row[-1]))


def _linked(requests: NDArray[np.void], place: NDArray[np.int64]) -> NDArray[np.void]:
    """A copy of `requests` whose links lead to place[row] instead of row."""
    requests = requests.copy()
    for name in ("parent", "first_child", "next_sibling", "then"):
        links = requests[name]
        linked = links >= 0
        links[linked] = place[links[linked]]
        if name == "parent":  # that it had one tells it from a root
            links[linked & (links == NO_ROW)] = _ENDED
    return requests
