"""Prefill here, decode there: our simulator against NVIDIA Dynamo's disaggregated replay.

The first requests of a trace arrive in a Poisson process at workers of 5,859 blocks of 512 tokens,
some of which prefill and some decode, under Dynamo's default step times. Three tables:

1. *As each does it*: both halves in turns, TTFT and TPOT as either defines them.
2. *Like with like*: the pairs that Dynamo made, and one token more here. Dynamo's decode worker
   computes the whole answer, here the prefill has computed its first token; so with one more the
   decoders do equal work, "decoding begins" when the request joins the batch of its decoder, and
   the last tokens of both are the same event. What is left are the two rules of `crosscheck` (which
   block goes first, truncated means) and the link.
3. *What is left is the link*: constant step times and so much memory that nothing is evicted take
   the two rules away. Without a link all requests agree; with one our decoding begins in the step
   after the arrival of KV that `kv_arrivals` computes from the ends of prefill at *Dynamo*.

    python -m prefixgym.experiments.bench.crosscheck_split <conversation_trace.jsonl.gz>
"""

import argparse
import dataclasses
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefixgym.envs.workload.tape import Tape
from prefixgym.experiments.bench.dynamo_peer import PYTHON_VARIABLE, FixedTiming
from prefixgym.experiments.bench.dynamo_split import SplitPeer, SplitRequest, run_split_peer
from prefixgym.experiments.bench.split_replay import in_turns, pairs_of, read, replay, write_poisson
from prefixgym.experiments.table import Table

SIZES = ((2, 2), (3, 1))
"""Prefill and decode workers."""

RATES = (1.0, 2.5, 4.0)
"""Requests/s a prefill worker: low, medium, high load; 4.3 are as many as it can do."""

BANDWIDTHS = (None, 50e9)
"""Bytes/s of a transfer; None: KV is there at once, Dynamo's default."""

CONSTANT = FixedTiming(prefill=0.1503137, decode=0.0107713)
"""Steps that never end together with an arrival: those come at whole milliseconds."""

AMPLE = 60_000
"""Blocks of a worker that never evicts."""

SAME = 1e-9
"""Seconds between two times that count as one: Dynamo computes in floating-point milliseconds."""


def dynamo_latencies(requests: Sequence[SplitRequest]) -> pl.DataFrame:
    """Columns ttft and tpot (s), as Dynamo defines them; no tpot for answers of one token."""
    return pl.DataFrame(
        [
            (r.first_token - r.arrival, (r.finished - r.first_token) / (r.output_tokens - 1))
            if r.output_tokens > 1
            else (r.first_token - r.arrival, None)
            for r in requests
        ],
        schema={"ttft": pl.Float64, "tpot": pl.Float64},
        orient="row",
    )


def our_latencies(outcomes: NDArray[np.void]) -> pl.DataFrame:
    """Columns ttft and tpot (s), as we define them; no tpot for answers of one token."""
    frame = pl.DataFrame({name: outcomes[name] for name in ("ttft", "tpot", "output_tokens")})
    return frame.select("ttft", tpot=pl.when(pl.col("output_tokens") > 1).then("tpot"))


def like_with_like(requests: Sequence[SplitRequest], outcomes: NDArray[np.void]) -> pl.DataFrame:
    """Both fates of every request.

    Args:
        requests: Dynamo's, in order of arrival.
        outcomes: of `replay` with `pairs_of(requests)` and one token more.

    Returns:
        dynamo_reused and reused (tokens); dynamo_start and start: from the arrival until decoding
        begins, dynamo_step and step: from then on for each token of Dynamo's answer (s).

    Raises:
        ValueError: not the same requests.
    """
    if len(requests) != len(outcomes) or [r.arrival for r in requests] != list(outcomes["arrival"]):
        raise ValueError(
            f"found {len(requests)} requests completed by Dynamo and {len(outcomes)} by us, must "
            "be the same at the same times"
        )
    return pl.DataFrame(
        {
            "dynamo_reused": [r.reused_tokens for r in requests],
            "reused": outcomes["hit_tokens"],
            "dynamo_start": [r.admitted - r.arrival for r in requests],
            "start": outcomes["ttft"],
            "dynamo_step": [(r.finished - r.admitted) / r.output_tokens for r in requests],
            "step": outcomes["tpot"],
        }
    )


def kv_arrivals(
    tape: Tape,
    cluster: SplitPeer,
    requests: Sequence[SplitRequest],
    outcomes: NDArray[np.void],
) -> NDArray[np.float64]:
    """When KV arrives by our rules, if prefills end as they did at Dynamo; s [R].

    Transfers take the ports of both workers, in the order in which prefills ended, for all tokens
    that the decoder has not cached by then: what began to be decoded there before (`outcomes`, of
    `replay` with `pairs_of(requests)`; nothing is evicted).
    """
    if cluster.bandwidth is None:
        return np.array([request.prefilled for request in requests])
    size, begun = cluster.block_size, outcomes["arrival"] + outcomes["ttft"]
    blocks = [tape.block_ids(i)[: r.prompt_tokens // size] for i, r in enumerate(requests)]
    cached: list[dict[int, float]] = [{} for _ in range(cluster.decoders)]
    for request, ids, time in zip(requests, blocks, begun.tolist(), strict=True):
        times = cached[request.decoder]
        times.update({i: min(time, times.get(i, math.inf)) for i in ids.tolist()})
    sends, receives = np.zeros(cluster.prefillers), np.zeros(cluster.decoders)
    arrivals = np.zeros(len(requests))
    for i in sorted(range(len(requests)), key=lambda i: (requests[i].prefilled, i)):
        request, times = requests[i], cached[requests[i].decoder]
        held = [times[block] <= request.prefilled for block in blocks[i].tolist()]
        missing = request.prompt_tokens - size * (held.index(False) if False in held else len(held))
        start = max(request.prefilled, sends[request.prefiller], receives[request.decoder])
        arrivals[i] = start + missing * cluster.kv_bytes_per_token / cluster.bandwidth
        sends[request.prefiller] = receives[request.decoder] = arrivals[i]
    return arrivals


@dataclasses.dataclass(frozen=True)
class Case:
    """One cluster at one load.

    Attributes:
        cluster: what Dynamo and we are given.
        rate: requests/s a prefill worker.
    """

    cluster: SplitPeer
    rate: float

    @property
    def name(self) -> tuple[str, str, str]:
        """Cells: workers, requests/s, link."""
        bandwidth = self.cluster.bandwidth
        return (
            f"{self.cluster.prefillers} + {self.cluster.decoders}",
            f"{self.rate * self.cluster.prefillers:g}",
            "none" if bandwidth is None else f"{bandwidth / 1e9:g} GB/s",
        )


def cases() -> Iterator[Case]:
    """All sizes, rates and links."""
    for prefillers, decoders in SIZES:
        for rate in RATES:
            for bandwidth in BANDWIDTHS:
                yield Case(SplitPeer(prefillers, decoders, bandwidth), rate)


def each_row(theirs: pl.DataFrame, ours: pl.DataFrame) -> tuple[str, ...]:
    """TTFT of Dynamo, of us, their ratio; the same of TPOT. Each the mean, p50, p99; ms."""
    cells = []
    for name, digits in (("ttft", 0), ("tpot", 2)):
        pair = [_statistics(frame[name]) for frame in (theirs, ours)]
        cells += [", ".join(f"{1e3 * x:,.{digits}f}" for x in values) for values in pair]
        cells.append(", ".join(f"{b / a:.3f}" for a, b in zip(*pair, strict=True)))
    return tuple(cells)


def _statistics(values: pl.Series) -> list[float]:
    found = values.drop_nulls().to_numpy()
    return [float(found.mean()), *np.quantile(found, [0.5, 0.99]).tolist()]


def like_row(both: pl.DataFrame) -> tuple[str, ...]:
    """Of `like_with_like`: reuse in %, start and step in ms with their ratios, differences in ms."""
    same = both.select((pl.col("reused") == pl.col("dynamo_reused")).mean()).item()
    cells = [f"{100 * same:.2f}"]
    for name, digits in (("start", 1), ("step", 3)):
        theirs, ours = (
            float(both[column].to_numpy().mean()) for column in (f"dynamo_{name}", name)
        )
        cells += [
            f"{1e3 * theirs:,.{digits}f}",
            f"{1e3 * ours:,.{digits}f}",
            f"{ours / theirs:.4f}",
        ]
    gap = (both["start"] - both["dynamo_start"]).abs().to_numpy()
    return (*cells, *(f"{1e3 * x:,.2f}" for x in np.quantile(gap, [0.5, 0.99])))


def link_row(
    tape: Tape, case: Case, requests: Sequence[SplitRequest], outcomes: NDArray[np.void]
) -> tuple[str, ...]:
    """From the end of prefill until decoding begins (means, ms), the largest difference of a
    request, and the share of ours that begin in the step after the computed arrival of KV, %.
    """
    prefilled = np.array([request.prefilled for request in requests])
    theirs = np.array([request.admitted for request in requests])
    ours = outcomes["arrival"] + outcomes["ttft"]
    late = ours - kv_arrivals(tape, case.cluster, requests, outcomes)
    assert case.cluster.timing is not None
    explained = (late > -SAME) & (late < case.cluster.timing.decode + SAME)
    return (
        f"{1e3 * (theirs - prefilled).mean():.3f}",
        f"{1e3 * (ours - prefilled).mean():.3f}",
        f"{1e3 * np.abs(ours - theirs).max():.7f}",
        f"{100 * explained.mean():.2f}",
    )


def compare(trace: Path, count: int, python: Path | None = None) -> tuple[Table, Table, Table]:
    """The three tables.

    Args:
        trace: Mooncake JSON lines, .gz or plain.
        count: requests to take from its start.
        python: interpreter whose environment has Dynamo; `$PREFIXGYM_DYNAMO_PYTHON` when None.
    """
    each, like, link = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "trace.jsonl")
        for case in cases():
            cluster = case.cluster
            write_poisson(trace, target, case.rate * cluster.prefillers, count)
            tape = read(target, cluster)
            requests = run_split_peer(target, cluster, python=python)
            ours = our_latencies(replay(tape, cluster, in_turns(count, cluster)))
            each.append(case.name + each_row(dynamo_latencies(requests), ours))
            outcomes = replay(tape, cluster, pairs_of(requests), more_tokens=1)
            like.append(case.name + like_row(like_with_like(requests, outcomes)))
            calm = dataclasses.replace(cluster, timing=CONSTANT, num_gpu_blocks=AMPLE)
            requests = run_split_peer(target, calm, python=python)
            outcomes = replay(tape, calm, pairs_of(requests), more_tokens=1)
            like_with_like(requests, outcomes)  # the same requests
            row = link_row(tape, dataclasses.replace(case, cluster=calm), requests, outcomes)
            link.append(case.name + row)
    name = ("workers", "requests/s", "link")
    return (
        Table(
            "As each does it: mean, p50, p99 (ms)",
            (*name, "TTFT: Dynamo", "ours", "ratio", "TPOT: Dynamo", "ours", "ratio"),
            each,
        ),
        Table(
            "Like with like",
            (
                *name,
                "same reuse, %",
                "until decoding begins, mean, ms: Dynamo",
                "ours",
                "ratio",
                "a token from then on, mean, ms: Dynamo",
                "ours",
                "ratio",
                "difference of a request until decoding begins, ms: p50",
                "p99",
            ),
            like,
        ),
        Table(
            "Constant steps, nothing evicted",
            (
                *name,
                "end of prefill until decoding begins, mean, ms: Dynamo",
                "ours",
                "largest difference of a request, ms",
                "explained by ports, %",
            ),
            link,
        ),
    )


def main() -> None:
    """Compare with Dynamo's disaggregated replay; prints Markdown."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("trace", type=Path, help="Mooncake JSON lines, .gz or plain")
    parser.add_argument("--requests", type=int, default=3000, help="from the trace's start")
    parser.add_argument("--python", type=Path, help=f"Dynamo's (default: ${PYTHON_VARIABLE})")
    options = parser.parse_args()
    try:
        tables = compare(options.trace, options.requests, options.python)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
    print("\n".join(table.markdown() for table in tables))


if __name__ == "__main__":
    main()
