"""A streamed trace is the whole trace, chunk by chunk."""

from pathlib import Path

import numpy as np
import pytest

from prefixgym.envs.workload import streamed_trace
from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.readers import native
from prefixgym.envs.workload.streamed_trace import StreamedTrace
from prefixgym.envs.workload.tape import NO_ROW, Tape
from prefixgym.envs.workload.trace import TraceWorkload

COPIED = ("arrival", "session", "prompt_tokens", "output_tokens", "num_blocks", "waits_for")


def chat(batched: bool) -> Tape:
    tape = MultiTurnChat(2000, Poisson(20.0), 64, closed_loop=True).tape(1)
    requests = tape.requests
    root = requests["parent"] == NO_ROW
    requests["arrival"][root] += 10**15
    if batched:
        requests["arrival"][root] -= requests["arrival"][root] % (3 * 10**12)
    return tape


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("spread", [False, True])
def test_chunks_are_the_whole_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batched: bool, spread: bool
) -> None:
    monkeypatch.setattr(streamed_trace, "CHUNK_ROWS", 150)
    path = tmp_path / "chat.parquet"
    tape = chat(batched)
    native.write([tape], path)
    streamed = StreamedTrace(path, native.read_extent(path), lambda: native.read(path), 2.5, spread)
    whole = TraceWorkload(tape, None, 2.5, spread).tape(7)
    chunks = list(streamed.chunks(7))
    assert len(chunks) > 5
    rows = np.concatenate([chunk.rows for chunk in chunks])
    assert sorted(rows.tolist()) == list(range(2000))
    requests = np.concatenate([chunk.requests for chunk in chunks])
    for name in COPIED:
        np.testing.assert_array_equal(requests[name], whole.requests[name][rows], err_msg=name)
    for chunk in chunks:
        for row in (0, len(chunk.rows) - 1):
            assert chunk.block_ids(row).tolist() == whole.block_ids(int(chunk.rows[row])).tolist()
        child = np.flatnonzero(chunk.requests["parent"] != NO_ROW)
        parents = chunk.rows[chunk.requests["parent"][child]]
        np.testing.assert_array_equal(parents, whole.requests["parent"][chunk.rows[child]])
    np.testing.assert_array_equal(streamed.tape(7).requests, whole.requests)


def test_it_tells_how_large_the_trace_is(tmp_path: Path) -> None:
    path = tmp_path / "chat.parquet"
    tape = chat(batched=False)
    native.write([tape], path)
    whole = TraceWorkload(tape)
    streamed = StreamedTrace(path, native.read_extent(path), lambda: native.read(path))
    for name in ("block_size", "num_sessions", "max_blocks"):
        assert getattr(streamed, name) == getattr(whole, name)
    roots = tape.requests["parent"] == NO_ROW
    assert streamed.extent.rows == 2000
    assert streamed.extent.last_arrival == tape.requests["arrival"][roots].max()
