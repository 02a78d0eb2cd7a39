"""`prefixgym train`: from the command line to a router with a name, through a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)
from typer.testing import CliRunner

from prefixgym.experiments.analysis.run import read_run
from prefixgym.experiments.cli import app
from prefixgym.experiments.training.onlooker import COMPARED

SETTINGS = {
    "steps": 1024,
    "num_requests": 60,
    "clusters": 8,
    "threads": 1,
    "hidden": 8,
    "evaluate_every": 512,
    "validation_episodes": 1,
    "test_episodes": 2,
    "handcrafted": '["loadaware:beta=0.5"]',
}
PPO_SETTINGS = {"rollouts_per_arrivals": 4, "rollout": 16, "wait": 24, "checkpoint_every": 2}


def command(algorithm: str, tiny: Path, name: str, **settings: object) -> list[str]:
    chosen = SETTINGS | settings
    flags = [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]
    return [
        *("train", algorithm, "--scenario", str(tiny), "--rate", "60", "--name", name, "--json"),
        *flags,
    ]


def run_json(arguments: list[str]) -> dict[str, Any]:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_kill_9_and_the_same_command_give_the_same_weights(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    killed = command("ppo", tiny, "killed", **PPO_SETTINGS)
    program = "from prefixgym.experiments.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *killed], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    curve = tmp_path / "runs" / "killed" / "curve.jsonl"
    deadline = time.monotonic() + 300
    while not curve.exists() or len(curve.read_text().splitlines()) < 3:
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "runs" / "killed" / "report.json").exists()
    mine = run_json(killed)
    whole = run_json(command("ppo", tiny, "whole", **PPO_SETTINGS))
    assert mine["cells"] == whole["cells"]
    ends = []
    for name in ("killed", "whole"):
        ends.append(load_file(tmp_path / "runs" / name / "checkpoint.safetensors"))
    assert all(tensor.equal(ends[1][key]) for key, tensor in ends[0].items())
    events = EventAccumulator(str(tmp_path / "runs" / "killed"), size_guidance={"scalars": 0})
    events.Reload()
    steps = [event.step for event in events.Scalars("charts/decisions")]
    assert steps == list(range(9))
    tags = events.Tags()
    assert {"losses/policy", "reward/per_decision", "charts/SPS"} <= set(tags["scalars"])
    assert {f"choice/differs_from_{name}" for name in COMPARED} <= set(tags["scalars"])
    assert "choice/rank_by_ttft" in tags["histograms"]
    assert "choice/score" in tags["images"]
    weights = f"learned:{tmp_path}/runs/whole/best.safetensors"
    evaluated = run_json(
        ["evaluate", weights, "--scenario", str(tiny), "--rate", "60", "--seeds", "2", "--json"]
    )
    learned = whole["cells"][0]
    assert evaluated["cells"][0]["attainment"] == learned["attainment"]
    assert evaluated["cells"][0]["ttft_p99"] == learned["ttft_p99"]


@pytest.mark.parametrize(
    ("algorithm", "arguments"),
    [
        ("sb3-ppo", "{ n_steps = 32, batch_size = 64 }"),
        ("flat-ppo", "{ n_steps = 32, batch_size = 64 }"),
        ("maskable-ppo", "{ n_steps = 32, batch_size = 64 }"),
        ("a2c", "{ n_steps = 8 }"),
        ("dqn", "{ learning_starts = 200, batch_size = 16 }"),
        ("qrdqn", "{ learning_starts = 200, batch_size = 16 }"),
    ],
)
def test_algorithms_off_the_shelf_end_in_the_same_report(
    algorithm: str, arguments: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run_json(command(algorithm, tiny, "mine", arguments=arguments))
    assert [cell["router"] for cell in found["cells"]] == ["learned", "loadaware:beta=0.5"]
    assert all(0 <= cell["attainment"] <= 1 for cell in found["cells"])
    folder = tmp_path / "runs" / "mine"
    assert {"best.safetensors", "model.zip", "report.md"} <= {p.name for p in folder.iterdir()}
    verdicts = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    assert verdicts[0]["decisions"] == 0
    assert verdicts[-1]["decisions"] >= 1024
    assert len(verdicts) >= 3
    run = read_run(folder)
    assert (run.learner, run.scenario, run.seed) == (algorithm, "tiny", 0)
    assert run.decisions.tolist() == sorted({verdict["decisions"] for verdict in verdicts})
    assert run.test is not None
    assert run.test.attainment == found["cells"][0]["attainment"]
