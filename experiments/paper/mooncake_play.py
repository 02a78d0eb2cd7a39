"""Real routers on a trace in the simulator, with prefill alone: outputs cut to one token."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import make_router
from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.state import FINISHED
from prefixgym.envs.scenarios.registry import trace_scenario
from prefixgym.envs.scenarios.workloads import recorded_rate
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.workload.tape import Tape, Workload
from prefixgym.envs.workload.trace import TraceWorkload
from prefixgym.experiments.evaluate import play
from prefixgym.experiments.paper import prfaas_queues
from prefixgym.experiments.paper.mooncake_lru import LruCache


@dataclass(frozen=True)
class FirstTokens:
    """The same requests, each asking for one token.

    Attributes:
        whole: as recorded.
    """

    whole: Workload

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.whole.block_size

    @property
    def num_sessions(self) -> int:
        """Upper bound of `session` + 1."""
        return self.whole.num_sessions

    @property
    def max_blocks(self) -> int:
        """Ids of the longest request."""
        return self.whole.max_blocks

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names."""
        tape = self.whole.tape(seed)
        requests = tape.requests.copy()
        requests["output_tokens"] = 1
        return Tape(requests, tape.runs, tape.block_size)


@dataclass(frozen=True)
class RoutedTrace:
    """What a router has made of a trace.

    Attributes:
        instances: that each request went to, by row [R].
        ttft: s, by row [R].
        hit_rate: prompt tokens found / prompt tokens, as the engines saw it: full blocks alone,
            blocks in use held.
    """

    instances: NDArray[np.int32]
    ttft: NDArray[np.float64]
    hit_rate: float


def route_trace(
    trace: Path, router: str, profile: str, instances: int, num_blocks: int
) -> RoutedTrace:
    """Play a whole trace at its own rate. The router knows the caches as they are.

    Args:
        trace: in any format that `read_trace` knows.
        router: one of `router_names()`.
        profile: of each instance.
        instances: how many.
        num_blocks: KV blocks of each, of the trace's size.

    Raises:
        ValueError: a request was not served, so that it went nowhere.
    """
    rate = recorded_rate(trace)
    overrides = {
        "cluster.instances.0.profile": f'"{profile}"',
        "cluster.instances.0.count": f"{instances}",
        "cluster.instances.0.kv_blocks": f"{num_blocks}",
    }
    setup = trace_scenario(trace, [rate], overrides).build(rate)
    setup = setup._replace(workload=FirstTokens(setup.workload))
    simulation = Simulation(**setup._asdict(), record=True)
    play(simulation, make_router(router), setup.cluster, [0])
    found = np.sort(simulation.outcomes(0), order="row")
    if (found["status"] != FINISHED).any():
        lost = int((found["status"] != FINISHED).sum())
        raise ValueError(f"{router}: {lost} of {len(found)} requests of {trace} were not served")
    hits = found["hit_tokens"].sum() / found["prompt_tokens"].sum()
    return RoutedTrace(found["instance"], found["ttft"], float(hits))


def free_for_all(
    trace: Tape, num_blocks: int, nodes: int, seconds: Callable[[int, int], float]
) -> NDArray[np.float64]:
    """TTFT of one cache that all nodes share, from which fetching takes no time: a lower end.

    Requests wait in one queue for the next free node, which serves one at a time.

    Args:
        trace: as recorded; batches are spread as in `route_trace`.
        num_blocks: of the cache.
        nodes: that prefill.
        seconds: of prefill, by prompt tokens and hit tokens.

    Returns:
        s, by row [R].
    """
    tape = TraceWorkload(trace).tape(0)
    cache = LruCache(num_blocks)
    takes = []
    counts = tape.requests["num_blocks"].tolist()
    for row, prompt in enumerate(tape.requests["prompt_tokens"].tolist()):
        ids = tape.block_ids(row)[: counts[row]].tolist()
        takes.append(seconds(prompt, min(prompt, cache.match(ids) * tape.block_size)))
        cache.touch(ids)
    arrival = tape.requests["arrival"] / TICKS_PER_SECOND
    nothing = np.zeros(len(arrival))
    jobs = prfaas_queues.Jobs(arrival, nothing, nothing, np.array(takes), nothing)
    plant = prfaas_queues.Plant(0, nodes, len(arrival), 0.0)
    played = prfaas_queues.play(jobs, plant, prfaas_queues.Fixed(np.inf))
    found: NDArray[np.float64] = played.prefilled - arrival
    return found
