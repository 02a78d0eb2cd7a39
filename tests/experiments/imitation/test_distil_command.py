"""`prefixgym distil` teaches one network what several specialists do, on clusters of any size."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixgym.agents.weights import load_weights
from prefixgym.experiments.cli import app

SHORT = ("--episodes", "2", "--epochs", "20", "--hidden", "8", "--seeds", "2", "--json")


def test_one_network_learns_what_specialists_for_different_clusters_do(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    large = tmp_path / "large.toml"
    large.write_text(
        tiny.read_text().replace("count = 2", "count = 3").replace('"tiny"', '"large"')
    )
    lessons = [f"{tiny}@20=min_ttft", f"{large}@30=min_ttft"]
    result = CliRunner().invoke(app, ["distil", *lessons, "--rounds", "1", *SHORT])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [one["labels"] for one in told["rounds"]] == [600, 1200]
    assert told["rounds"][-1]["agreement"] > 0.8  # a third to a half by chance
    assert set(told["rounds"][0]["validation"]) == set(told["test"]) == {"tiny@20", "large@30"}
    _, card = load_weights(tmp_path / "runs/distil/weights.safetensors")
    assert card.scenario == "tiny@20, large@30"
    assert {name: dict(row) for name, row in card.table.items()} == told["test"]


def test_a_lesson_without_a_teacher_is_refused(tiny: Path) -> None:
    result = CliRunner().invoke(app, ["distil", str(tiny)])
    assert result.exit_code == 2
    assert f"lesson: found '{tiny}', expected SCENARIO[@RATE]=ROUTER" in result.stderr
