"""Our simulator against NVIDIA Dynamo's offline replay: same trace, same routing, same step times.

Ten engines of 5,859 blocks of 512 tokens replay Mooncake's conversation trace behind round robin
(the comparison of DESIGN §12), once with Dynamo's default step times and once with constant ones.
The two programs share no code: what agrees is hardly wrong, what differs must have a reason. With
`ai-dynamo-runtime` 1.6.1 there are two reasons, which together account for every request:

- *Which block goes first when memory is short.* Dynamo keeps blocks without content apart and uses
  all of them before it evicts a cached one. Here all blocks without users wait in one queue, as in
  vLLM V1: a block that a request left partly filled joins the end, and cached blocks ahead of it
  are evicted first. Seven of the 12,031 requests reuse less for it, none more.
- *How many new tokens a step prefills*, with polynomial step times only. Dynamo takes truncated
  means, B·(⌊Σ end / B⌋ − ⌊Σ start / B⌋) for B requests; here it is the exact sum: some 20 µs in a
  step with several prompts, 0.5 µs of mean TTFT.

The evidence: a re-simulation of Dynamo from its rules, which agrees with it to 1 ns on every
request, agrees with *us* to 0.02 ns on every request once these two rules are exchanged
(`docs/crosscheck.md`).

    python -m prefixgym.experiments.bench.crosscheck <conversation_trace.jsonl.gz>
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as RichTable

from prefixgym.envs.cluster.profiles import MOCKER, constant_profile, profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.readers.mooncake import read_mooncake
from prefixgym.envs.workload.trace import TraceWorkload
from prefixgym.experiments.bench.dynamo_peer import (
    PYTHON_VARIABLE,
    TRACE_BLOCK_SIZE,
    FixedTiming,
    PeerCluster,
    PeerRequest,
    PeerResult,
    run_peer,
)

TIMINGS = {"polynomial": None, "fixed": FixedTiming(prefill=0.100, decode=0.010)}
"""Step times to compare under: Dynamo's default, and constants, which leave scheduling alone."""

SAME = 1e-4
"""Seconds by which the two TTFTs of a request may differ and still count as the same."""


def replay(trace: Path, cluster: PeerCluster) -> NDArray[np.void]:
    """Play `trace` with our simulator on the cluster that Dynamo is given.

    Args:
        trace: JSON lines in Mooncake's format, one hash id for every 512 tokens.
        cluster: of a peer with round-robin routing and a block size that divides 512.

    Returns:
        OUTCOME records in the trace's order.

    Raises:
        ValueError: the trace is malformed, or the cluster routes otherwise.
    """
    if cluster.router != "round_robin":
        raise ValueError(f"cluster.router: found {cluster.router!r}, allowed: round_robin")
    if cluster.timing is None:
        engine = profile(MOCKER)
    else:
        engine = constant_profile(1e3 * cluster.timing.prefill, 1e3 * cluster.timing.decode)
    instance = InstanceSpec(
        engine, cluster.num_gpu_blocks, cluster.max_num_batched_tokens, cluster.max_num_seqs
    )
    tape = read_mooncake(trace, trace_block_size=TRACE_BLOCK_SIZE, block_size=cluster.block_size)
    simulation = Simulation(
        ClusterSpec((instance,) * cluster.instances, cluster.block_size),
        TraceWorkload(tape, spread=False),  # batches arrive as bursts, as they do at Dynamo
        slos=[Slo(ttft=1.0, tpot=1.0)],  # asked for, not looked at
        record=True,
    )
    simulation.reset([0])
    simulation.play(np.arange(len(tape.requests))[np.newaxis] % cluster.instances)
    return np.sort(simulation.outcomes(0), order="row")


def totals(outcomes: NDArray[np.void]) -> dict[str, float]:
    """The figures that both programs report, under Dynamo's definitions (see `PeerResult`)."""
    answers = outcomes[outcomes["output_tokens"] > 1]
    return {
        "prefix_reuse": outcomes["hit_tokens"].sum() / outcomes["prompt_tokens"].sum(),
        "ttft_mean": outcomes["ttft"].mean(),
        "tpot_mean": answers["tpot"].mean(),
        "e2e_mean": (outcomes["end"] - outcomes["arrival"]).mean(),
        "makespan": outcomes["end"].max() - outcomes["arrival"].min(),
    }


def compare_totals(outcomes: NDArray[np.void], peer: PeerResult) -> pl.DataFrame:
    """One row a figure of `totals`: figure, dynamo, ours, difference (ours − dynamo)."""
    rows = [(name, float(getattr(peer, name)), float(x)) for name, x in totals(outcomes).items()]
    frame = pl.DataFrame(rows, schema=["figure", "dynamo", "ours"], orient="row")
    return frame.with_columns(difference=pl.col("ours") - pl.col("dynamo"))


def compare_requests(outcomes: NDArray[np.void], peer: PeerResult) -> pl.DataFrame:
    """Both fates of every request, matched by arrival, instance and lengths.

    Requests alike in all four are matched in order of their first tokens.

    Returns:
        instance, prompt_tokens, output_tokens; dynamo_reused and reused (tokens); dynamo_ttft,
        ttft, dynamo_e2e and e2e (s).

    Raises:
        ValueError: the two did not complete the same requests, or not on the same instances.
    """
    key = ("arrival", "instance", "prompt_tokens", "output_tokens")

    def theirs_key(request: PeerRequest) -> tuple[float, ...]:
        return (*(getattr(request, name) for name in key), request.first_token)

    ours = np.sort(outcomes, order=[*key, "ttft"])
    theirs = sorted(peer.outcomes, key=theirs_key)
    same = len(ours) == len(theirs) and all(
        (ours[name] == [getattr(request, name) for request in theirs]).all() for name in key
    )
    if not same:
        raise ValueError(
            f"found {len(theirs)} requests completed by Dynamo and {len(ours)} by us, must be the "
            "same on the same instances (run_peer needs per_request=True)"
        )
    arrival = ours["arrival"]
    return pl.DataFrame(
        {
            **{name: ours[name] for name in key[1:]},
            "dynamo_reused": [request.reused_tokens for request in theirs],
            "reused": ours["hit_tokens"],
            "dynamo_ttft": np.array([request.first_token for request in theirs]) - arrival,
            "ttft": ours["ttft"],
            "dynamo_e2e": np.array([request.finished for request in theirs]) - arrival,
            "e2e": ours["end"] - arrival,
        }
    )


def summarize_requests(requests: pl.DataFrame) -> dict[str, float]:
    """How far apart the two are, request by request.

    Args:
        requests: from `compare_requests`.

    Returns:
        `same_reuse`, `less_reuse`, `more_reuse`: requests that reuse as many tokens here as at
        Dynamo, fewer, more; `same_ttft`: requests whose TTFT differs by at most `SAME`;
        `ttft_gap_median`, `ttft_gap_p99`, `ttft_gap_max`: of the absolute differences, s.
    """
    more_reuse = pl.col("reused").cast(pl.Int64) - pl.col("dynamo_reused")
    gap = (pl.col("ttft") - pl.col("dynamo_ttft")).abs()
    return requests.select(
        same_reuse=(more_reuse == 0).sum(),
        less_reuse=(more_reuse < 0).sum(),
        more_reuse=(more_reuse > 0).sum(),
        same_ttft=(gap <= SAME).sum(),
        ttft_gap_median=gap.median(),
        ttft_gap_p99=gap.quantile(0.99),
        ttft_gap_max=gap.max(),
    ).row(0, named=True)


def main() -> None:
    """Run both simulators and print where they agree."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("trace", type=Path, help="Mooncake JSON lines, .gz or plain")
    parser.add_argument("--python", type=Path, help=f"Dynamo's (default: ${PYTHON_VARIABLE})")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    report: dict[str, dict[str, Any]] = {}
    tables = []
    try:
        for name, timing in TIMINGS.items():
            cluster = dataclasses.replace(PeerCluster(), timing=timing)
            peer = run_peer(options.trace, cluster, python=options.python, per_request=True)
            outcomes = replay(options.trace, cluster)
            figures = compare_totals(outcomes, peer)
            requests = summarize_requests(compare_requests(outcomes, peer))
            report[name] = {
                "dynamo_version": peer.version,
                "requests": peer.completed,
                "figures": figures.to_dicts(),
                "per_request": requests,
            }
            tables.append(_table(f"{name} step times, Dynamo {peer.version}", figures, requests))
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
    if options.json:
        print(json.dumps(report))
        return
    for table in tables:
        Console().print(table)


def _table(title: str, figures: pl.DataFrame, requests: dict[str, float]) -> RichTable:
    table = RichTable(title=title, box=None)
    for i, heading in enumerate(("", "Dynamo", "ours", "difference")):
        table.add_column(heading, justify="right" if i else "left")
    for figure, *values, difference in figures.iter_rows():
        table.add_row(figure, *(f"{value:.6f}" for value in values), f"{difference:+.6f}")
    for name, value in requests.items():
        table.add_row(name, "", "", f"{value:.6f}" if isinstance(value, float) else f"{value:,}")
    return table


if __name__ == "__main__":
    main()
