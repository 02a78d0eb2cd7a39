"""`prefixgym analyze` compares whatever has learned, by its events alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.tensorboard import SummaryWriter
from typer.testing import CliRunner, Result

from prefixgym.agents.linear_score import LinearScore, weights_of
from prefixgym.agents.linear_score import save_weights as save_linear
from prefixgym.agents.scorer import InstanceScorer
from prefixgym.agents.weights import card_of, save_weights
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.experiments.analysis.curve import curve, panels_of
from prefixgym.experiments.analysis.run import Figures, read_run
from prefixgym.experiments.cli import app
from prefixgym.experiments.training.judge import Judge, Verdict
from prefixgym.experiments.training.tensorboard import Events, kept


def verdict(attainment: float, ttft_p99: float) -> Verdict:
    rest = {"worst_sessions": 0.1, "hit_rate": 0.5}
    return Verdict({"attainment": attainment, "ttft_p99": ttft_p99} | rest)


def judge_of(scenario: str = "chat-8", handcrafted: float = 0.9) -> Judge:
    judge = Judge(load_scenario(scenario, {}), 25.0, [0])
    judge.handcrafted = {
        "smetric": verdict(handcrafted, 0.5),
        "loadaware:beta=0.5": verdict(0.8, 0.9),
    }
    return judge


def make_run(
    folder: Path,
    judged: Mapping[int, tuple[float, float, float]],
    *,
    learner: str = "ppo",
    judge: Judge | None = None,
    seed: int = 0,
    **settings: Any,
) -> Path:
    """Events of a run: decisions to (seconds, attainment, p99 TTFT), a step a judgement."""
    judge = judge_of() if judge is None else judge
    best = None
    with Events(folder, judge, 0, learner, {"seed": seed, "clip": 0.2} | settings) as events:
        for step, (decisions, (seconds, attainment, ttft_p99)) in enumerate(judged.items()):
            found = verdict(attainment, ttft_p99)
            best = found if best is None or judge.prefers(found, best) else best
            notes = {"charts/decisions": float(decisions), "charts/seconds": seconds}
            events.note(step, found.notes() | kept(best, judge) | notes)
    return folder


def analyze(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["analyze", *map(str, arguments)])


def table_rows(shown: str) -> list[list[str]]:
    return [line.split() for line in shown.splitlines() if line.strip()]


def test_runs_and_handcrafted_routers_stand_in_one_table(tmp_path: Path) -> None:
    one = make_run(tmp_path / "a", {0: (1, 0.5, 2.0), 1000: (60, 0.95, 0.54), 2000: (90, 0.97, 3)})
    other = make_run(tmp_path / "b", {0: (0, 0.6, 9.0)}, learner="evolve linear")
    scorer = InstanceScorer(4)
    table = {"learned": {"attainment": 0.93, "ttft_p99": 0.6}}
    table |= {"loadaware:beta=0.5": {"attainment": 0.79, "ttft_p99": 1.0}}
    save_weights(one / "best.safetensors", scorer, card_of(scorer, table=table))
    result = analyze(one, other, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    rows = table_rows(result.stdout)
    # What is kept is the best within the limit, not what attains most.
    row = ["a", "ppo", "chat-8@25", "2,000", "90", "95.00", "540", "97.00", "3,000", "93.00"]
    assert [*row, "600"] in rows
    (beyond,) = [found for found in rows if found[0] == "b"]
    assert beyond[:8] == ["b", "evolve", "linear", "chat-8@25", "0", "0", "60.00", "9,000*"]
    assert ["smetric", "handcrafted", "chat-8@25", "90.00", "500"] in rows
    other_row = ["loadaware_beta_0.5", "handcrafted", "chat-8@25", "80.00", "900"]
    assert [*other_row, "79.00", "1,000"] in rows
    names = [found[0] for found in rows]
    assert names.index("a") < names.index("smetric") < names.index("b")
    assert "above the limit" in result.stdout
    assert "93.00" in (tmp_path / "out" / "comparison.md").read_text()
    with Image.open(tmp_path / "out" / "curves.png") as picture:
        assert len(np.unique(np.asarray(picture.convert("L")))) > 10


def test_seeds_are_one_curve_and_settings_are_not(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", {0: (0, 0.5, 1.0), 100: (10, 0.7, 1.0)}, seed=0)
    second = make_run(tmp_path / "b", {0: (0, 0.7, 1.0), 50: (20, 0.8, 1.0)}, seed=1)
    third = make_run(tmp_path / "c", {0: (0, 0.1, 1.0)}, clip=0.1)
    elsewhere = make_run(tmp_path / "d", {0: (0, 0.1, 1.0)}, judge=judge_of("shared-prompts-8"))
    panels = panels_of([read_run(path) for path in (first, second, third, elsewhere)])
    assert list(panels) == [("chat-8", 25.0), ("shared-prompts-8", 25.0)]
    seeds, other = panels["chat-8", 25.0]
    assert (seeds.label, len(seeds.runs)) == ("ppo, clip=0.2", 2)
    assert (other.label, len(other.runs)) == ("ppo, clip=0.1", 1)
    assert [group.label for group in panels["shared-prompts-8", 25.0]] == ["ppo"]
    found = curve(seeds, "attainment", "decisions")  # as far as both have got
    assert found.x.tolist() == [0.0, 50.0]
    np.testing.assert_allclose(found.mean, [0.6, 0.7], rtol=1e-6)
    np.testing.assert_allclose(found.low, [0.5, 0.6], rtol=1e-6)
    np.testing.assert_allclose(found.high, [0.7, 0.8], rtol=1e-6)
    timed = curve(seeds, "attainment", "seconds")
    assert timed.x.tolist() == [0.0, 10.0]
    np.testing.assert_allclose(timed.mean, [0.6, (0.7 + 0.75) / 2], rtol=1e-6)
    assert np.isnan(curve(other, "ttft_p99", "seconds").low).all()
    result = analyze(first, second, third, elsewhere, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "out" / "curves.png") as picture:
        assert picture.height > 2 * 300  # a row of panels a scenario


def test_what_an_interrupted_run_wrote_twice_counts_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", {0: (0, 0.5, 1.0), 100: (10, 0.1, 9.0), 200: (20, 0.1, 9.0)})
    judge, best = judge_of(), verdict(0.8, 0.5)
    with Events(folder, judge, 1, "ppo", {"seed": 0, "clip": 0.2}) as events:
        notes = {"charts/decisions": 100.0, "charts/seconds": 30.0}
        events.note(1, best.notes() | kept(best, judge) | notes)
    found = read_run(folder)
    assert found.decisions.tolist() == [0.0, 100.0]
    np.testing.assert_allclose(found.attainment, [0.5, 0.8], rtol=1e-6)
    assert found.total_seconds == 30.0


def test_json_has_runs_and_curves(tmp_path: Path) -> None:
    one = make_run(tmp_path / "a", {0: (0, 0.5, 1.0), 100: (10, 0.7, 0.5)})
    result = analyze(one, "--out", tmp_path / "out", "--json")
    found = json.loads(result.stdout)
    assert found["runs"][0]["learner"] == "ppo"
    assert found["runs"][0]["best"] == {"attainment": pytest.approx(0.7), "ttft_p99": 0.5}
    assert found["handcrafted"][0]["router"] == "smetric"
    assert found["curves"][0]["attainment_by_decisions"]["x"] == [0.0, 100.0]
    assert Path(found["files"]["png"]).exists()


def test_runs_that_were_judged_on_different_episodes_are_told_apart(tmp_path: Path) -> None:
    one = make_run(tmp_path / "a", {0: (0, 0.5, 1.0)})
    other = make_run(tmp_path / "b", {0: (0, 0.5, 1.0)}, judge=judge_of(handcrafted=0.91))
    assert "warning" not in analyze(one, "--out", tmp_path / "out").stderr
    told = analyze(one, other, "--out", tmp_path / "out").stderr
    assert "chat-8 at 25 requests/s: handcrafted routers have different figures" in told


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        result = analyze(path, "--out", tmp_path / "out")
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        return line

    assert "nowhere: no such folder" in message(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "empty: found no TensorBoard events, expected those of a run" in message(empty)
    with SummaryWriter(str(tmp_path / "foreign")) as writer:
        writer.add_scalar("loss", 1.0, 0)
    assert "foreign: found events with loss, expected the text 'about'" in message(
        tmp_path / "foreign"
    )
    garbage = tmp_path / "garbage"
    garbage.mkdir()
    (garbage / "events.out.tfevents.1").write_bytes(b"no events at all, but some bytes")
    assert "garbage: found no events that can be read" in message(garbage)
    young = make_run(tmp_path / "young", {})
    assert "young: was not judged yet, its events lack serving/attainment" in message(young)
    broken = make_run(tmp_path / "broken", {0: (0, 0.5, 1.0)})
    (broken / "weights.safetensors").write_bytes(b"no weights")
    assert "weights.safetensors: its card cannot be read" in message(broken)


def test_tests_are_read_from_the_card_of_a_linear_score_too(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", {0: (0, 0.5, 1.0)}, learner="evolve linear")
    rows = {"linear_score": {"attainment": 0.9, "ttft_p99": 0.5}}
    rows |= {"smetric": {"attainment": 0.8, "ttft_p99": 0.6}}
    save_linear(folder / "weights.safetensors", weights_of(LinearScore()), {"table": rows})
    found = read_run(folder)
    assert found.test == Figures(0.9, 0.5)
    assert found.test_handcrafted == {"smetric": Figures(0.8, 0.6)}
