"""Routers × scenarios × loads × seeds under common random numbers, on all cores, resumable.

A cell (`evaluate.Cell`) is the unit of work. Its worker writes it to `cells/<key>.parquet` under a
temporary name and renames it: a cell is there whole or not at all, so that a run that was killed
continues with the cells that are missing.
"""

import math
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from prefixgym.baselines.router import router_class, router_names
from prefixgym.envs.scenarios.knee import ladder
from prefixgym.envs.scenarios.registry import scenario_names, trace_scenario
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.scenarios.workloads import read_trace, trace_rate
from prefixgym.experiments.capacity import find_capacity
from prefixgym.experiments.evaluate import Cell, evaluate
from prefixgym.experiments.progress import progress_of
from prefixgym.experiments.whole_files import replaced
from prefixgym.experiments.workers import die_with_parent


@dataclass(frozen=True)
class Suite:
    """How much to run.

    Attributes:
        seeds: test seeds of each scenario.
        loads: rungs of each scenario's ladder, spread over it.
        num_requests: most requests of an episode; None leaves them as the scenario has them.
        scenarios: names; none are all built-in ones.
    """

    seeds: int
    loads: int
    num_requests: int | None
    scenarios: tuple[str, ...] = ()


_QUICK = ("agentic-8", "chat-8", "chat-16-mixed", "long-documents-8", "shared-prompts-8")

TROUBLED = (
    "autoscale-12",
    "crash-8",
    "impatient-8",
    "lossy-events-8",
    "popularity-shift-8",
    "prefix-burst-8",
    "replicas-8",
    "rolling-restart-8",
    "scale-12",
    "slow-gpu-8",
    "stale-index-8",
)
"""Built-in scenarios in which instances, clients, demand or what routers hear goes wrong."""

CALM = tuple(name for name in scenario_names() if name not in TROUBLED)
"""All other built-in scenarios."""

SUITES = {
    "quick": Suite(2, 2, 800, _QUICK),
    "default": Suite(3, 3, None, (*CALM, "crash-8", "replicas-8", "stale-index-8")),
    "faults": Suite(3, 3, None, TROUBLED),
    "full": Suite(20, 5, None),
}


def suite_called(name: str) -> Suite:
    """The suite with this name; ValueError if there is none."""
    if name not in SUITES:
        raise ValueError(f"suite: found {name!r}, allowed: {', '.join(SUITES)}")
    return SUITES[name]


@dataclass(frozen=True)
class Failure:
    """A cell that raised."""

    cell: Cell
    message: str


def deployable_routers() -> list[str]:
    """All routers but the references that decide by what no router knows."""
    return [name for name in router_names() if "truth" not in router_class(name).knows]


def cells_of(suite: Suite, scenarios: Sequence[Scenario], routers: Sequence[str]) -> list[Cell]:
    """All cells, those that share requests next to each other."""
    cells = []
    for scenario in scenarios:
        if suite.num_requests is not None and suite.num_requests < scenario.num_requests:
            scenario = scenario.with_num_requests(suite.num_requests)
        seeds = tuple(scenario.seeds.test.range()[: suite.seeds])
        for rate in _spread(scenario.rates, suite.loads):
            cells += [Cell(scenario, rate, router, seeds) for router in routers]
    return cells


def _spread(rates: Sequence[float], count: int) -> list[float]:
    """`count` of the rates, the first and the last among them."""
    if count >= len(rates):
        return list(rates)
    return [rates[round(i * (len(rates) - 1) / (count - 1))] for i in range(count)]


def trace_ladder(path: str | Path, overrides: Mapping[str, str] | None = None) -> Scenario:
    """A scenario that replays a trace at loads around the knee of the router `min_ttft`.

    Where it has none, because the trace is short or hopeless, around the recorded rate.
    `overrides` are as for `load_scenario`.
    """
    recorded = trace_rate(read_trace(path))
    scenario = trace_scenario(path, [recorded], overrides)
    seed = scenario.seeds.validation.first

    def attainment(rate: float) -> float:
        return float(evaluate(Cell(scenario, rate, "min_ttft", (seed,)))["attainment"][0])

    limit = find_capacity(attainment, start=recorded)
    middle = limit if 0 < limit < math.inf else recorded
    return trace_scenario(path, ladder(middle), overrides)


def missing_cells(cells: Sequence[Cell], folder: Path) -> list[Cell]:
    """The cells that `folder` does not hold yet."""
    return [cell for cell in cells if not cell_path(folder, cell).exists()]


def play_missing(
    cells: Sequence[Cell],
    folder: Path,
    workers: int,
    *,
    fresh: bool = False,
    evaluate: Callable[[Cell], pl.DataFrame] = evaluate,
) -> list[Failure]:
    """Run those that are missing, all if `fresh`, below a progress bar; see `run_cells`."""
    missing = list(cells) if fresh else missing_cells(cells, folder)
    with progress_of([cell.decisions for cell in missing], len(cells)) as on_end:
        return run_cells(missing, folder, workers, lambda cell: on_end(cell.decisions), evaluate)


def run_cells(
    cells: Iterable[Cell],
    folder: Path,
    workers: int,
    on_end: Callable[[Cell], None],
    evaluate: Callable[[Cell], pl.DataFrame] = evaluate,
) -> list[Failure]:
    """Evaluate cells, each into a file of its own; those that fail are returned, the rest is kept.

    Args:
        cells: what to evaluate.
        folder: where the cells are written.
        workers: processes.
        on_end: called after each cell, in this process.
        evaluate: makes the table of a cell, in another process: a function of a module.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting = deque(cells)
    failures: list[Failure] = []
    while waiting:
        _run_in_pool(waiting, folder, workers, on_end, evaluate, failures)
    return failures


def _run_in_pool(
    waiting: deque[Cell],
    folder: Path,
    workers: int,
    on_end: Callable[[Cell], None],
    evaluate: Callable[[Cell], pl.DataFrame],
    failures: list[Failure],
) -> None:
    """Take cells from `waiting` until none is left or a worker process has died.

    No more cells than workers are handed out at a time, so that a death costs only those.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=die_with_parent)
    running: dict[Future[None], Cell] = {}
    alive = True
    try:
        while running or (waiting and alive):
            while waiting and alive and len(running) < workers:
                cell = waiting.popleft()
                running[pool.submit(_write_cell, cell, folder, evaluate)] = cell
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                error = future.exception()
                if error is not None:
                    failures.append(Failure(cell, f"{type(error).__name__}: {error}"))
                alive = alive and not isinstance(error, BrokenProcessPool)
                on_end(cell)
    finally:
        pool.shutdown(wait=alive, cancel_futures=True)


def read_cells(cells: Sequence[Cell], folder: Path) -> pl.DataFrame:
    """The finished ones of these cells in one table, in the order of `cells`.

    Raises:
        ValueError: none is finished.
    """
    paths = [path for cell in cells if (path := cell_path(folder, cell)).exists()]
    if not paths:
        raise ValueError(f"{folder}: holds no finished cell of this leaderboard")
    return pl.concat([pl.read_parquet(path) for path in paths])


def cell_path(folder: Path, cell: Cell) -> Path:
    """Where the result of a cell is, once it is finished."""
    return folder / f"{cell.key}.parquet"


def _write_cell(cell: Cell, folder: Path, evaluate: Callable[[Cell], pl.DataFrame]) -> None:
    path = cell_path(folder, cell)
    with replaced(path) as partial:
        evaluate(cell).write_parquet(partial)
