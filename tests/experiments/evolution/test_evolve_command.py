"""`prefixgym evolve`: a run from start to weights that `evaluate` takes."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)
from typer.testing import CliRunner

from prefixgym.agents.linear_score import card_of, load_weights
from prefixgym.agents.weights import load_weights as load_network
from prefixgym.experiments.analysis.run import read_run
from prefixgym.experiments.cli import app
from prefixgym.experiments.evolution.report import WEIGHTS

SHORT = ("--rate", "60", "--members", "4", "--episodes", "1", "--requests", "40")
JUDGED = ("--judge-every", "2", "--seeds", "2")


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_linear_weights_have_a_card_and_a_router(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = ("evolve", "linear", "--scenario", tiny, *SHORT, *JUDGED, "--out", folder)
    run(*command, "--generations", "2")
    found = json.loads(run(*command, "--generations", "4", "--json"))
    assert found["generations"] == 4
    assert [cell["router"] for cell in found["cells"]][:2] == ["linear_score", "min_ttft"]
    card = card_of(folder / WEIGHTS)
    assert card["seed"] == 0
    assert card["scenario"] == "tiny"
    assert set(card["table"]["linear_score"]) == {"attainment", "ttft_p99"}
    weights = folder / WEIGHTS
    told = run("evaluate", "linear_score", "--scenario", tiny, "--seeds", "1", "--json", "--set",
               f"weights={weights}")  # fmt: skip
    assert json.loads(told)["parameters"]["hit"] == load_weights(weights)["hit"]
    events = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in events.Scalars("fitness/mean")] == [1, 2, 3, 4]
    assert [event.step for event in events.Scalars("serving/attainment")] == [0, 2, 4]
    decisions = [event.value for event in events.Scalars("charts/decisions")]
    assert decisions == [160.0 * generation for generation in range(5)]
    seconds = [event.value for event in events.Scalars("charts/seconds")]
    assert seconds == sorted(seconds)
    assert "choice/score" in events.Tags()["images"]
    read = read_run(folder)
    assert (read.learner, read.scenario, read.seed) == ("evolve linear", "tiny", 0)
    assert read.best.attainment == pytest.approx(found["validation"]["attainment"])
    assert read.test is not None
    assert read.test.attainment == card["table"]["linear_score"]["attainment"]


def test_a_network_starts_from_linear_weights(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = ("evolve", "network", "--scenario", tiny, *SHORT, *JUDGED, "--hidden", "3")
    assert "Best of 2 generations" in run(*command, "--generations", "2", "--out", folder)
    scorer, card = load_network(folder / WEIGHTS)
    assert card.hidden == 3
    assert "learned" in card.table
    assert scorer.prior is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tree",), "kind: found 'tree', allowed: linear, network"),
        (("linear", "--minutes", "0"), "--minutes: found 0.0, must be above 0"),
        (("linear", "--sigma", "-1"), "--sigma: found -1.0, must be above 0"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], message: str, tiny: Path) -> None:
    result = CliRunner().invoke(app, ["evolve", *arguments, "--scenario", str(tiny)])
    assert result.exit_code == 2
    assert message in result.stderr
