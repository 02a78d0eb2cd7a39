"""Forks: copies of a simulation's environments whose futures are tried out.

A fork is exact: it holds everything that decides what comes next, the requests to come included, so
that the same decisions lead to the same bits as in the original.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.credit import Credit
from prefixgym.envs.jit import kernel
from prefixgym.envs.lent import Lent
from prefixgym.envs.simulation import Simulation

Bytes = NDArray[np.uint8]


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
    """

    def __init__(
        self,
        origin: Simulation,
        copies: int,
        *,
        record: bool = False,
        threads: int = 1,
        credit: Credit | None = None,
    ) -> None:
        self._origin = origin
        self.copies = copies
        self.simulation = Simulation(
            origin.cluster,
            origin.workload,
            origin.slos,
            origin.knowledge,
            origin.num_envs * copies,
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

        cluster = forks.arrays.cluster
        if len(arrays.cluster.cost) > 1:  # environments have instances of their own
            cluster = cluster._replace(
                cost=repeated(arrays.cluster.cost), limits=repeated(arrays.cluster.limits)
            )
        else:
            cluster = cluster._replace(cost=arrays.cluster.cost, limits=arrays.cluster.limits)
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
            sources.append(_bytes(source))
            targets.append(_bytes(target))
        self.simulation.run(_copy_rows, tuple(sources), tuple(targets), chosen)
        self.simulation.arrays.episodes["done"][~chosen] = 1

    def close(self) -> None:
        """No request arrives any more in any fork: the next decision is its last."""
        self.simulation.arrays.episodes["closed"] = 1

    def _match_room(self, decisions: int) -> None:
        """Give origin and forks equal room for flights, so that rows have equal sizes."""
        rooms = [s.arrays.cluster.flight_blocks.shape[1:] for s in (self._origin, self.simulation)]
        flights, blocks = np.max(rooms, axis=0).tolist()
        most = int(self._origin.arrays.cluster.environments["in_flight"].max())
        if most + decisions > flights:
            flights = 2 * (most + decisions)
        for simulation in (self._origin, self.simulation):
            simulation.reserve(flights, blocks)

    def _changing(self) -> list[tuple[NDArray[np.void], NDArray[np.void]]]:
        """The arrays of origin and forks that decisions change, rewards and outcomes apart."""
        origin, forks = self._origin.arrays, self.simulation.arrays
        pairs = [(origin.episodes, forks.episodes)]
        if origin.pending.shape[1] > 0:  # `waits_for` counts down
            pairs += [(origin.pending, forks.pending), (origin.tapes, forks.tapes)]
        for part, fixed in (("cluster", ("cost", "limits")), ("knowledge", ("intervals",))):
            source, target = getattr(origin, part), getattr(forks, part)
            pairs += [
                (getattr(source, name), getattr(target, name))
                for name in source._fields
                if name not in fixed
            ]
        return [pair for pair in pairs if pair[0].size > 0]


def _bytes(rows: NDArray[np.void]) -> Bytes:
    """The same memory, uint8 [rows, bytes of a row]."""
    return rows.reshape(len(rows), -1).view(np.uint8)
