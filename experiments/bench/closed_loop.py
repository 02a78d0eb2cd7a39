"""Closed loop against open loop: what a replay with fixed arrivals gets wrong about agents.

An agent's next call comes after the one before has ended. A replay of recorded arrivals sends it
when it was recorded, served or not. Here the same calls (`closed_loop_sessions`) are played both
ways, from light load to past the knee, by the same routers.

    python -m prefixgym.experiments.bench.closed_loop --figure docs/closed-loop.png

`docs/closed-loop.md` says what was found.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as RichTable

from prefixgym.baselines.router import make_router
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.workload.tape import NO_ROW
from prefixgym.experiments.bench.closed_loop_plot import plot_loops
from prefixgym.experiments.bench.closed_loop_sessions import (
    RECORDED_SESSION_RATE,
    SLO,
    Load,
    choose_sessions,
    generated_ladder,
    recorded_ladder,
)
from prefixgym.experiments.capacity import CAPACITY_ATTAINMENT
from prefixgym.experiments.evaluate import play

TRACE = Path("../shared/traces/claude_code_v8_local/requests.jsonl.gz")
"""Where the project's own machines keep the recorded sessions."""

ROUTERS = ("session_affinity", "min_ttft")
RATES = (10.0, 12.0, 14.0, 16.0, 17.0, 18.0, 20.0)
INSTANCES = (8, 6, 5, 4, 3, 2)
SECONDS = 1200.0
SEEDS = 3


def early_calls(requests: NDArray[np.void], outcomes: NDArray[np.void]) -> NDArray[np.bool_]:
    """Calls that arrived before all that they follow had ended, [R] in order of rows.

    Args:
        requests: REQUEST records with links.
        outcomes: OUTCOME records of all rows, in order of rows.
    """
    ready = np.full(len(requests), -np.inf)
    follows = requests["parent"] != NO_ROW
    ready[follows] = outcomes["end"][requests["parent"][follows]]
    joined = requests["then"] != NO_ROW
    np.maximum.at(ready, requests["then"][joined], outcomes["end"][joined])
    early: NDArray[np.bool_] = outcomes["arrival"] < ready
    return early


def measure(
    load: Load, router: str, seeds: Sequence[int], *, closed_loop: bool
) -> list[dict[str, object]]:
    """Play one step of a ladder one way.

    Returns:
        A row a seed: load, router, loop ("closed" or "open"), seed, offered (calls/s an instance,
        the same for both loops); and of the calls that arrive in the window: arrivals (calls/s an
        instance), early (share), attainment, goodput (good calls/s an instance), ttft_p50 and
        ttft_p99 (s), hit_rate (tokens); and in_flight (mean over the window, an instance).
    """
    tapes = load.closed if closed_loop else load.opened
    simulation = Simulation(load.cluster, tapes, [SLO], num_envs=len(seeds), record=True)
    play(simulation, make_router(router), load.cluster, seeds)
    instances = len(load.cluster.instances)
    rows: list[dict[str, object]] = []
    for e, seed in enumerate(seeds):
        since, until = load.windows[seed]
        outcomes = np.sort(simulation.outcomes(e), order="row")
        early = early_calls(load.closed.by_seed[seed].requests, outcomes)
        inside = (outcomes["arrival"] >= since) & (outcomes["arrival"] < until)
        there = np.clip(outcomes["end"], since, until) - np.clip(outcomes["arrival"], since, until)
        calls = outcomes[inside]
        scale = instances * (until - since)
        rows.append(
            {
                "load": load.name,
                "router": router,
                "loop": "closed" if closed_loop else "open",
                "seed": seed,
                "offered": load.offered(seed),
                "arrivals": len(calls) / scale,
                "early": float(early[inside].mean()),
                "attainment": float(calls["good"].mean()),
                "goodput": int(calls["good"].sum()) / scale,
                "ttft_p50": float(np.nanquantile(calls["ttft"], 0.50)),
                "ttft_p99": float(np.nanquantile(calls["ttft"], 0.99)),
                "hit_rate": float(calls["hit_tokens"].sum() / calls["prompt_tokens"].sum()),
                "in_flight": float(there.sum() / scale),
            }
        )
    return rows


def compare(ladder: Sequence[Load], routers: Sequence[str], seeds: Sequence[int]) -> pl.DataFrame:
    """`measure` for each step, router and loop, one below the other."""
    return pl.DataFrame(
        [
            row
            for load in ladder
            for router in routers
            for closed_loop in (True, False)
            for row in measure(load, router, seeds, closed_loop=closed_loop)
        ]
    )


def summarize(results: pl.DataFrame) -> pl.DataFrame:
    """Means over seeds, one row for each router, loop and load, in this order."""
    return (
        results.group_by("router", "load", "loop", maintain_order=True)
        .agg(pl.exclude("seed").mean())
        .sort("router", "loop", maintain_order=True)
    )


def capacities(results: pl.DataFrame) -> pl.DataFrame:
    """The load up to which 90 % of the calls meet their objectives, by interpolation on the ladder.

    Returns:
        A row a router: router; closed, open (calls/s offered an instance, means over seeds); ratio
        (open / closed), low, high (its mean and range over seeds). Nan where the ladder does not
        cross 90 %.
    """
    rows = []
    for (router,), own in results.group_by("router", maintain_order=True):
        closed, opened = (
            np.array(
                [
                    _crossing(ladder["offered"].to_numpy(), ladder["attainment"].to_numpy())
                    for _, ladder in own.filter(pl.col("loop") == loop)
                    .sort("seed", "offered")
                    .group_by("seed", maintain_order=True)
                ]
            )
            for loop in ("closed", "open")
        )
        ratio = opened / closed
        rows.append(
            {
                "router": router,
                "closed": closed.mean(),
                "open": opened.mean(),
                "ratio": ratio.mean(),
                "low": ratio.min(),
                "high": ratio.max(),
            }
        )
    return pl.DataFrame(rows)


def _crossing(load: NDArray[np.float64], attainment: NDArray[np.float64]) -> float:
    """Where attainment first falls below 90 %, at rising load; nan if it never does or always is.

    Linear between the steps: load_k + (load_{k+1} − load_k) · (a_k − 0.9) / (a_k − a_{k+1}).
    """
    below = np.flatnonzero(attainment < CAPACITY_ATTAINMENT)
    if len(below) == 0 or below[0] == 0:
        return float("nan")
    k = below[0] - 1
    share = (attainment[k] - CAPACITY_ATTAINMENT) / (attainment[k] - attainment[k + 1])
    return float(load[k] + share * (load[k + 1] - load[k]))


def main() -> None:
    """Play the same agents' sessions in closed and in open loop at rising load."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="generated calls/s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of generated arrivals")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="episodes of each load")
    parser.add_argument(
        "--trace", type=Path, default=TRACE, help="recorded sessions; left out where it is absent"
    )
    parser.add_argument("--figure", type=Path, help="also write a PNG there")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    seeds = range(options.seeds)
    found = {
        "generated": compare(
            generated_ladder(options.rates, options.seconds, seeds), ROUTERS, seeds
        )
    }
    if options.trace.exists():
        with TemporaryDirectory() as folder:
            chosen = Path(folder) / "sessions.jsonl"
            choose_sessions(options.trace, chosen)
            ladder = recorded_ladder(chosen, INSTANCES, seeds, RECORDED_SESSION_RATE)
        found["recorded"] = compare(ladder, ROUTERS, seeds)
    summaries = {name: summarize(results) for name, results in found.items()}
    knees = {name: capacities(results) for name, results in found.items()}
    if options.figure is not None:
        plot_loops(summaries, options.figure)
    if options.json:
        report = {
            name: {
                "loads": summaries[name].to_dicts(),
                "capacities": knees[name].fill_nan(None).to_dicts(),
            }
            for name in found
        }
        print(json.dumps(report))
        return
    console = Console(width=None if Console().is_terminal else 120)
    for name, summary in summaries.items():
        for router in ROUTERS:
            title = f"{name} sessions, {router}; rates and requests per instance"
            console.print(_loads_table(title, summary.filter(router=router)))
        console.print(_capacities_table(knees[name]))
    if "recorded" not in found:
        console.print(f"left out: recorded sessions, no trace at {options.trace} (use --trace)")


def _loads_table(title: str, summary: pl.DataFrame) -> RichTable:
    table = RichTable(title=title, box=None)
    for heading in ("load", "loop"):
        table.add_column(heading)
    for heading in (
        "offered/s",
        "arrive/s",
        "early %",
        "attained %",
        "good/s",
        "TTFT p50 s",
        "p99 s",
        "hits %",
        "in flight",
    ):
        table.add_column(heading, justify="right")
    for row in summary.sort("offered", "loop").to_dicts():
        table.add_row(
            row["load"],
            row["loop"],
            f"{row['offered']:.2f}",
            f"{row['arrivals']:.2f}",
            f"{100 * row['early']:.1f}",
            f"{100 * row['attainment']:.1f}",
            f"{row['goodput']:.2f}",
            f"{row['ttft_p50']:.2f}",
            f"{row['ttft_p99']:.1f}",
            f"{100 * row['hit_rate']:.1f}",
            f"{row['in_flight']:.1f}",
        )
    return table


def _capacities_table(knees: pl.DataFrame) -> RichTable:
    table = RichTable(title="calls/s an instance with 90 % attained", box=None)
    table.add_column("router")
    for heading in ("closed", "open", "open / closed", "over seeds"):
        table.add_column(heading, justify="right")
    for row in knees.to_dicts():
        table.add_row(
            row["router"],
            f"{row['closed']:.3f}",
            f"{row['open']:.3f}",
            f"{row['ratio']:.3f}",
            f"{row['low']:.3f} … {row['high']:.3f}",
        )
    return table


if __name__ == "__main__":
    main()
