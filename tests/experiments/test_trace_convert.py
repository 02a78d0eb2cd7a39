"""`prefixgym trace` formats, convert and fetch, as typed."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from prefixgym.envs.workload.readers import native
from prefixgym.envs.workload.readers.registry import TRACE_FORMATS, read_trace
from prefixgym.experiments.cli import app
from prefixgym.experiments.fetch import PUBLIC_TRACES

ROWS = [
    {"chat_id": 0, "parent_chat_id": -1, "timestamp": 0, "input_length": 40, "output_length": 3}
    | {"hash_ids": [5, 6, 7]},
    {"chat_id": 1, "parent_chat_id": 0, "timestamp": 31, "input_length": 64, "output_length": 9}
    | {"hash_ids": [5, 6, 8, 9]},
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["trace", *arguments])


def test_formats_are_listed() -> None:
    text = run("formats")
    found = json.loads(run("formats", "--json").stdout)
    assert list(found) == list(TRACE_FORMATS)
    assert found["bailian"]["options"]["open_loop"] is False
    assert all(name in text.stdout for name in TRACE_FORMATS)


def test_convert_writes_what_the_reader_reads(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "chats.parquet"
    done = run("convert", str(trace), str(out), "--block-size", "8", "--option", "recorded_ttft=11")
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("2 requests of which 1 wait for no other, blocks of 8 tokens\n")
    expected = read_trace(trace, block_size=8, recorded_ttft=11)
    np.testing.assert_array_equal(native.read(out).requests, expected.requests)
    again = run("convert", str(out), str(tmp_path / "again.parquet"), "--json")
    assert json.loads(again.stdout)["requests"] == 2
    np.testing.assert_array_equal(read_trace(tmp_path / "again.parquet").runs, expected.runs)


def test_what_cannot_be_converted_is_one_line(trace: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out.parquet")
    for arguments, reason in (
        ([str(trace), out, "--option", "speed=3"], "speed: no such option of the format bailian"),
        ([str(trace), out, "--option", "speed"], "--option: found 'speed', must be KEY=VALUE"),
        ([str(trace), out, "--format", "x"], "format: found 'x', must be one of native, mooncake"),
        ([str(tmp_path / "absent"), out], "No such file"),
    ):
        done = run("convert", *arguments)
        assert done.exit_code == 2
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1
    assert not Path(out).exists()


def test_fetch_lists_and_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert all(name in run("fetch").stdout for name in PUBLIC_TRACES)
    assert json.loads(run("fetch", "--json").stdout).keys() == PUBLIC_TRACES.keys()
    done = run("fetch", "nowhere")
    assert done.exit_code == 2
    assert "name: found 'nowhere', must be one of mooncake-conversation, " in done.stderr
    monkeypatch.setenv("PREFIXGYM_CACHE_DIR", str(tmp_path))
    (tmp_path / "traces").mkdir()
    kept = tmp_path / "traces" / "bailian-a.jsonl"
    kept.write_text("put there by hand")
    assert run("fetch", "bailian-a").stdout.startswith(str(kept))
    assert json.loads(run("fetch", "bailian-a", "--json").stdout)["checked"] is False
