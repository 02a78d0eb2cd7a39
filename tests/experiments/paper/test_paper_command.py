"""`prefixgym paper`: its files, its JSON, and that it goes on where it was."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from PIL import Image
from typer.testing import CliRunner

from prefixgym.experiments.cli import app
from prefixgym.experiments.paper import registry
from prefixgym.experiments.paper.published import Effort, Figure, Outcome, Result
from prefixgym.experiments.paper.results import METRICS, figures_of, summarise
from prefixgym.experiments.paper.study import (
    Arm,
    Claim,
    Found,
    Point,
    Setting,
    Study,
    Sweep,
    trials_of,
)


def _hits(setting: str) -> Callable[[Found], float]:
    return lambda found: found.get("hit_rate", "age", setting, "best")


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
            Claim("hits", "made up", 0.5, _hits("1 s"), "anything is possible", 0.0, 1.0),
            Claim("hits", "made up", 0.4, _hits("9 s"), "anything is possible", 0.0, 1.0),
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
    assert [figure["published"] for figure in report["published"]] == [0.5, 0.4]
    assert report["published"][0]["ours"] == report["rows"][3]["hit_rate"]
    assert report["published"][1]["ours"] is None
    # With two seeds nothing is checked.
    assert [figure["verdict"] for figure in report["published"]] == ["not checked", "not run"]
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
    figures = figures_of(small, pl.DataFrame([columns]), Effort())
    assert [figure.verdict for figure in figures] == ["not run", "not run"]


@pytest.mark.parametrize(
    ("effort", "verdict"),
    [
        (Effort(), "missed"),
        (Effort(seeds=5), "missed"),
        (Effort(seeds=2), "not checked"),
        (Effort(requests=10), "not checked"),
    ],
)
def test_tolerances_hold_for_the_usual_effort(small: Study, effort: Effort, verdict: str) -> None:
    claim = replace(small.claims[0], low=0.4, high=0.6)
    columns = {"sweep": "age", "setting": "1 s", "router": "best", "hit_rate": 0.3}
    study = replace(small, claims=(claim,))
    (figure,) = figures_of(study, pl.DataFrame([columns]), effort)
    assert (figure.verdict, figure.ours) == (verdict, 0.3)


def _made(name: str, ours: float, *, raises: bool = False, known_miss: str = "") -> Result:
    """A result with one figure, which is to lie from 0.9 to 1.1."""

    def run(_folder: Path, _effort: Effort) -> Outcome:
        if raises:
            raise ArithmeticError("no convergence")
        figure = Figure("x", "made up", 1.0, ours, "a tenth", 0.9, 1.1, known_miss=known_miss)
        return Outcome(
            tables=[],
            figures=[figure],
            draw=lambda path: Image.new("RGB", (10, 10)).save(path),
            rows=[{"x": ours}],
        )

    return Result(name, f"How large is x of {name}?", run)


def _only(monkeypatch: pytest.MonkeyPatch, *results: Result) -> None:
    monkeypatch.setattr(registry, "STUDIES", {})
    monkeypatch.setattr(registry, "RESULTS", {result.name: result for result in results})


def test_all_goes_on_after_a_failure_and_sums_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _only(monkeypatch, _made("a", 1.0, raises=True), _made("b", 1.05), _made("c", 2.0))
    found = CliRunner().invoke(app, ["paper", "all", "--out", str(tmp_path)])
    assert found.exit_code == 1
    assert "failed: a: ArithmeticError: no convergence" in found.stderr
    assert "missed: c: x: 2.0 is not within 0.9 to 1.1" in found.stderr
    lines = [line.split() for line in found.stdout.splitlines()]
    rows = {line[0]: line for line in lines if line and line[0] in "abc"}
    assert rows["b"][1] == rows["c"][1] == "1"
    for name in "bc":
        for kind in ("csv", "md", "png"):
            assert (tmp_path / f"paper-{name}" / f"{name}.{kind}").exists()
    assert "a tenth" in (tmp_path / "paper-b" / "b.md").read_text(encoding="utf-8")

    as_json = CliRunner().invoke(app, ["paper", "all", "--out", str(tmp_path), "--json"])
    reports = json.loads(as_json.stdout)["results"]
    assert [report["study"] for report in reports] == ["a", "b", "c"]
    assert reports[0]["failures"] == ["ArithmeticError: no convergence"]
    assert [f["verdict"] for r in reports for f in r["published"]] == ["met", "missed"]


@pytest.mark.parametrize(
    ("ours", "known_miss", "code"), [(1.0, "", 0), (2.0, "", 1), (2.0, "no tier", 0)]
)
def test_only_a_broken_tolerance_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ours: float, known_miss: str, code: int
) -> None:
    _only(monkeypatch, _made("a", ours, known_miss=known_miss))
    for name in ("a", "all"):
        found = CliRunner().invoke(app, ["paper", name, "--out", str(tmp_path / name)])
        assert found.exit_code == code, found.output
        assert known_miss in found.stdout


def test_mistakes_are_one_line() -> None:
    for arguments, message in (
        (["nothing"], "study: found 'nothing', allowed: staleness,"),
        (["loss", "--router", "nobody"], "router: found 'nobody'"),
        (["cachegen", "--router", "random"], "found 'cachegen', which compares no routers"),
        (["all", "--router", "random"], "--router, --learned: found with all"),
    ):
        result = CliRunner().invoke(app, ["paper", *arguments])
        assert result.exit_code == 2
        assert message in result.stderr
