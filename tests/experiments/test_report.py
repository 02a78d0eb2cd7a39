import json
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.experiments.evaluate import Cell, evaluate
from prefixgym.experiments.leaderboard import Failure
from prefixgym.experiments.report import Report

ROUTERS = ("round_robin", "random", "min_ttft")


@pytest.fixture
def report(tiny: Path) -> Report:
    scenario = load_scenario(str(tiny))
    cells = [Cell(scenario, rate, router, (20, 21)) for rate in (5.0, 80.0) for router in ROUTERS]
    failure = Failure(Cell(scenario, 7.0, "loadaware", (20,)), "ValueError: no")
    return Report.of(pl.concat([evaluate(cell) for cell in cells]), [failure])


def test_files_hold_what_was_measured(report: Report, tmp_path: Path) -> None:
    files = report.write(tmp_path, "Title")
    assert pl.read_parquet(files["episodes"]).equals(report.episodes)
    assert pl.read_parquet(files["summary"]).height == 2 * len(ROUTERS)
    with Image.open(files["picture"]) as picture:
        assert picture.width > 800
    text = files["markdown"].read_text()
    for expected in (
        *ROUTERS,
        "# Title",
        "tiny at",
        "attainment % by requests/s",
        "ValueError: no",
    ):
        assert expected in text


def test_json_names_ranks_knees_cells_and_failures(report: Report) -> None:
    found = json.loads(json.dumps(report.json()))
    assert {entry["router"] for entry in found["ranking"]} == set(ROUTERS)
    assert found["knees"].keys() == {"tiny"}
    assert len(found["cells"]) == 2 * len(ROUTERS)
    assert found["failures"][0]["message"] == "ValueError: no"
