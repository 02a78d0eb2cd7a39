"""Forks: copies of a simulation's environments whose futures are tried out.

A fork is exact: it holds everything that decides what comes next, the requests to come included, so
that the same decisions lead to the same bits as in the original.
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.block_index import index_caches
from prefixgym.envs.cluster.state import with_block_index
from prefixgym.envs.credit import Credit
from prefixgym.envs.episode_state import SimulationArrays
from prefixgym.envs.jit import borrowed, kernel
from prefixgym.envs.lent import Lent
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.view.knowledge import Index

Bytes = NDArray[np.uint8]

T = TypeVar("T", bound=Any)


@kernel
def _copy_rows(
    lent: Lent,
    first: int,
    last: int,
    sources: tuple[Bytes, ...],
    targets: tuple[Bytes, ...],
    chosen: NDArray[np.bool_],
) -> int:
    """Rows first … last - 1 of the targets, as far as chosen, become those they are forks of."""
    copies = len(chosen) // len(sources[0])
    for a in range(len(sources)):
        source, target = sources[a], targets[a]
        for k in range(first, last):
            if chosen[k]:
                row, copy = source[k // copies], target[k]
                for b in range(len(row)):
                    copy[b] = row[b]
    return 0


@kernel
def _index_range(lent: Lent, first: int, last: int) -> int:
    """Index the caches of environments first … last - 1."""
    s: SimulationArrays = borrowed(lent.arrays)
    for e in range(first, last):
        index_caches(s.cluster, e)
    return 0


def _keep_index(simulation: Simulation) -> None:
    """Let a simulation whose routers go by messages index what is cached from now on."""
    arrays = simulation.arrays
    if arrays.cluster.holders.shape[1] == 0:
        simulation.arrays = arrays._replace(
            cluster=with_block_index(arrays.cluster, simulation.cluster)
        )
        simulation.run(_index_range)


class Forks:
    """K forks of each of the E environments of a simulation.

    Attributes:
        simulation: the forks; environments e·K … e·K + K - 1 are those of environment e.

    Args:
        origin: whose environments are forked. It must hold its tapes whole.
        copies: K.
        record: keep the forks' OUTCOME records. Those of requests that ended before the fork are
            not among them.
        threads: how many threads share a step, and the copying.
        credit: what the forks keep for rewards.
        see_truth: the routers of the forks know every cache as it is, whatever those of the origin
            know, whose indexes need not be copied then.
    """

    def __init__(
        self,
        origin: Simulation,
        copies: int,
        *,
        record: bool = False,
        threads: int = 1,
        credit: Credit | None = None,
        see_truth: bool = False,
    ) -> None:
        self._origin = origin
        self._see_truth = see_truth
        knowledge = origin.knowledge
        if see_truth:
            knowledge = knowledge.model_copy(update={"index": Index()})
        self.copies = copies
        self.simulation = Simulation(
            origin.cluster,
            origin.workload,
            origin.slos,
            knowledge,
            origin.num_envs * copies,
            faults=origin.faults,
            autoscaler=origin.autoscaler,
            clients=origin.clients,
            record=record,
            threads=threads,
            credit=credit,
        )

    def restart(self) -> None:
        """The origin has begun new episodes: take over what stays the same throughout them."""
        arrays, copies = self._origin.arrays, self.copies
        forks = self.simulation

        def repeated(rows: NDArray[np.void]) -> NDArray[np.void]:
            return np.repeat(rows, copies, axis=0)

        cluster, theirs = forks.arrays.cluster, arrays.cluster
        copied = repeated if len(theirs.cost) == len(arrays.episodes) else np.copy
        nominal = copied(theirs.nominal)
        cost = nominal if theirs.cost is theirs.nominal else copied(theirs.cost)
        cluster = cluster._replace(cost=cost, nominal=nominal, limits=copied(theirs.limits))
        num_outcomes = arrays.tapes.shape[1] if forks.record else 0
        forks.arrays = forks.arrays._replace(
            cluster=cluster,
            objectives=repeated(arrays.objectives),
            tapes=repeated(arrays.tapes),
            runs=repeated(arrays.runs),
            pending=np.zeros((forks.num_envs, arrays.pending.shape[1]), arrays.pending.dtype),
            outcomes=np.zeros((forks.num_envs, num_outcomes), forks.arrays.outcomes.dtype),
        )

    def take(self, chosen: NDArray[np.bool_], decisions: int = 1) -> None:
        """Fork anew where `chosen` (bool [E · K]) says so; the other forks are over.

        There is room for `decisions` decisions in one call of a kernel.
        """
        self._match_room(decisions)
        sources, targets = [], []
        for source, target in self._changing():
            sources.append(_bytes(source, self._origin.num_envs))
            targets.append(_bytes(target, self.simulation.num_envs))
        self.simulation.run(_copy_rows, tuple(sources), tuple(targets), chosen)
        self.simulation.arrays.episodes["done"][~chosen] = 1

    def close(self) -> None:
        """No request arrives any more in any fork: the next decision is its last."""
        self.simulation.arrays.episodes["closed"] = 1

    def _match_room(self, decisions: int) -> None:
        """Give origin and forks equal room, so that rows have equal sizes."""
        rooms = [s.arrays.cluster.flight_blocks.shape[1:] for s in (self._origin, self.simulation)]
        flights, blocks = np.max(rooms, axis=0).tolist()
        most = int(self._origin.arrays.cluster.environments["in_flight"].max())
        if most + decisions > flights:
            flights = 2 * (most + decisions)
        for simulation in (self._origin, self.simulation):
            simulation.reserve(flights, blocks)
        if self._see_truth:
            _keep_index(self._origin)
            return
        forks = self.simulation.arrays
        knowledge = forks.knowledge._replace(
            known=_with_room_of(
                self._origin.arrays.knowledge.known, forks.knowledge.known, self.copies
            )
        )
        self.simulation.arrays = forks._replace(knowledge=knowledge)

    def _changing(self) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """The arrays of origin and forks that decisions change, rewards and outcomes apart."""
        origin, forks = self._origin.arrays, self.simulation.arrays
        pairs: list[tuple[NDArray[Any], NDArray[Any]]] = [(origin.episodes, forks.episodes)]
        if origin.pending.shape[1] > 0:  # `waits_for` counts down
            pairs += [(origin.pending, forks.pending), (origin.tapes, forks.tapes)]
        fixed = _FIXED | _OF_INDEX if self._see_truth else _FIXED
        for part in ("cluster", "knowledge", "timers"):
            pairs += _pairs(getattr(origin, part), getattr(forks, part), fixed)
        kept = [pair for pair in pairs if pair[0].size > 0 and pair[1].size > 0]
        different = {id(source): (source, target) for source, target in kept}
        return list(different.values())


_FIXED = frozenset(
    (
        "nominal",
        "limits",
        "links",
        "settings",
        "shares",
        "config",
        "faults",
        "autoscaler",
        "clients",
    )
)
"""What stays the same throughout an episode."""

_OF_INDEX = frozenset(("known", "records", "ends", "forgotten", "unpresented"))
"""What only an index that is made of messages has or needs."""


def _pairs(
    source: Any, target: Any, fixed: frozenset[str]
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """The arrays in a (nested) tuple that decisions change, each with that of the other tuple."""
    pairs = []
    for name in source._fields:
        mine, others = getattr(source, name), getattr(target, name)
        if name in fixed or (name == "cost" and mine is source.nominal):
            continue
        if isinstance(mine, tuple):
            pairs += _pairs(mine, others, fixed)
        else:
            pairs.append((mine, others))
    return pairs


def _with_room_of(source: T, target: T, copies: int) -> T:
    """`target`, a nested tuple of arrays, or one whose rows are as large as those of `source`."""
    arrays: dict[str, Any] = {}
    for name in source._fields:
        mine, others = getattr(source, name), getattr(target, name)
        if isinstance(mine, tuple):
            arrays[name] = _with_room_of(mine, others, copies)
        elif mine.shape[1:] != others.shape[1:]:
            arrays[name] = np.zeros((len(mine) * copies, *mine.shape[1:]), mine.dtype)
    return target._replace(**arrays)


def _bytes(rows: NDArray[Any], num_envs: int) -> Bytes:
    """The same memory, uint8 [E, bytes of an environment]."""
    return rows.reshape(num_envs, -1).view(np.uint8)
