"""Scenarios that replay traces: formats, readers' options, and the rate of a closed loop."""

import json
from pathlib import Path

import numpy as np
import pytest

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.scenarios.registry import trace_scenario
from prefixgym.envs.scenarios.workloads import read_trace, trace_rate
from prefixgym.envs.workload.readers import native
from prefixgym.envs.workload.tape import NO_ROW


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """40 Claude Code sessions of two calls with 100 s of thought between them."""
    path = tmp_path / "sessions.jsonl"
    rows = [
        {"session": s, "agent": "main", "t": 101 * turn, "api_time": 1, "think_time": 100 * turn}
        | {"input_length": 100, "output_length": 9, "hash_runs": [[s, 1]]}
        for s in range(40)
        for turn in range(2)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_options_of_the_reader_are_keys_of_the_workload(sessions: Path) -> None:
    scenario = trace_scenario(sessions, [1.6], session_rate=0.4, seed=1, max_think=20.0)
    assert scenario.name == "sessions"
    assert scenario.cluster.block_size == 64
    requests = scenario.build(1.6).workload.tape(0).requests
    roots = requests["parent"] == NO_ROW
    assert np.count_nonzero(roots) == 40
    # 80 requests at 1.6/s: the sessions start within 50 s.
    assert requests["arrival"][roots].max() / TICKS_PER_SECOND == pytest.approx(50)
    assert set(requests["arrival"][~roots]) == {20 * TICKS_PER_SECOND}
    for key, message in (
        ("sesion_rate", "workload.sesion_rate: no such option of the format claude_code, allowed"),
        ("format", "workload.format: found 3, must be one of native, mooncake"),
        ("session_rate", "workload.session_rate: found 'x', must be a number"),
        ("path", "workload.path: found 3, must be a string"),
        ("group", r"workload.group: found \[1\], must be a single value"),
    ):
        value = {"session_rate": "x", "group": "[1]"}.get(key, "3")
        with pytest.raises(ValueError, match=message):
            trace_scenario(sessions, [1.6], {f"workload.{key}": value}, session_rate=0.4)


def test_the_rate_of_a_closed_loop_is_over_its_roots(sessions: Path, tmp_path: Path) -> None:
    trace = read_trace(sessions, session_rate=0.4)
    span = trace.requests["arrival"][trace.requests["parent"] == NO_ROW].max() / TICKS_PER_SECOND
    assert trace_rate(trace) == pytest.approx(80 / span)
    with pytest.raises(ValueError, match="all sessions of the trace start at once, it has no rate"):
        trace_rate(read_trace(sessions))
    kept = tmp_path / "My Sessions.parquet"
    native.write([trace], kept)
    scenario = trace_scenario(kept, [1.0])
    assert (scenario.name, scenario.cluster.block_size) == ("my-sessions", 64)
    assert scenario.num_requests == 80
