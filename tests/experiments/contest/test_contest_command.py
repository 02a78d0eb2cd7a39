"""`prefixgym contest`: who is chosen, its files, and that it goes on where it was."""

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from prefixgym.experiments.cli import app
from prefixgym.experiments.contest import entrants


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs are written to a folder of the test's own; `loadaware` was tuned on `tiny`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(entrants, "tuned_scenarios", lambda: ["tiny"])
    monkeypatch.setattr(entrants, "tuned_parameters", lambda name: {"loadaware": {"beta": 3.0}})
    return tmp_path


def _cells(here: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (here / "runs/small").glob("*/*.parquet")}


def test_it_chooses_on_validation_and_reports_on_test_and_goes_on(tiny: Path, here: Path) -> None:
    arguments = [
        "contest", f"{tiny}@150", "--router", "min_ttft", "--router", "round_robin",
        "--router", "loadaware", "--learned", "linear_score", "--learned", "learned/{scenario}",
        "--seeds", "4", "--validation", "3", "--few", "2", "--lookahead", "2", "--capacity", "1",
        "--workers", "1", "--name", "small",
    ]  # fmt: skip
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    (match,) = report["matches"]
    assert match["candidates"] == 4  # one of them tuned
    assert 1 <= len(match["chosen"]) <= 2
    assert "round_robin" not in match["chosen"]
    rows = {row["router"]: row for row in report["rows"]}
    dump = "greedy + dump hopeless requests"
    assert list(rows) == [*match["chosen"], "linear_score", dump, "lookahead"]
    best, own = rows[match["chosen"][0]], rows["linear_score"]
    assert best["violations"] == best["ttft_p99_ratio"] == 1
    assert best["improvement"] == 0.5
    assert own["violations"] == pytest.approx((1 - own["attainment"]) / (1 - best["attainment"]))
    assert own["attainment_low"] <= own["attainment"] <= own["attainment_high"]
    assert rows["lookahead"]["seeds"] == 2
    assert rows["lookahead"]["gap_closed"] == 1
    assert set(match["capacities"]) == {*match["chosen"], "linear_score"}
    assert all(rows[label]["capacity"] > 5 for label in match["capacities"])
    (missing,) = report["left_out"]
    assert missing.startswith("tiny: learned/{scenario}: router: found 'learned/tiny'")

    episodes = pl.read_parquet(here / "runs/small/episodes.parquet")
    assert sorted(set(episodes["seed"])) == [20, 21, 22, 23]
    assert pl.read_parquet(here / "runs/small/contest.parquet").height == len(rows)
    page = (here / "runs/small/contest.md").read_text()
    assert f"Chosen of 4 handcrafted entries on validation seeds: {match['chosen'][0]}" in page
    assert dump in page
    assert "### Left out" in page

    cells = _cells(here)
    # Candidates, entries, capacities.
    assert len(cells) == 4 + len(rows) + len(match["chosen"]) + 1
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output
    assert _cells(here) == cells
    assert "linear_score" in again.stdout
    assert "left out: tiny" in again.stderr


def test_mistakes_are_one_line(tiny: Path) -> None:
    for arguments, message in (
        (["nowhere"], "scenario: found 'nowhere'"),
        ([f"{tiny}@fast"], "found rate 'fast', must be a number above 0"),
        ([f"{tiny}@0"], "found rate '0', must be a number above 0"),
        ([str(tiny), "--learned", "nobody"], "router: found 'nobody'"),
        ([str(tiny), "--learned", "linear_score", "--learned", "linear_score"], "twice"),
        ([str(tiny), "--router", "nobody"], "router: found 'nobody'"),
    ):
        result = CliRunner().invoke(app, ["contest", *arguments])
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert result.stderr.startswith("error: ")
