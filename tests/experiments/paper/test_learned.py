"""Learned routers in studies: one everywhere or one a level, and traces that may be absent."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from prefixgym.agents.linear_score import LinearScore, save_weights, weights_of
from prefixgym.experiments.cli import app
from prefixgym.experiments.evaluate import Cell, evaluate
from prefixgym.experiments.paper import contested, registry
from prefixgym.experiments.paper.information import LEVELS
from prefixgym.experiments.paper.learned import with_learned, with_trace
from prefixgym.experiments.paper.study import Arm, Setting, Study, Sweep, TraceSweep, trials_of


@pytest.fixture
def levels(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Two levels of knowledge, with weights for one of them."""
    sweep = Sweep(
        name="known",
        title="Known",
        axis="level",
        scenario=str(tiny),
        settings=(LEVELS[0], LEVELS[-1]),
        rate=150.0,
        requests=150,
        arms=(Arm.of("least_load"), Arm.of("cache_aware"), Arm.of("min_ttft")),
        varies="index",
    )
    study = Study("levels", "Does it matter?", (sweep,))
    monkeypatch.setitem(registry.STUDIES, study.name, study)
    return study


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "level-truth").mkdir()
    path = tmp_path / "level-truth" / "weights.safetensors"
    save_weights(path, weights_of(LinearScore()), {})
    return path


def test_weights_of_a_level_play_there_alone(levels: Study, weights: Path) -> None:
    text = f"linear_score:weights={weights.parent.parent}/level-{{setting}}/weights.safetensors"
    found, missing = with_learned(levels, ["linear_score", text])
    (line,) = missing
    assert line.startswith("known, no caches: ")
    played = [(t.setting.slug, t.arm.label) for t in trials_of(found, 1)]
    assert played == [
        # cache_aware goes by its history, which is not allowed where no cache is known.
        ("none", "least_load"), ("none", "min_ttft"), ("none", "linear_score"),
        ("truth", "least_load"), ("truth", "cache_aware"), ("truth", "min_ttft"),
        ("truth", "linear_score"), ("truth", "linear_score, own"),
    ]  # fmt: skip
    assert [arm.label for arm in found.sweeps[0].lines][-1] == "linear_score, own"


def test_a_study_says_what_learned_routers_are_worth(
    levels: Study, weights: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    text = f"linear_score:weights={weights}"
    arguments = ["paper", "levels", "--seeds", "2", "--workers", "1", "--learned", text]
    result = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "Known: learned beside the best" in result.stdout
    assert "linear_score:level-truth" in result.stdout
    page = (out / "levels.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if "linear_score:level-truth |" in line]
    beside = [row for row in rows if row[0] in ("| no caches", "| truth")]
    assert [row[0] for row in beside] == ["| no caches", "| truth"]
    for row in beside:
        assert row[1] in ("least_load", "cache_aware", "min_ttft")
        assert "[" in row[5]
    # In a study of its own it need not be trained for each level.
    again = CliRunner().invoke(app, [*arguments, "--out", str(out), "--json"])
    report = json.loads(again.stdout)
    assert report["left_out"] == []
    assert {row["router"] for row in report["rows"]} >= {"linear_score:level-truth"}


def test_levels_are_not_asked_of_studies_without() -> None:
    with pytest.raises(ValueError, match="loss has no weights apiece"):
        with_learned(registry.study_called("loss"), ["learned/{setting}"])


def test_a_trace_is_played_or_left_out(trace: Path, tmp_path: Path) -> None:
    sweep = TraceSweep(
        name="recorded",
        title="Recorded",
        axis="",
        scenario="recorded",
        settings=(Setting("as recorded", rate=2.0),),
        requests=20,
        arms=(Arm.of("min_ttft"),),
        trace=tmp_path / "nothing.jsonl",
    )
    study = Study("recorded", "Is it there?", (sweep,))
    absent, missing = with_trace(study, None)
    assert absent.sweeps == ()
    assert missing == [f"recorded: no trace at {tmp_path}/nothing.jsonl (use --trace)"]
    found, missing = with_trace(study, trace)
    assert missing == []
    (trial,) = trials_of(found, 2)
    assert trial.cell.scenario.num_requests == 20
    assert trial.cell.rate == 2.0


def test_contested_is_where_the_best_still_attains_nearly_all(tiny: Path) -> None:
    sweep = Sweep(
        name="tiny", title="", axis="", scenario=str(tiny), settings=(Setting("alone"),), rate=60.0
    )
    rate = contested.contested_rate(sweep, sweep.settings[0], requests=150)
    assert rate > 60
    scenario = sweep.scenario_at(sweep.settings[0], 150)
    seeds = tuple(scenario.seeds.of("validation")[: contested.EPISODES])

    def best(at: float) -> float:
        cells = [Cell(scenario, at, router, seeds) for router in contested.ROUTERS]
        return max(float(np.mean(evaluate(cell)["attainment"].to_numpy())) for cell in cells)

    assert best(rate) >= contested.WANTED > best(1.5 * rate)
