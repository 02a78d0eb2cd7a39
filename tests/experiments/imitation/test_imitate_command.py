"""`prefixgym imitate` clones, corrects, keeps the best, and goes on from labels on disk."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prefixgym.agents.weights import load_weights
from prefixgym.experiments.analysis.run import read_run
from prefixgym.experiments.cli import app
from prefixgym.experiments.evolution.report import WEIGHTS

SHORT = ("--rate", "60", "--episodes", "2", "--requests", "60", "--epochs", "3", "--seeds", "2")


def run(tiny: Path, *arguments: str | Path) -> Result:
    command = ["imitate", "min_ttft", "--scenario", tiny, *SHORT, "--hidden", "4", *arguments]
    return CliRunner().invoke(app, [str(argument) for argument in command])


def rounds_of(result: Result) -> list[dict[str, float]]:
    """Their figures, but for the time that they took."""
    assert result.exit_code == 0, result.output
    found: list[dict[str, float]] = json.loads(result.stdout)["rounds"]
    seconds = [one.pop("charts/seconds") for one in found]
    assert seconds == sorted(seconds)
    return found


def test_an_interrupted_imitation_ends_as_one_that_was_not(tiny: Path, tmp_path: Path) -> None:
    whole = rounds_of(run(tiny, "--rounds", "2", "--out", tmp_path / "whole", "--json"))
    assert [one["charts/decisions"] for one in whole] == [120, 240, 360]
    rounds_of(run(tiny, "--rounds", "1", "--out", tmp_path / "parts", "--json"))
    (tmp_path / "parts" / "labels-1.unfinished").write_bytes(b"half")
    assert rounds_of(run(tiny, "--rounds", "2", "--out", tmp_path / "parts", "--json")) == whole
    scorer, card = load_weights(tmp_path / "whole" / WEIGHTS)
    assert scorer.prior is not None
    assert card.scenario == "tiny"
    assert "learned" in card.table
    read = read_run(tmp_path / "whole")
    assert (read.learner, read.scenario, read.seed) == ("imitate min_ttft", "tiny", 0)
    assert read.decisions.tolist() == [120, 240, 360]
    assert read.best.attainment == pytest.approx(
        max(one["serving/attainment"] for one in whole), abs=1e-6
    )


def test_labels_of_another_imitation_are_not_gone_on_with(tiny: Path, tmp_path: Path) -> None:
    shown = run(tiny, "--rounds", "0", "--out", tmp_path)
    assert shown.exit_code == 0
    assert "round 0: 120 labels" in shown.stdout
    result = run(tiny, "--rounds", "0", "--out", tmp_path, "--seed", "1")
    assert result.exit_code == 2
    assert "its labels are of another seed; choose another folder" in result.stderr
