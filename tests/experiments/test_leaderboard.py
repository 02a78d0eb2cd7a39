import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from prefixgym.envs.scenarios.registry import load_scenario, scenario_names
from prefixgym.experiments.evaluate import Cell, evaluate
from prefixgym.experiments.leaderboard import (
    CALM,
    SUITES,
    TROUBLED,
    Suite,
    cells_of,
    missing_cells,
    read_cells,
    run_cells,
    suite_called,
    trace_ladder,
)

ROUTERS = ["round_robin", "random", "min_ttft", "loadaware"]


@pytest.fixture
def cells(tiny: Path) -> list[Cell]:
    return cells_of(Suite(2, 2, 100), [load_scenario(str(tiny))], ROUTERS)


def test_all_routers_meet_the_same_loads_and_test_seeds(cells: list[Cell]) -> None:
    assert [(cell.rate, cell.router) for cell in cells] == [
        (rate, router) for rate in (5.0, 80.0) for router in ROUTERS
    ]
    assert {cell.seeds for cell in cells} == {(20, 21)}
    assert {cell.scenario.num_requests for cell in cells} == {100}


def test_scenarios_keep_episodes_shorter_than_the_suites(tiny: Path) -> None:
    (cell,) = cells_of(Suite(1, 1, 10**6), [load_scenario(str(tiny), {"rates": "[5]"})], ["random"])
    assert cell.scenario.num_requests == 150


def test_suites_name_scenarios_that_there_are() -> None:
    assert {name for suite in SUITES.values() for name in suite.scenarios} == set(scenario_names())
    assert set(TROUBLED) < set(scenario_names())
    assert len(SUITES["default"].scenarios) == len(CALM) + 3


def test_unknown_suites_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="suite: found 'slow', allowed: quick, default, faults, f"):
        suite_called("slow")


class Fatal(float):
    """A rate that ends the process which unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (3,)


def test_failures_cost_only_their_own_cell(cells: list[Cell], tmp_path: Path) -> None:
    scenario = cells[0].scenario
    raising = Cell(scenario, -1.0, "random", (20,))
    fatal = Cell(scenario, Fatal(7.0), "random", (20,))
    ended: list[Cell] = []
    failures = run_cells([raising, fatal, *cells], tmp_path, 1, ended.append)
    assert [failure.cell for failure in failures] == [raising, fatal]
    assert "rate: found -1.0" in failures[0].message
    assert "terminated abruptly" in failures[1].message
    assert ended == [raising, fatal, *cells]
    assert missing_cells([raising, *cells], tmp_path) == [raising]
    assert read_cells(cells, tmp_path).equals(pl.concat([evaluate(cell) for cell in cells]))


def test_nothing_finished_is_an_error(cells: list[Cell], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no finished cell"):
        read_cells(cells, tmp_path)


def test_ladder_of_a_trace_spans_its_knee(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def knee_at_100(cell: Cell) -> pl.DataFrame:
        return pl.DataFrame({"attainment": [1.0 if cell.rate <= 100 else 0.0]})

    monkeypatch.setattr("prefixgym.experiments.leaderboard.evaluate", knee_at_100)
    assert trace_ladder(trace).rates == pytest.approx((60, 80, 100, 110, 120), rel=0.03)


def test_ladder_of_a_trace_without_a_knee_is_around_the_recorded_rate(trace: Path) -> None:
    assert trace_ladder(trace).rates[2] == pytest.approx(40 / 19.5, rel=0.01)


RUN = "from prefixgym.experiments.cli import main; main()"


@pytest.fixture
def killed(tiny: Path, tmp_path: Path) -> Iterator[tuple[list[str], Path]]:
    """A leaderboard of 20 cells, killed with -9 after some; its command and its folder of cells."""
    tiny.write_text(
        tiny.read_text()
        .replace("= 150", "= 3000")
        .replace("[5, 20, 80]", "[5, 20, 80, 90, 95, 99]")
    )
    command = [sys.executable, "-c", RUN, "leaderboard", "--scenario", str(tiny), "--name", "x"]
    command += [word for router in ROUTERS for word in ("--router", router)]
    cells = tmp_path / "runs" / "x" / "cells"
    process = subprocess.Popen([*command, "--workers", "2"], cwd=tmp_path, start_new_session=True)
    try:
        wait_until(lambda: len(list(cells.glob("*.parquet"))) >= 2 or process.poll() is not None)
        assert process.poll() is None, "ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: not group_exists(process.pid))
        yield command, cells
    finally:
        if group_exists(process.pid):
            os.killpg(process.pid, signal.SIGKILL)


def wait_until(holds: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def group_exists(leader: int) -> bool:
    """Whether the process or a worker of it is left."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_run_resumes_without_losing_or_repeating_a_cell(
    killed: tuple[list[str], Path], tiny: Path
) -> None:
    command, folder = killed
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}
    cells = cells_of(suite_called("default"), [load_scenario(str(tiny))], ROUTERS)
    assert 2 <= len(before) < len(cells)

    subprocess.run(command, cwd=folder.parents[2], check=True, stdout=subprocess.DEVNULL)
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*")}
    assert after.keys() == {f"{cell.key}.parquet" for cell in cells}
    assert {name: after[name] for name in before} == before
    some = cells[:: len(cells) // 4]
    assert read_cells(some, folder).equals(pl.concat([evaluate(cell) for cell in some]))
