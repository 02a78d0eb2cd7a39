"""Time per output token against real serving runs.

The runs are NVIDIA's: AIConfigurator 0.12.0 (Apache-2.0) ships mean TTFT and TPOT of closed-loop
benchmarks. 216 of them, vLLM on H100 and H200, are compared here: five sets of one model, GPU and
engine generation, to which the profiles' host terms were fitted (`simulators.md` §3).

Each run is played as it was measured: one instance, as many clients as the stated concurrency,
each sending its next request when its last has ended; fixed lengths, no common prefixes. All
clients start at once; the first round of requests and the last one do not count.

TTFT is not compared: in a closed loop it is mostly the wait behind other clients' prompts, so it
depends on how the load generator's requests bunch, which was not recorded. `spread` shows that TPOT
depends on it little.

    python -m prefixgym.experiments.bench.silicon <silicon_validation.csv>
"""

import argparse
import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table as RichTable

from prefixgym.envs.clock import to_ticks
from prefixgym.envs.cluster.profiles import Linear, Profile, profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.links import link_rows
from prefixgym.envs.workload.tape import RUN, Tape, root_requests

DEFAULT_RUNS = Path("../shared/reference/calibration/silicon_validation.csv")

SETS = {
    "Qwen3-32B vLLM0.12 h100_sxm": ("qwen3-32b/h100", "vllm-0.12"),
    "Llama-3.1-70B-FP8 vLLM h100_sxm": ("llama-3.1-70b-fp8/h100", "vllm-2025-h100"),
    "Llama-3.1-70B-FP8 vLLM h200_sxm": ("llama-3.1-70b-fp8/h200", "vllm-2025-h200"),
    "gpt-oss-120b vLLM0.18 h100_sxm": ("gpt-oss-120b/h100", "vllm-0.18"),
    "gpt-oss-120b vLLM0.18 h200_sxm": ("gpt-oss-120b/h200", "vllm-0.18"),
}
"""The file's sets: profile without its TP, and host terms of the engine's generation."""

ROUNDS = 10
"""Requests a client sends. The overall error is 3.4 % at 4 rounds and 3.6 % at 30."""

BLOCK_SIZE = 256
"""Tokens in a block: while memory suffices and nothing is shared, it changes speed alone."""

MAX_SEQUENCES = 1024
"""vLLM's limit on these GPUs; no run comes near it."""


@dataclass(frozen=True)
class Run:
    """One measured run.

    Attributes:
        set: name of its set, a key of `SETS`.
        tp: GPUs of the instance.
        prompt_tokens: of every request.
        output_tokens: of every request, at least 2.
        concurrency: clients, each with one request in flight.
        tpot: s, mean over requests of (last token − first token) / (output tokens − 1).
    """

    set: str
    tp: int
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    tpot: float

    def profile(self, host: str | None = None, linear: Linear = "table") -> Profile:
        """The run's profile, with the host terms of its set unless `host` names others."""
        name, generation = SETS[self.set]
        return profile(f"{name}/tp{self.tp}", host=host or generation, linear=linear)


def read_runs(path: Path) -> list[Run]:
    """The runs in a CSV file: set, tp, isl, osl, concurrency, silicon_tpot_ms; others are ignored.

    Raises:
        ValueError: the file is not such a table, or a run cannot be played; names file and line.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        needed = {"set", "tp", "isl", "osl", "concurrency", "silicon_tpot_ms"}
        missing = sorted(needed - set(rows.fieldnames or ()))
        if missing:
            raise ValueError(f"{path}: the header lacks {', '.join(missing)}")
        runs = []
        for row in rows:
            try:
                run = _run(row)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}:{rows.line_num}: {error}") from None
            runs.append(run)
    if not runs:
        raise ValueError(f"{path}: found no runs")
    return runs


def _run(row: dict[str, str]) -> Run:
    if row["set"] not in SETS:
        raise ValueError(f"set: found {row['set']!r}, allowed: {', '.join(SETS)}")
    run = Run(
        set=row["set"],
        tp=int(float(row["tp"])),
        prompt_tokens=int(float(row["isl"])),
        output_tokens=int(float(row["osl"])),
        concurrency=int(float(row["concurrency"])),
        tpot=float(row["silicon_tpot_ms"]) / 1e3,
    )
    if min(run.prompt_tokens, run.output_tokens - 1, run.concurrency) < 1 or not run.tpot > 0:
        raise ValueError(f"isl, concurrency, osl - 1 and TPOT must be positive, found {run}")
    demand = run.concurrency * (run.prompt_tokens + run.output_tokens)
    room = run.profile().kv_capacity_tokens
    if demand > room:
        raise ValueError(f"the run takes {demand:,} KV tokens, found {room:,} in memory")
    return run


@dataclass(frozen=True)
class ClosedLoop:
    """Clients that send unlike requests of equal length, one after another without a pause.

    Attributes:
        clients: requests in flight.
        rounds: requests of a client. Request r of client c is row r · clients + c.
        prompt_tokens: of every request.
        output_tokens: of every request.
        block_size: tokens in a block.
        spread: s over which the clients start, evenly; 0 = all at once.
    """

    clients: int
    rounds: int
    prompt_tokens: int
    output_tokens: int
    block_size: int
    spread: float = 0.0

    @property
    def num_sessions(self) -> int:
        """One for each client."""
        return self.clients

    @property
    def max_blocks(self) -> int:
        """Blocks of a request with its answer."""
        return -(-(self.prompt_tokens + self.output_tokens) // self.block_size)

    def tape(self, seed: int) -> Tape:
        """The one episode; there is nothing random in it."""
        rows = np.arange(self.clients * self.rounds)
        arrival = np.zeros(rows.size, np.int64)  # think times; of the first round: starts
        arrival[: self.clients] = to_ticks(self.spread * np.arange(self.clients) / self.clients)
        requests = root_requests(
            arrival=arrival,
            prompt_tokens=np.full(rows.size, self.prompt_tokens),
            output_tokens=np.full(rows.size, self.output_tokens),
            num_runs=np.ones(rows.size, np.int64),
        )
        requests["num_blocks"] = -(-self.prompt_tokens // self.block_size)
        requests["cacheable_blocks"] = self.max_blocks
        requests["session"] = rows % self.clients
        requests["parent"][self.clients :] = rows[: -self.clients]
        link_rows(requests, rows)
        runs = np.zeros(rows.size, RUN)
        runs["start"] = rows * self.max_blocks
        runs["count"] = self.max_blocks
        return Tape(requests, runs, self.block_size)


def simulated_tpot(run: Run, engine: Profile, rounds: int = ROUNDS, spread: bool = False) -> float:
    """Mean TPOT of `run` on `engine`, s, without the first and the last round.

    Args:
        run: what to play.
        engine: of the single instance; chunks prompts by vLLM's budget of 8,192 tokens a step.
        rounds: requests of a client, at least 3.
        spread: let the clients start within the time of one answer instead of all at once.
    """
    loop = ClosedLoop(
        run.concurrency,
        rounds,
        run.prompt_tokens,
        run.output_tokens,
        BLOCK_SIZE,
        spread=run.tpot * run.output_tokens if spread else 0.0,
    )
    instance = InstanceSpec(engine, max_sequences=MAX_SEQUENCES)
    simulation = Simulation(
        ClusterSpec((instance,), BLOCK_SIZE),
        loop,
        slos=[Slo(ttft=1.0, tpot=1.0)],  # asked for; TPOT does not depend on it
        record=True,
    )
    simulation.reset([0])
    simulation.play(np.zeros((1, loop.clients * rounds), np.int64))
    outcomes = simulation.outcomes(0)
    turn = outcomes["row"] // loop.clients
    return float(outcomes["tpot"][(turn > 0) & (turn < rounds - 1)].mean())


def compare(
    runs: list[Run],
    *,
    rounds: int = ROUNDS,
    spread: bool = False,
    host: str | None = None,
    linear: Linear = "table",
) -> pl.DataFrame:
    """Play every run.

    Args:
        runs: from `read_runs`.
        rounds: requests of a client, at least 3.
        spread: let the clients start within the time of one answer instead of all at once.
        host: host terms for all runs in place of their sets' own.
        linear: which form of the profiles' linear part, see `profile`.

    Returns:
        One row a run: set, profile, host, prompt_tokens, output_tokens, concurrency, measured and
        simulated (mean TPOT, s), error (simulated / measured − 1).
    """
    if rounds < 3:
        raise ValueError(f"rounds: found {rounds}, allowed: 3 or more")
    rows = []
    for run in runs:
        engine = run.profile(host, linear)
        simulated = simulated_tpot(run, engine, rounds, spread)
        rows.append(
            {
                "set": run.set,
                "profile": engine.name,
                "host": host or SETS[run.set][1],
                "prompt_tokens": run.prompt_tokens,
                "output_tokens": run.output_tokens,
                "concurrency": run.concurrency,
                "measured": run.tpot,
                "simulated": simulated,
                "error": simulated / run.tpot - 1,
            }
        )
    return pl.DataFrame(rows)


def summarize(comparison: pl.DataFrame) -> pl.DataFrame:
    """Errors of each set, then of "all".

    Returns:
        set, runs, mape (mean absolute error), median and worst (of absolute errors), bias (mean
        error); shares of the measured TPOT.
    """
    error = pl.col("error")
    statistics = (
        pl.len().alias("runs"),
        error.abs().mean().alias("mape"),
        error.abs().median().alias("median"),
        error.abs().max().alias("worst"),
        error.mean().alias("bias"),
    )
    sets = comparison.group_by("set", maintain_order=True).agg(*statistics)
    return pl.concat([sets, comparison.select(pl.lit("all").alias("set"), *statistics)])


def main() -> None:
    """Print the errors of each set; with `--json`, those of each run too."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("runs", type=Path, nargs="?", default=DEFAULT_RUNS, help="CSV of the runs")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="requests of a client")
    parser.add_argument(
        "--spread", action="store_true", help="let the clients start within one answer's time"
    )
    parser.add_argument("--host", help="host terms for all runs (default: those of their sets)")
    parser.add_argument("--linear", choices=("table", "formula"), default="table")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    try:
        comparison = compare(
            read_runs(options.runs),
            rounds=options.rounds,
            spread=options.spread,
            host=options.host,
            linear=options.linear,
        )
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    summary = summarize(comparison)
    if options.json:
        print(json.dumps({"summary": summary.to_dicts(), "runs": comparison.to_dicts()}))
        return
    table = RichTable(title="TPOT against real serving runs, error in %", box=None)
    for i, heading in enumerate(summary.columns):
        table.add_column(heading, justify="left" if i == 0 else "right")
    for name, count, *errors in summary.iter_rows():
        table.add_row(name, str(count), *(f"{100 * error:.1f}" for error in errors))
    Console().print(table)


if __name__ == "__main__":
    main()
