"""`prefixgym paper`: its files, its JSON, and that it goes on where it was."""

import csv
import json
from pathlib import Path

import polars as pl
import pytest
from PIL import Image
from typer.testing import CliRunner

from prefixgym.experiments.cli import app
from prefixgym.experiments.paper import registry
from prefixgym.experiments.paper.results import METRICS, claims_of, summarise
from prefixgym.experiments.paper.study import (
    Arm,
    Claim,
    Point,
    Setting,
    Study,
    Sweep,
    trials_of,
)


@pytest.fixture
def small(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study of two settings and two routers, four cells of 150 requests."""
    snapshots = {"knowledge.index.source": '"snapshots"'}
    study = Study(
        "small",
        "Does it matter?",
        (
            Sweep(
                name="age",
                title="Age",
                axis="interval",
                scenario=str(tiny),
                settings=(
                    Setting("truth"),
                    Setting("1 s", snapshots | {"knowledge.index.snapshots.interval": "1.0"}),
                ),
                requests=150,
                arms=(Arm.of("round_robin"), Arm("best", "min_ttft")),
                varies="index",
                points=(Point("1 s", "hit_rate", 0.5),),
            ),
        ),
        (
            Claim("hits", "made up", "0.5", lambda f: f"{f.get('hit_rate', 'age', '1 s', 'best')}"),
            Claim("hits", "made up", "0.4", lambda f: f"{f.get('hit_rate', 'age', '9 s', 'best')}"),
        ),
        costs=True,
    )
    monkeypatch.setitem(registry.STUDIES, study.name, study)
    return study


ARGUMENTS = ("paper", "small", "--seeds", "2", "--workers", "1")


def test_it_writes_a_figure_and_a_table_and_goes_on_where_it_was(
    small: Study, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [(row["setting"], row["router"]) for row in report["rows"]] == [
        ("truth", "round_robin"), ("truth", "best"), ("1 s", "round_robin"), ("1 s", "best"),
    ]  # fmt: skip
    assert [claim["published"] for claim in report["published"]] == ["0.5", "0.4"]
    assert float(report["published"][0]["ours"]) == report["rows"][3]["hit_rate"]
    assert report["published"][1]["ours"] is None
    with (out / "small.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name in METRICS:
        for row in rows:
            assert float(row[f"{name}_low"]) <= float(row[name]) <= float(row[f"{name}_high"])
    assert float(rows[3]["bytes"]) > float(rows[1]["bytes"]) == 0
    assert rows[2]["bytes"] == ""  # round robin was not run again
    with Image.open(out / "small.png") as image:
        assert image.width > 1000

    cells = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert len(cells) == 3
    again = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(out)])
    assert again.exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == cells
    assert "Published beside ours" in again.stdout
    assert "not run" in again.stdout


def test_what_is_not_finished_is_left_out(small: Study, tmp_path: Path) -> None:
    trials = trials_of(small, num_seeds=1)
    with pytest.raises(ValueError, match="holds no finished cell"):
        summarise(trials, tmp_path)
    columns = {"sweep": "age", "setting": "truth", "router": "best", "hit_rate": 0.3}
    assert [c["ours"] for c in claims_of(small, pl.DataFrame([columns]))] == [None, None]


def test_mistakes_are_one_line() -> None:
    for arguments, message in (
        (["nothing"], "study: found 'nothing', allowed: staleness,"),
        (["loss", "--router", "nobody"], "router: found 'nobody'"),
    ):
        result = CliRunner().invoke(app, ["paper", *arguments])
        assert result.exit_code == 2
        assert message in result.stderr
