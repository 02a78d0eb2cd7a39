"""Reader of Claude Code sessions: sub-agents, joins, think times, starts; the corpus's figures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.workload.readers import native
from prefixgym.envs.workload.readers.claude_code import read_claude_code
from prefixgym.envs.workload.reuse import reuse
from prefixgym.envs.workload.statistics.lru_curve import lru_curve
from prefixgym.envs.workload.statistics.prompt_segments import prompt_segments
from prefixgym.envs.workload.statistics.timeline import timeline
from prefixgym.envs.workload.tape import NO_ROW, Tape
from prefixgym.envs.workload.validate import validate

Row = dict[str, Any]


def call(agent: str, t: float, api: float | None, think: float | None, *runs: list[int]) -> Row:
    """A call of session "s" whose prompt ends in half a block."""
    row: Row = {
        "session": "s",
        "agent": agent,
        "t": t,
        "input_length": 64 * sum(count for _, count in runs) + 32,
        "output_length": 5,
        "hash_runs": list(runs),
    }
    times = {"api_time": api, "think_time": think}
    return row | {key: value for key, value in times.items() if value is not None}


def meta(*spawns: Row) -> Row:
    return {"session": "s", "meta": 1, "spawns": list(spawns)}


# The main agent starts two sub-agents at 11 and 12 s, which end at 56 and 102 s, and goes on at
# 115 s; a third one, in the background, lasts from 118 to 148 s and is not waited for.
SESSION = [
    call("main", 0, 10, 0, [0, 2]),
    call("one", 60, 20, 0, [100, 1]),
    call("one", 85, 20, 5, [100, 2]),
    call("two", 111, 90, 0, [200, 3]),
    call("main", 115, 2, 105, [0, 2], [300, 1]),
    call("three", 148, 30, 0, [100, 1], [400, 1]),
    call("main", 120, 6, 3, [0, 2], [300, 2]),
    meta(
        {"marker": "one", "t": 60, "duration_ms": 49_000},
        {"marker": "two", "t": 111, "duration_ms": 99_000},
        {"marker": "three", "t": 148, "duration_ms": 30_000},
    ),
]


def test_sub_agents_run_beside_each_other_and_the_main_agent_waits(
    write: Callable[[Any], Path],
) -> None:
    tape = read_claude_code(write(SESSION))
    validate(tape)
    requests = tape.requests
    # By recorded time: main, one, two, one, main, three, main.
    np.testing.assert_array_equal(requests["prompt_tokens"] // 64, [2, 1, 3, 2, 3, 2, 4])
    np.testing.assert_array_equal(requests["parent"], [NO_ROW, 0, 0, 1, 0, 4, 4])
    np.testing.assert_array_equal(requests["then"], [NO_ROW, NO_ROW, 4, 4, NO_ROW, NO_ROW, NO_ROW])
    np.testing.assert_array_equal(requests["waits_for"], [0, 1, 1, 1, 3, 1, 1])
    # The main agent's second call comes 115 - 102 s after the last end.
    seconds = requests["arrival"] / TICKS_PER_SECOND
    np.testing.assert_allclose(seconds, [0, 1, 2, 5, 13, 1, 3])
    assert set(requests["session"]) == {0}
    assert set(requests["slo_class"]) == {0}
    np.testing.assert_array_equal(tape.block_ids(4), [0, 1, 300])
    np.testing.assert_array_equal(requests["num_blocks"], requests["prompt_tokens"] // 64)
    np.testing.assert_array_equal(requests["num_blocks"], requests["cacheable_blocks"])


def test_an_open_loop_has_the_recorded_times(write: Callable[[Any], Path]) -> None:
    tape = read_claude_code(write(SESSION), open_loop=True)
    validate(tape)
    seconds = tape.requests["arrival"] / TICKS_PER_SECOND
    np.testing.assert_allclose(seconds, [0, 11, 12, 36, 115, 118, 120])
    assert set(tape.requests["parent"]) == {NO_ROW}
    assert set(tape.requests["waits_for"]) == {0}


def test_what_a_row_leaves_out_follows_from_the_stamps(write: Callable[[Any], Path]) -> None:
    rows = [
        call("main", 0, None, None, [0, 1]),
        call("main", 7, 2, None, [0, 2]),
        call("main", 20, 2, None, [0, 3]),
        call("lone", 20, 2, None, [9, 1]),
        meta({"marker": "lone", "t": 20, "duration_ms": None}),
    ]
    requests = read_claude_code(write(rows)).requests
    np.testing.assert_allclose(requests["arrival"] / TICKS_PER_SECOND, [0, 7, 11, 11])
    np.testing.assert_array_equal(requests["parent"], [NO_ROW, 0, 1, 1])
    assert set(requests["then"]) == {NO_ROW}


def test_long_thoughts_can_be_cut(write: Callable[[Any], Path]) -> None:
    requests = read_claude_code(write(SESSION), max_think=4).requests
    np.testing.assert_allclose(requests["arrival"] / TICKS_PER_SECOND, [0, 1, 2, 4, 4, 1, 3])


def test_sessions_start_as_asked(write: Callable[[Any], Path]) -> None:
    path = write([row | {"session": str(s)} for s in range(200) for row in SESSION[:1]])
    together = read_claude_code(path)
    assert set(together.requests["arrival"]) == {0}
    apart = read_claude_code(path, session_rate=0.5, seed=3)
    validate(apart)
    assert apart.requests["arrival"][-1] / TICKS_PER_SECOND == pytest.approx(400, rel=0.2)
    again = read_claude_code(path, session_rate=0.5, seed=3)
    np.testing.assert_array_equal(apart.requests, again.requests)
    other = read_claude_code(path, session_rate=0.5, seed=4)
    assert (apart.requests["arrival"] != other.requests["arrival"]).any()


def test_smaller_blocks_share_what_is_named(write: Callable[[Any], Path]) -> None:
    tape = read_claude_code(write(SESSION), block_size=16)
    validate(tape)
    # A prompt of 2.5 blocks has 10 small ones, the last two with ids of their own.
    assert tape.requests["num_blocks"][0] == 10
    first, last = tape.block_ids(0), tape.block_ids(6)
    np.testing.assert_array_equal(first[:8], range(8))
    np.testing.assert_array_equal(last[:8], range(8))
    tails = [tape.block_ids(row)[-2:].tolist() for row in range(7)]
    assert len({block for tail in tails for block in tail}) == 14


WRONG = [
    ({"t": -1}, "t: found -1, must be between 0"),
    ({"t": 50}, "t: found 50, earlier than that of the agent's call before, on line 7"),
    ({"think_time": "3"}, "think_time: found '3', must be a number"),
    ({"api_time": float("inf")}, "api_time: found inf, must be between 0"),
    ({"agent": 1.5}, "agent: found 1.5, must be a string or a whole number"),
    ({"input_length": 400}, "hash_runs: found 4 ids for input_length 400, must be 6 of 64 tokens"),
    ({"hash_runs": [[0, 2], [300]]}, "hash_runs[1]: found [300], must be [start, count]"),
    ({"hash_runs": [[0, 4.0]]}, "hash_runs[0]: count: found 4.0, must be a whole number"),
    ({"hash_runs": [[0, 3], [301, 1]]}, "hash_runs: found id 301 after id 2, but after id 300"),
    ({"meta": 1}, "spawns: missing, found keys session, agent"),
    ({"meta": 1, "spawns": [{"marker": 3}]}, "spawns[0].marker: found 3, must be a string"),
    (
        {"meta": 1, "spawns": [{"marker": "one", "duration_ms": -4}]},
        "spawns[0].duration_ms: found -4, must be between 0",
    ),
]


@pytest.mark.parametrize(("change", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_a_malformed_row_is_named(write: Callable[[Any], Path], change: Row, reason: str) -> None:
    later = call("main", 130, 6, 3, [0, 2], [300, 2])
    path = write([*SESSION[:7], later | change, *SESSION[7:]])
    with pytest.raises(ValueError, match=r"trace\.jsonl:8: ") as error:
        read_claude_code(path)
    assert str(error.value).startswith(f"{path}:8: {reason}")


@pytest.fixture(scope="module")
def corpus(traces: Path) -> tuple[Tape, Tape]:
    """The published sessions, all started at once: closed and open loop."""
    path = traces / "claude_code_v8_local" / "requests.jsonl.gz"
    if not path.exists():
        pytest.skip(f"needs {path}")
    return read_claude_code(path), read_claude_code(path, open_loop=True)


def test_the_corpus_has_its_known_figures(corpus: tuple[Tape, Tape]) -> None:
    """`traces.md` §3.2, §3.3, §3.6."""
    closed, opened = corpus
    validate(closed)
    validate(opened)
    requests = closed.requests
    found = reuse(closed)
    assert found.requests == 49_334
    assert found.blocks / 1e6 == pytest.approx(94.31, abs=0.005)
    assert found.unique_blocks / 1e6 == pytest.approx(3.451, abs=0.0005)
    assert found.block_hit == pytest.approx(0.963, abs=0.0005)
    assert found.token_hit == pytest.approx(0.963, abs=0.0005)
    assert found.prompt_tokens == pytest.approx(122_379, abs=0.5)
    assert found.output_tokens == pytest.approx(440, abs=0.5)
    quantiles = [10, 50, 90, 99]
    np.testing.assert_allclose(
        np.percentile(requests["prompt_tokens"], quantiles),
        [42_420, 103_659, 233_633, 498_519],
        atol=0.5,
    )
    np.testing.assert_allclose(
        np.percentile(requests["output_tokens"], quantiles), [105, 216, 898, 3_686], atol=0.5
    )
    calls = np.bincount(requests["session"])
    assert len(calls) == 710
    np.testing.assert_allclose(
        np.percentile(calls, [50, 90, 99, 100]), [46, 157, 341, 561], atol=0.51
    )
    # As recorded p50 10 s, p90 162 s; but those after a call without `api_time` count from an
    # earlier call, and the gap between the stamps bounds them.
    think = requests["arrival"][requests["parent"] != NO_ROW] / TICKS_PER_SECOND
    assert np.median(think) == 10
    assert np.percentile(think, 90) == pytest.approx(117, rel=0.02)
    gaps = [
        np.diff(np.sort(opened.requests["arrival"][opened.requests["session"] == session]))
        for session in range(710)
    ]
    np.testing.assert_allclose(
        np.percentile(np.concatenate(gaps) / TICKS_PER_SECOND, [10, 50, 80, 90, 99]),
        [8, 17, 49, 129, 2_134],
        atol=1,
    )


def test_the_corpus_has_its_known_sub_agents(corpus: tuple[Tape, Tape]) -> None:
    """63 in 17 sessions: 4 have no duration, 2 no main call after them, 57 are waited for."""
    requests = corpus[0].requests
    assert np.count_nonzero(requests["parent"] == NO_ROW) == 710
    waited_for = requests["then"] != NO_ROW
    assert np.count_nonzero(waited_for) == 57
    assert len(set(requests["session"][waited_for])) == 16
    # Their first calls came 0.1 to 1.1 s after the call that started them.
    joins = np.unique(requests["then"][waited_for])
    assert requests["waits_for"][joins].sum() == len(joins) + 57
    think = requests["arrival"] / TICKS_PER_SECOND
    spawners = requests["parent"][joins]
    first = np.isin(requests["parent"], spawners) & ~np.isin(np.arange(len(think)), joins)
    assert np.count_nonzero(first) == 57
    assert think[first].min() > 0.08
    assert think[first].max() < 1.1


def test_the_corpus_has_its_known_lru_curve(corpus: tuple[Tape, Tape]) -> None:
    """`traces.md` §3.4, all sessions started at once."""
    known = {
        1_000: 0.012,
        10_000: 0.084,
        30_000: 0.158,
        50_000: 0.257,
        100_000: 0.454,
        300_000: 0.779,
    }
    line = timeline(corpus[1])
    curve = lru_curve(line, prompt_segments(line.tape), tuple(known))
    np.testing.assert_allclose(curve.block_hit[: len(known)], list(known.values()), atol=0.0016)


def test_the_corpus_comes_back_from_the_native_format(
    corpus: tuple[Tape, Tape], tmp_path: Path
) -> None:
    for tape in corpus:
        native.write([tape], tmp_path / "corpus.parquet")
        found = native.read(tmp_path / "corpus.parquet")
        np.testing.assert_array_equal(found.requests, tape.requests)
        np.testing.assert_array_equal(found.runs, tape.runs)
