"""Our side of the cross-check of disaggregated serving: requests, pairs, and their simulation."""

import dataclasses
import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.profiles import MOCKER, constant_profile, profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec, Link
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.readers.mooncake import read_mooncake
from prefixgym.envs.workload.tape import Tape
from prefixgym.envs.workload.trace import TraceWorkload
from prefixgym.experiments.bench.dynamo_peer import TRACE_BLOCK_SIZE
from prefixgym.experiments.bench.dynamo_split import SplitPeer, SplitRequest


def write_poisson(source: Path, target: Path, rate: float, count: int, seed: int = 0) -> None:
    """Write the first `count` requests of `source` to `target`, with Poisson arrivals.

    Every arrival has a whole millisecond of its own, so that it names its request.

    Args:
        source: Mooncake JSON lines, .gz or plain.
        target: JSON lines.
        rate: requests/s.
        count: requests.
        seed: of the arrivals.

    Raises:
        ValueError: there are fewer requests.
    """
    with gzip.open(source, "rt") if source.suffix == ".gz" else source.open() as file:
        rows = [json.loads(line) for _, line in zip(range(count), file, strict=False)]
    if len(rows) < count:
        raise ValueError(f"{source}: found {len(rows)} requests, must be at least {count}")
    gaps = np.random.default_rng(seed).exponential(1e3 / rate, count)
    gaps[0] = 0.0  # Dynamo counts time from the first arrival
    order = np.arange(count)
    times = np.maximum.accumulate(np.floor(np.cumsum(gaps)).astype(np.int64) - order) + order
    for row, time in zip(rows, times.tolist(), strict=True):
        row["timestamp"] = time
    target.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(trace: Path, cluster: SplitPeer) -> Tape:
    """The tape of `trace` in the cluster's blocks."""
    return read_mooncake(trace, trace_block_size=TRACE_BLOCK_SIZE, block_size=cluster.block_size)


def in_turns(count: int, cluster: SplitPeer) -> NDArray[np.int64]:
    """Pairs [count, 2]: both halves in turns, in order of arrival."""
    row = np.arange(count)
    return np.stack([row % cluster.prefillers, row % cluster.decoders], axis=1)


def pairs_of(requests: Sequence[SplitRequest]) -> NDArray[np.int64]:
    """Pairs [R, 2] that Dynamo made."""
    return np.array([(request.prefiller, request.decoder) for request in requests], np.int64)


def replay(
    tape: Tape,
    cluster: SplitPeer,
    pairs: NDArray[np.int64],
    more_tokens: int = 0,
    *,
    free_recompute: bool = False,
) -> NDArray[np.void]:
    """Play `tape` with our simulator on the cluster that Dynamo is given.

    Args:
        tape: roots only.
        cluster: with the tape's block size.
        pairs: [R, 2], prefill and decode worker of every request, each counted from 0.
        more_tokens: added to every answer.
        free_recompute: decode workers prefill (what they have preempted) in no time, as Dynamo's
            do; with constant step times.

    Returns:
        OUTCOME records in the tape's order.

    Raises:
        ValueError: `free_recompute` without constant step times.
    """
    engine = profile(MOCKER)
    if cluster.timing is not None:
        engine = constant_profile(1e3 * cluster.timing.prefill, 1e3 * cluster.timing.decode)
    prefiller = InstanceSpec(
        dataclasses.replace(engine, kv_bytes_per_token=cluster.kv_bytes_per_token),
        cluster.num_gpu_blocks,
        cluster.max_num_batched_tokens,
        cluster.max_num_seqs,
        role="prefill",
    )
    decoder = dataclasses.replace(prefiller, role="decode")
    if free_recompute:
        if cluster.timing is None:
            raise ValueError("free_recompute: found cluster.timing None, must be constant times")
        model = constant_profile(0.0, 1e3 * cluster.timing.decode).step_model
        profile_without = dataclasses.replace(decoder.profile, step_model=model)
        decoder = dataclasses.replace(decoder, profile=profile_without)
    requests = tape.requests.copy()
    requests["output_tokens"] += more_tokens
    simulation = Simulation(
        ClusterSpec(
            (prefiller,) * cluster.prefillers + (decoder,) * cluster.decoders,
            cluster.block_size,
            link=Link(math.inf if cluster.bandwidth is None else cluster.bandwidth),
        ),
        TraceWorkload(dataclasses.replace(tape, requests=requests), spread=False),
        slos=[Slo(ttft=1.0, tpot=1.0)],  # asked for, not looked at
        record=True,
    )
    simulation.reset([0])
    simulation.play(simulation.encoded(pairs + np.array([0, cluster.prefillers]))[np.newaxis])
    return np.sort(simulation.outcomes(0), order="row")
