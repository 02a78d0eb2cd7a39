import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixgym.baselines.router import make_router
from prefixgym.envs.scenarios.registry import trace_scenario
from prefixgym.envs.scenarios.workloads import recorded_rate
from prefixgym.envs.workload import streamed_trace
from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.readers import native
from prefixgym.experiments import metrics
from prefixgym.experiments.bench.streaming import write
from prefixgym.experiments.cli import app
from prefixgym.experiments.evaluate import evaluate_router
from prefixgym.experiments.replay import replay
from prefixgym.experiments.samples import RELATIVE_ERROR

APPROXIMATE = ("ttft_p50", "ttft_p90", "ttft_p99", "tpot_p99")


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """Chats of 1,500 requests in a closed loop, in the native format."""
    path = tmp_path / "chat.parquet"
    native.write([MultiTurnChat(1500, Poisson(10.0), 64, closed_loop=True).tape(1)], path)
    return path


@pytest.mark.parametrize("router", ["round_robin", "cache_aware", "session_affinity"])
def test_a_streamed_replay_is_the_replay(
    chat: Path, monkeypatch: pytest.MonkeyPatch, router: str
) -> None:
    monkeypatch.setattr(streamed_trace, "CHUNK_ROWS", 200)
    rate = recorded_rate(chat)
    small = {"cluster.instances.0.count": "4", "cluster.instances.0.kv_blocks": "2000"}
    scenario = trace_scenario(chat, [rate], small | {"slo.ttft": "0.4", "slo.tpot": "0.03"})
    whole = evaluate_router(make_router(router), scenario, rate, (5,)).row(0, named=True)
    streamed = replay(make_router(router), scenario, rate, 5)
    assert streamed.keys() == whole.keys()
    assert 0.2 < whole["attainment"] < 1
    for name, value in whole.items():
        exact = name not in APPROXIMATE
        wanted = (
            value
            if isinstance(value, str)
            else pytest.approx(value, rel=1e-12 if exact else RELATIVE_ERROR)
        )
        assert streamed[name] == wanted, name


def test_the_command_streams_native_files(chat: Path) -> None:
    arguments = ["replay", str(chat), "--router", "least_load", "--instances", "2", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["requests"] == 1500
    assert {field.name for field in dataclasses.fields(metrics.EpisodeMetrics)} < found.keys()
    assert "1,500 of 1,500 requests" in result.stderr
    other_blocks = CliRunner().invoke(app, [*arguments, "--set", "cluster.block_size=32"])
    assert json.loads(other_blocks.stdout)["requests"] == 1500
    assert "of 1,500 requests" not in other_blocks.stderr  # split blocks need the whole trace


# A process's peak memory begins with that of the process which started it: a small one stands in
# between.
LAUNCHER = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"

# Replays files one after another; after each, the most memory that it ever held, in kB.
PEAKS = """
import resource, sys
from prefixgym.baselines.router import make_router
from prefixgym.envs.scenarios.registry import trace_scenario
from prefixgym.experiments.replay import replay
for path in sys.argv[1:]:
    replay(make_router("round_robin"), trace_scenario(path, [20.0]), 20.0, 0)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_four_times_as_many_requests_take_no_more_memory(tmp_path: Path) -> None:
    paths = [tmp_path / "50k.parquet", tmp_path / "200k.parquet"]
    for path, requests in zip(paths, (50_000, 200_000), strict=True):
        write(path, requests)
    command = [sys.executable, "-c", LAUNCHER, sys.executable, "-c", PEAKS, *map(str, paths)]
    short, long = map(
        int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    )
    # Peaks of equal work differ by up to a sixth on a busy machine; all requests would be 4 times.
    assert long < 1.4 * short
