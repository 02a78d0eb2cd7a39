"""Prefill here, decode there: our simulator against NVIDIA Dynamo's disaggregated replay.
"""

import dataclasses
import gzip
import json
import math
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefixgym.envs.cluster.profiles import MOCKER, constant_profile, profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec, Link
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.readers.mooncake import read_mooncake
from prefixgym.envs.workload.trace import TraceWorkload
from prefixgym.experiments.bench.dynamo_peer import TRACE_BLOCK_SIZE
from prefixgym.experiments.bench.dynamo_split import SplitPeer, SplitRequest, run_split_peer


def write_poisson(source: Path, target: Path, rate: float, count: int, seed: int = 0) -> None:
    """The first `count` requests of `source`, which arrive in a Poisson process at `target`.

    Every arrival has a whole millisecond of its own, so that it names its request.

    Args:
        source: Mooncake JSON lines, .gz or plain.
        target: is written.
        rate: requests/s.
        count: at most as many as there are.
        seed: of the arrivals.
    """
    opener = gzip.open if source.suffix == ".gz" else open
    with opener(source, "rt") as file:
        rows = [json.loads(line) for _, line in zip(range(count), file, strict=False)]
    gaps = np.random.default_rng(seed).exponential(1e3 / rate, len(rows))
    gaps[0] = 0.0
    times = np.floor(np.cumsum(gaps)).astype(np.int64)
    order = np.arange(len(rows))
    times = np.maximum.accumulate(times - order) + order  # each after the one before
    for row, time in zip(rows, times.tolist(), strict=True):
        row["timestamp"] = time
    target.write_text("".join(json.dumps(row) + "\n" for row in rows))


def in_turns(count: int, cluster: SplitPeer) -> NDArray[np.int64]:
    """Pairs [count, 2]: both halves in turns, in order of arrival."""
    row = np.arange(count)
    return np.stack([row % cluster.prefillers, row % cluster.decoders], axis=1)


def pairs_of(requests: tuple[SplitRequest, ...]) -> NDArray[np.int64]:
    """Pairs [R, 2] that Dynamo made, in order of arrival."""
    return np.array([(request.prefiller, request.decoder) for request in requests])


def replay(
    trace: Path, cluster: SplitPeer, pairs: NDArray[np.int64], more_tokens: int = 0
) -> NDArray[np.void]:
    """Play `trace` with our simulator on the cluster that Dynamo is given.

    Args:
        trace: JSON lines in Mooncake's format.
        cluster: with a block size that divides `TRACE_BLOCK_SIZE`.
        pairs: [R, 2], the prefiller and the decoder of every request, each counted from 0.
        more_tokens: added to every answer.

    Returns:
        OUTCOME records in the trace's order.
    """
    engine = profile(MOCKER)
    if cluster.timing is not None:
        engine = constant_profile(1e3 * cluster.timing.prefill, 1e3 * cluster.timing.decode)
    engine = dataclasses.replace(engine, kv_bytes_per_token=cluster.kv_bytes_per_token)
    prefiller = InstanceSpec(
        engine,
        cluster.num_gpu_blocks,
        cluster.max_num_batched_tokens,
        cluster.max_num_seqs,
        role="prefill",
    )
    decoder = dataclasses.replace(prefiller, role="decode")
    tape = read_mooncake(trace, trace_block_size=TRACE_BLOCK_SIZE, block_size=cluster.block_size)
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
    simulation.play(simulation.encoded(pairs + [0, cluster.prefillers])[np.newaxis])
    return np.sort(simulation.outcomes(0), order="row")
