"""`prefixgym tune` writes what it found, and what that cost, to a file that can be added to."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixgym.baselines.router import make_router
from prefixgym.baselines.tuned.parameters import (
    tuned_parameters,
    tuned_scenarios,
    tuned_tables,
)
from prefixgym.envs.scenarios.registry import scenario_names
from prefixgym.experiments.cli import app
from prefixgym.experiments.tuning.spaces import SPACES

SHORT = ("--rate", "60", "--trials", "3", "--episodes", "1", "--requests", "50", "--seeds", "2")


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_routers_are_tuned_with_one_budget_and_added_to_one_file(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "tuned.toml"
    found = json.loads(
        run("tune", "loadaware", "prefix_hash", "--scenario", tiny, *SHORT, "--out", out, "--json")
    )
    written = tomllib.loads(out.read_text())
    assert written == found["routers"]
    for router, table in written.items():
        assert table["parameters"].keys() == SPACES[router].keys()
        make_router(router, table["parameters"])
        assert table["score"]["tuned"] >= table["score"]["default"]
        budget = table["budget"]
        assert (budget["trials"], budget["episodes"], budget["requests"]) == (3, 3, 50)
        assert table["validation"]["episodes"] == 2
        assert table["validation"]["first_seed"] == 10
    journals = tmp_path / "runs" / "tune-tiny" / "60"
    assert {path.stem for path in journals.glob("*.journal")} == {"loadaware", "prefix_hash"}
    shown = run("tune", "smetric", "--scenario", tiny, *SHORT, "--out", out)
    assert "smetric" in shown
    assert list(tomllib.loads(out.read_text())) == ["loadaware", "prefix_hash", "smetric"]


def test_a_name_moves_trials_and_results(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("tune", "smetric", "--scenario", tiny, *SHORT, "--name", "mine")
    assert (tmp_path / "runs" / "mine" / "60" / "smetric.journal").exists()
    assert list(tomllib.loads((tmp_path / "runs" / "mine" / "tuned.toml").read_text())) == [
        "smetric"
    ]
    assert not (tmp_path / "runs" / "tune-tiny").exists()


def test_mistakes_are_one_line(tiny: Path) -> None:
    result = CliRunner().invoke(app, ["tune", "random", "--scenario", str(tiny)])
    assert result.exit_code == 2
    assert "router: found 'random', which has nothing to tune" in result.stderr


def test_what_is_shipped_was_tuned_by_what_is_here() -> None:
    assert set(tuned_scenarios()) <= set(scenario_names())
    for scenario in tuned_scenarios():
        budgets = {table["budget"]["trials"] for table in tuned_tables(scenario).values()}
        assert len(budgets) == 1, "routers that are compared must have had the same budget"
        for router, parameters in tuned_parameters(scenario).items():
            assert parameters.keys() <= SPACES[router].keys()
            make_router(router, parameters)
    with pytest.raises(ValueError, match="scenario: found 'nope', routers were tuned on: "):
        tuned_tables("nope")
