"""Prefill here, decode there: our simulator against NVIDIA Dynamo's disaggregated replay.

The first requests of a trace arrive in a Poisson process at workers of 5,859 blocks of 512 tokens,
some of which prefill and some decode, under Dynamo's default step times. Four tables:

1. *As each does it*: both halves in turns, TTFT and TPOT as either defines them.
2. *Like with like*: the pairs that Dynamo made, and one token more here. Dynamo's decode worker
   computes the whole answer, here the prefill has computed its first token; so with one more the
   decoders do equal work, "decoding begins" when the request joins the batch of its decoder, and
   the last tokens of both are the same event. What is left are the two rules of `crosscheck` (which
   block goes first, truncated means) and the link.
3. *Nothing evicted*: so much memory takes the first rule away, constant step times the second.
   Without a link all requests agree then; with one our decoding begins in the step after the
   arrival of KV that `kv_arrivals` computes from the ends of prefill at *Dynamo*.
4. *Full decoders*: constant steps, but so few blocks that the decoder preempts requests, with what
   that costs here and with what it costs at Dynamo: nothing.

    python -m prefixgym.experiments.bench.crosscheck_split <conversation_trace.jsonl.gz>
"""

import argparse
import dataclasses
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
from prefixgym.experiments.bench.kv_arrivals import kv_arrivals
from prefixgym.experiments.bench.split_latencies import (
    dynamo_latencies,
    like_with_like,
    our_latencies,
)
from prefixgym.experiments.bench.split_replay import in_turns, pairs_of, read, replay, write_poisson
from prefixgym.experiments.table import Table

SIZES = ((2, 2), (3, 1))
"""Prefill and decode workers."""

RATES = (1.0, 2.5, 4.0)
"""Requests/s a prefill worker: low, medium, high load (where queues last seconds)."""

BANDWIDTHS = (None, 50e9)
"""Bytes/s of a transfer; None: KV is there at once, Dynamo's default."""

CONSTANT = FixedTiming(prefill=0.1503137, decode=0.0107713)
"""Steps that never end together with an arrival: those come at whole milliseconds."""

AMPLE, SHORT = 60_000, 1_500
"""Blocks of a worker that never evicts; of one that preempts requests when it decodes for three."""

SAME = 1e-9
"""Seconds between two times that count as one: Dynamo computes in floating-point milliseconds."""


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
    """All sizes, rates and links, with Dynamo's default step times."""
    for prefillers, decoders in SIZES:
        for rate in RATES:
            for bandwidth in BANDWIDTHS:
                yield Case(SplitPeer(prefillers, decoders, bandwidth), rate)


def full_cases() -> Iterator[Case]:
    """Decoders that preempt requests, with constant step times."""
    for bandwidth in BANDWIDTHS:
        yield Case(SplitPeer(3, 1, bandwidth, num_gpu_blocks=SHORT, timing=CONSTANT), RATES[-1])


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
    """Of `like_with_like`: same reuse, %; start and step with ratios, gaps of start; ms."""
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
    tape: Tape,
    cluster: SplitPeer,
    requests: Sequence[SplitRequest],
    outcomes: NDArray[np.void],
) -> tuple[str, ...]:
    """Of a run with `CONSTANT` steps: from the end of prefill until decoding begins.

    Returns:
        Both means and the largest difference of a request, ms; the share of ours that begin in the
        step after the computed arrival of KV, %.
    """
    prefilled = np.array([request.prefilled for request in requests])
    theirs = np.array([request.admitted for request in requests])
    ours = outcomes["arrival"] + outcomes["ttft"]
    late = ours - kv_arrivals(tape, cluster, requests, outcomes)
    explained = (late > -SAME) & (late < CONSTANT.decode + SAME)
    return (
        f"{1e3 * (theirs - prefilled).mean():.3f}",
        f"{1e3 * (ours - prefilled).mean():.3f}",
        f"{1e3 * np.abs(ours - theirs).max():.7f}",
        f"{100 * explained.mean():.2f}",
    )


def compare(trace: Path, count: int, python: Path | None = None) -> list[Table]:
    """The four tables.

    Args:
        trace: Mooncake JSON lines, .gz or plain.
        count: requests to take from its start.
        python: interpreter whose environment has Dynamo; `$PREFIXGYM_DYNAMO_PYTHON` when None.
    """
    each, like, link, full = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "trace.jsonl")

        def twice(cluster: SplitPeer) -> tuple[tuple[SplitRequest, ...], NDArray[np.void]]:
            """Like with like: Dynamo's requests and our outcomes."""
            requests = run_split_peer(target, cluster, python=python)
            return requests, replay(read(target, cluster), cluster, pairs_of(requests), 1)

        for case in [*cases(), *full_cases()]:
            cluster = case.cluster
            write_poisson(trace, target, case.rate * cluster.prefillers, count)
            tape = read(target, cluster)
            requests, outcomes = twice(cluster)
            ours = our_latencies(replay(tape, cluster, in_turns(count, cluster)))
            row = each_row(dynamo_latencies(requests), ours)
            if cluster.num_gpu_blocks == SHORT:
                full.append((*case.name, "as prefill", *row))
                pairs = in_turns(count, cluster)
                ours = our_latencies(replay(tape, cluster, pairs, free_recompute=True))
                row = each_row(dynamo_latencies(requests), ours)
                full.append((*case.name, "nothing", *row))
                continue
            each.append(case.name + row)
            like.append(case.name + like_row(like_with_like(requests, outcomes)))
            ample = dataclasses.replace(cluster, num_gpu_blocks=AMPLE)
            calm = dataclasses.replace(ample, timing=CONSTANT)
            default = ""
            if cluster.bandwidth is None:
                both = like_with_like(*twice(ample))
                default = (
                    f"{1e3 * (both['start'] - both['dynamo_start']).abs().to_numpy().max():.2f}"
                )
            link.append((*case.name, default, *link_row(tape, calm, *twice(calm))))
    return _tables(each, like, link, full)


def _tables(*rows: list[tuple[str, ...]]) -> list[Table]:
    """Headings for the rows of the four tables."""
    each, like, link, full = rows
    name = ("workers", "requests/s", "link")
    latencies = ("TTFT: Dynamo", "ours", "ratio", "TPOT: Dynamo", "ours", "ratio")
    return [
        Table("As each does it: mean, p50, p99 (ms)", (*name, *latencies), each),
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
            "Nothing evicted",
            (
                *name,
                "default steps: largest difference of a request until decoding begins, ms",
                "constant steps: end of prefill until decoding begins, mean, ms: Dynamo",
                "ours",
                "largest difference of a request, ms",
                "explained by ports, %",
            ),
            link,
        ),
        Table(
            "Full decoders: mean, p50, p99 (ms)",
            (*name, "computing anew takes here", *latencies),
            full,
        ),
    ]


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
