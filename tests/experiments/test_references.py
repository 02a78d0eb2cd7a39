"""The study of references: what it compares, and what it says."""

import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from prefixgym.experiments.cli import app
from prefixgym.experiments.leaderboard import deployable_routers
from prefixgym.experiments.references import LOOKAHEAD, ORACLE, page, standings


def test_deployable_routers_are_no_references() -> None:
    assert {"min_ttft", "greedy_dump", "cache_aware"} <= set(deployable_routers())
    assert not {ORACLE, LOOKAHEAD} & set(deployable_routers())


def test_standings_name_the_best_router_of_each_scenario() -> None:
    found = {
        ("chat-8", "min_ttft"): (0.5, 0.7),
        ("chat-8", "random"): (0.9, 0.1),
        ("chat-8", ORACLE): (0.5, 0.5),
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
    assert rows.select(
        "scenario", "best", "best_attainment", ORACLE, LOOKAHEAD, "bound"
    ).rows() == [
        ("agentic-8", "random", pytest.approx(0.95), None, pytest.approx(0.9), 1.0),
        ("chat-8", "min_ttft", pytest.approx(0.6), pytest.approx(0.5), pytest.approx(0.8), 0.95),
    ]
    text = page(rows, 2)
    assert "| chat-8 | 1 | min_ttft | 60.0 | 50.0 | 80.0 | +20.0 | 95.0 | +15.0 |" in text
    assert "| agentic-8 | 1 | random | 95.0 |  | 90.0 | -5.0 | 100.0 | +10.0 |" in text
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
