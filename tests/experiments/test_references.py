"""The study of references: what it compares, and what it says."""

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from prefixgym.experiments.cli import app
from prefixgym.experiments.leaderboard import deployable_routers
from prefixgym.experiments.references import LOOKAHEAD, page, standings


def test_deployable_routers_are_no_references() -> None:
    assert {"min_ttft", "greedy_dump", "cache_aware"} <= set(deployable_routers())
    assert not {"oracle_greedy", LOOKAHEAD} & set(deployable_routers())


def test_standings_name_the_best_router_of_each_scenario() -> None:
    found = {
        ("chat-8", "min_ttft"): (0.5, 0.7),
        ("chat-8", "random"): (0.9, 0.1),
        ("chat-8", LOOKAHEAD): (0.8, 0.8),
        ("agentic-8", "random"): (0.9, 1.0),
        ("agentic-8", LOOKAHEAD): (0.9, 0.9),
    }
    results = pl.DataFrame(
        [
            {"scenario": scenario, "rate": 1.0, "router": router, "attainment": share}
            for (scenario, router), shares in found.items()
            for share in shares
        ]
    )
    rows = standings(results, {"chat-8": 0.95, "agentic-8": 1.0})
    assert rows.select("scenario", "best", "best_attainment", LOOKAHEAD, "bound").rows() == [
        ("agentic-8", "random", pytest.approx(0.95), pytest.approx(0.9), 1.0),
        ("chat-8", "min_ttft", pytest.approx(0.6), pytest.approx(0.8), 0.95),
    ]
    text = page(rows, 2)
    assert "| chat-8 | 1 | min_ttft | 60.0 | 80.0 | +20.0 | 95.0 | +15.0 |" in text
    assert "| agentic-8 | 1 | random | 95.0 | 90.0 | -5.0 | 100.0 | +10.0 |" in text
    assert "in 1 of 2 scenarios" in text


def test_the_command_writes_its_page_and_goes_on_where_it_was(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["references", "--scenario", str(tiny), "--router", "random", "--page", "page.md"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["scenarios"]
    assert 0 < row["best_attainment"] <= row[LOOKAHEAD] <= row["bound"]
    assert "| tiny | 20 | random |" in Path("page.md").read_text()
    again = CliRunner().invoke(app, arguments)
    assert "tiny" in again.stdout


def test_the_command_takes_results_from_a_leaderboard(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    board = ["leaderboard", "--suite", "default", "--scenario", str(tiny), "--name", "mine"]
    assert CliRunner().invoke(app, [*board, "--router", "round_robin"]).exit_code == 0
    arguments = ["references", "--scenario", str(tiny), "--leaderboard", "mine", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["scenarios"]
    assert row["best"] == "round_robin"
    result = CliRunner().invoke(app, [*arguments, "--seeds", "9"])
    assert result.exit_code == 2
    assert (
        "mine: has not evaluated tiny at 20 requests/s with seeds 20, 21, 22, 23" in result.stderr
    )
