"""Readers of LMCache's and Dynamo's agent calls: sessions, think times, published figures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixgym.envs.clock import TICKS_PER_MS, TICKS_PER_SECOND
from prefixgym.envs.workload.readers.dynamo_agent import read_dynamo_agent
from prefixgym.envs.workload.readers.lmcache_agent import read_lmcache_agent
from prefixgym.envs.workload.reuse import reuse
from prefixgym.envs.workload.tape import NO_ROW
from prefixgym.envs.workload.validate import validate


def lmcache(group: str, session: int, t: float, tokens: int, output: int, blocks: int) -> Any:
    runs = [[1000 * session, blocks]] if blocks else []
    row = {"group": group, "session": session, "t": t, "input_length": tokens}
    return row | {"output_length": output, "hash_runs": runs}


LMCACHE = [
    lmcache("a", 0, 0, 130, 100, 2),
    lmcache("a", 0, 2, 0, 10, 0),  # an empty prompt
    lmcache("a", 0, 3, 192, 0, 2),  # 767 characters, rounded up to three blocks of tokens
    lmcache("b", 1, 0, 70, 10, 1),
    lmcache("b", 2, 9, 70, 10, 1),
]


def test_lmcache_calls_follow_each_other(write: Callable[[Any], Path]) -> None:
    tape = read_lmcache_agent(write(LMCACHE))
    validate(tape)
    requests = tape.requests
    np.testing.assert_array_equal(requests["prompt_tokens"], [130, 70, 191, 70])
    np.testing.assert_array_equal(requests["output_tokens"], [100, 10, 1, 10])
    np.testing.assert_array_equal(requests["parent"], [NO_ROW, NO_ROW, 0, NO_ROW])
    np.testing.assert_array_equal(requests["session"], [0, 1, 0, 2])
    # A call took 0.3 s and 5 ms a token: 3 - 0.8 s are left.
    np.testing.assert_allclose(requests["arrival"] / TICKS_PER_SECOND, [0, 0, 2.2, 9])


def test_lmcache_groups_and_starts_are_chosen(write: Callable[[Any], Path]) -> None:
    path = write(LMCACHE)
    one = read_lmcache_agent(path, group="b")
    np.testing.assert_array_equal(one.requests["session"], [0, 1])
    with pytest.raises(ValueError, match="group: found 'c', must be one of a, b"):
        read_lmcache_agent(path, group="c")
    started = read_lmcache_agent(path, session_rate=100.0, open_loop=True)
    validate(started)
    seconds = started.requests["arrival"] / TICKS_PER_SECOND
    assert seconds[2] < 1
    assert seconds[3] == pytest.approx(3 + seconds[started.requests["session"] == 0][0])


def test_lmcache_calls_out_of_order_are_named(write: Callable[[Any], Path]) -> None:
    path = write([*LMCACHE, lmcache("b", 2, 8, 70, 10, 1)])
    with pytest.raises(ValueError, match=r":6: t: found 8, earlier than .* call before, on line 5"):
        read_lmcache_agent(path)


@pytest.mark.parametrize(
    ("group", "sessions", "calls", "gap", "block_hit", "token_hit", "prompt", "output"),
    [
        ("miniswe", 20, 22, 1.1, 0.937, 0.932, 3_792, 99),
        ("magagent", 25, 33, 5.6, 0.839, 0.827, 1_191, 378),
        ("taubench", 24, 20, 0.3, 0.855, 0.686, 106, 0),
    ],
)
def test_lmcache_groups_have_their_known_figures(
    traces: Path,
    group: str,
    sessions: int,
    calls: float,
    gap: float,
    block_hit: float,
    token_hit: float,
    prompt: float,
    output: float,
) -> None:
    """`traces.md` §3.2, §3.3, §3.6. There, 53 calls with an empty prompt of magagent count too."""
    path = traces / "lmcache_agent" / "requests.jsonl.gz"
    tape = read_lmcache_agent(path, group=group, open_loop=True)
    validate(tape)
    found = reuse(tape)
    assert found.block_hit == pytest.approx(block_hit, abs=0.0005)
    assert found.token_hit == pytest.approx(token_hit, abs=0.0005)
    requests = tape.requests
    per_session = np.bincount(requests["session"])
    assert len(per_session) == sessions
    empty = 53 if group == "magagent" else 0
    lengths = np.concatenate([np.zeros(empty), requests["prompt_tokens"]])
    assert np.median(lengths) == pytest.approx(prompt, abs=1)
    if not empty:
        assert np.median(per_session) == calls
        assert np.median(requests["output_tokens"]) == pytest.approx(max(1, output), abs=0.51)
        arrival = [requests["arrival"][requests["session"] == s] for s in range(sessions)]
        gaps = np.concatenate([np.diff(times) for times in arrival])
        assert np.median(gaps) / TICKS_PER_SECOND == pytest.approx(gap, abs=0.05)


def test_dynamo_calls_have_measured_think_times(traces: Path) -> None:
    path = traces / "dynamo_pi_agent" / "requests.jsonl.gz"
    tape = read_dynamo_agent(path)
    validate(tape)
    requests = tape.requests
    assert tape.block_size == 16
    assert len(requests) == 17
    assert np.count_nonzero(requests["parent"] == NO_ROW) == 5
    # Session 2's second call: 53,711 - (31,191 + 22,503.473) ms after the end of its first.
    second = int(np.flatnonzero(requests["prompt_tokens"] == 5_688)[0])
    assert requests["prompt_tokens"][requests["parent"][second]] == 4_736
    assert requests["arrival"][second] / TICKS_PER_MS == pytest.approx(16.526881)
    opened = read_dynamo_agent(path, open_loop=True)
    assert opened.requests["arrival"][second] / TICKS_PER_MS == 53_711


def dynamo(t: float, size: int, ids: list[int], **change: Any) -> Any:
    row = {"t_ms": t, "session": 1, "input_tokens": 40, "output_tokens": 3, "total_time_ms": 9}
    return row | {"block_size": size, "hash_ids": ids} | change


def test_dynamo_rows_agree_on_blocks(write: Callable[[Any], Path]) -> None:
    path = write([dynamo(0, 16, [0, 1, 2]), dynamo(5, 32, [0, 1])])
    with pytest.raises(ValueError, match=r":2: block_size: found 32, must be 16 in all rows"):
        read_dynamo_agent(path)
    with pytest.raises(ValueError, match=r":1: block_size: found 16, must be 32 in all rows"):
        read_dynamo_agent(path, trace_block_size=32)
    overlapping = read_dynamo_agent(write([dynamo(0, 16, [0, 1, 2]), dynamo(5, 16, [0, 1, 2])]))
    np.testing.assert_array_equal(overlapping.requests["parent"], [NO_ROW, 0])
    assert overlapping.requests["arrival"][1] == 0
