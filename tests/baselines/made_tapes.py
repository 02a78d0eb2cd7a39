"""Workloads written out by hand, and routers that play them through the simulator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.replicated import side_by_side
from prefixgym.baselines.router import Router
from prefixgym.envs.clients import Clients
from prefixgym.envs.clock import to_ticks
from prefixgym.envs.cluster.faults import Fault
from prefixgym.envs.cluster.profiles import Profile, profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.view.knowledge import Knowledge
from prefixgym.envs.view.view import View
from prefixgym.envs.workload.tape import RUN, Tape, root_requests
from prefixgym.envs.workload.validate import validate


class Sent(NamedTuple):
    """One request: its prompt is whole blocks; equal ids mean equal prefixes."""

    time: float  # s
    ids: Sequence[int]
    output_tokens: int = 1


def tape_of(requests: Sequence[Sent], block_size: int) -> Tape:
    """The tape of these requests, each a session of its own."""
    runs: list[tuple[int, int]] = []
    num_runs = []
    for request in requests:
        first = len(runs)
        for place, key in enumerate(request.ids):
            if place > 0 and request.ids[place - 1] + 1 == key:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((key, 1))
        num_runs.append(len(runs) - first)
    blocks = np.array([len(request.ids) for request in requests])
    records = root_requests(
        to_ticks([request.time for request in requests]),
        blocks * block_size,
        np.array([request.output_tokens for request in requests]),
        np.array(num_runs),
    )
    records["num_blocks"] = records["cacheable_blocks"] = blocks
    tape = Tape(records, np.array(runs, RUN), block_size)
    validate(tape)
    return tape


@dataclass(frozen=True)
class MadeWorkload:
    """The same tape whatever the seed."""

    made: Tape

    @property
    def block_size(self) -> int:
        return self.made.block_size

    @property
    def num_sessions(self) -> int:
        return len(self.made.requests)

    @property
    def max_blocks(self) -> int:
        return int(self.made.requests["num_blocks"].max())

    def tape(self, seed: int) -> Tape:
        return self.made


def play(
    router: Router,
    requests: Sequence[Sent],
    num_instances: int,
    *,
    block_size: int = 512,
    kv_blocks: int | None = None,
    engine: Profile | None = None,
    knowledge: Knowledge | None = None,
    faults: Sequence[Fault] = (),
    clients: Clients | None = None,
    seed: int = 0,
    look: Callable[[View], None] | None = None,
) -> NDArray[np.void]:
    """OUTCOME records in order of arrival; `look` sees every view.

    `engine` is by default an H100 with Llama-3.1-8B.
    """
    instance = InstanceSpec(engine or profile("llama-3.1-8b/h100/tp1"), kv_blocks)
    cluster = ClusterSpec((instance,) * num_instances, block_size)
    workload = MadeWorkload(tape_of(requests, block_size))
    slos = (Slo(ttft=1.0, tpot=0.1),)
    simulation = Simulation(
        cluster, workload, slos, knowledge, 1, faults=faults, clients=clients, record=True
    )
    simulation.reset([seed])
    decider = side_by_side(router, simulation.knowledge.replicas)
    decider.reset(cluster, [seed])
    while not simulation.done.all():
        if look is not None:
            look(simulation.view)
        simulation.step(decider.route(simulation.view))
    outcomes = simulation.outcomes(0)
    return outcomes[np.argsort(outcomes["row"])]
