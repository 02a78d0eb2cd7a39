"""How fast the simulator is, as ratios to named peers measured in the same run.

Machines are noisy and differ, so the figures that count are ratios; absolute rates are printed with
the machine beside them. Every figure is the best of several repeats: noise only ever adds time.
"""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np

from prefixgym.envs.cluster.profiles import profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.vector import PrefixRoutingVectorEnv
from prefixgym.envs.workload.readers.mooncake import read_mooncake
from prefixgym.envs.workload.trace import TraceWorkload
from prefixgym.experiments.bench.dynamo_peer import PeerCluster, run_peer

TRACE = Path("../shared/traces/mooncake_conversation/conversation_trace.jsonl.gz")
"""Where the project's own machines keep the Mooncake conversation trace."""


@dataclass(frozen=True)
class Measurement:
    """One line of the report.

    Attributes:
        what: what was measured.
        value: the figure.
        unit: of the figure.
        wanted: the figure that the design asks for, with its sign; empty if none.
        met: whether it was met; None if nothing is asked for.
    """

    what: str
    value: float
    unit: str
    wanted: str = ""
    met: bool | None = None


def machine() -> str:
    """Processor, cores and Python of this machine, in words."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            name = next(line for line in stream if line.startswith("model name")).split(":")[1]
    except (OSError, StopIteration):
        pass
    return f"{name.strip()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def best_seconds(call: Callable[[], object], repeats: int) -> float:
    """Shortest wall time of `call`, which is run once more before to compile and to warm up."""
    call()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def trace_replay(trace: Path, peer_python: Path | None, repeats: int = 5) -> list[Measurement]:
    """A whole trace on 10 instances of 5,859 blocks, round robin, one thread, against Dynamo's
    replay.

    Both use the mocker's polynomial step times. Reading the trace is left out on both sides;
    Dynamo's time is the one that its own replay loop reports. The runs take turns, so that both see
    the same machine.

    Args:
        trace: a Mooncake file.
        peer_python: interpreter with ai-dynamo-runtime; None leaves the peer out.
        repeats: runs of each side.
    """
    peer = PeerCluster()
    spec = InstanceSpec(profile("dynamo-mocker/polynomial"), kv_blocks=peer.num_gpu_blocks)
    cluster = ClusterSpec((spec,) * peer.instances, peer.block_size)
    workload = TraceWorkload(read_mooncake(trace), spread=False)
    simulation = Simulation(cluster, workload, [Slo(ttft=2.0, tpot=0.1)])
    requests = len(workload.trace.requests)
    actions = (np.arange(requests) % peer.instances)[None]
    simulation.reset([0])
    simulation.play(actions)

    ours, theirs = float("inf"), float("inf")
    for _ in range(repeats):
        simulation.reset([0])
        start = time.perf_counter()
        simulation.play(actions)
        ours = min(ours, time.perf_counter() - start)
        if peer_python is not None:
            theirs = min(theirs, run_peer(trace, peer, python=peer_python).wall_seconds)
    found = [Measurement("trace replay, one thread", requests / ours, "requests/s")]
    if peer_python is not None:
        ratio = theirs / ours
        found += [
            Measurement("Dynamo's offline replay of it", requests / theirs, "requests/s"),
            Measurement("ratio to Dynamo's replay", ratio, "times", ">= 300", ratio >= 300),
        ]
    return found


def vector_scenario() -> Scenario:
    """8 instances, prompts of about 16 blocks of 512 tokens, at about two thirds of capacity."""
    return load_scenario(
        "shared-prompts-8",
        {
            "cluster.block_size": "512",
            "workload.system_tokens": "6600",
            "workload.question_tokens": "1300",
            "workload.output_tokens": "200",
            "knowledge.index.source": "engine",
            "knowledge.telemetry.interval": "0",
        },
    )


def vector_steps(num_envs: int = 256, threads: int = 2) -> list[Measurement]:
    """Decisions/s of the native vector environment over whole episodes.

    Observations, rewards and autoresets (with the generation of the next episode) are included, and
    every stretch of an episode counts: cold caches are cheap, full ones evict.
    """
    length = 1000
    env = PrefixRoutingVectorEnv(
        num_envs,
        vector_scenario(),
        rate=20.0,
        num_requests=length,
        autoreset_mode="SameStep",
        threads=threads,
    )
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 8, (length, num_envs))

    def episode() -> None:
        for k in range(length):
            env.step(actions[k])

    rate = length * num_envs / best_seconds(episode, 4)
    blocks = float(env.episodes.simulation.view.requests["num_blocks"].mean())
    env.close()
    asked = (num_envs, threads) == (256, 2)
    return [
        Measurement(
            f"vector environment, {num_envs} x 8 instances, {blocks:.0f} blocks, {threads} threads",
            rate,
            "decisions/s",
            ">= 500,000" if asked else "",
            rate >= 500_000 if asked else None,
        )
    ]


def single_step(steps: int = 900) -> list[Measurement]:
    """Microseconds of one `env.step` of the environment that `gymnasium.make` returns."""
    env = gym.make(
        "prefixgym/PrefixRouting-v0", scenario=vector_scenario(), rate=20.0, num_requests=1000
    )

    best = float("inf")
    for _ in range(10):
        env.reset(seed=0)
        start = time.perf_counter()
        for k in range(steps):
            env.step(np.int64(k % 8))
        best = min(best, (time.perf_counter() - start) / steps)
    return [Measurement("env.step", best * 1e6, "µs", "<= 30", best <= 30e-6)]
