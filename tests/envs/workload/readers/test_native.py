"""The native format: nothing is lost, pieces are whole, and a bad file is named."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import build_tape, random_draws

from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.generators.shared_prompts import SharedPrompts
from prefixgym.envs.workload.links import walk_trees
from prefixgym.envs.workload.readers import native
from prefixgym.envs.workload.readers.registry import read_trace
from prefixgym.envs.workload.tape import NO_ROW, RUN, Tape, root_requests
from prefixgym.envs.workload.validate import validate


def assert_equal(found: Tape, expected: Tape) -> None:
    assert found.block_size == expected.block_size
    np.testing.assert_array_equal(found.requests, expected.requests)
    np.testing.assert_array_equal(found.runs, expected.runs)


def family(arrival: int, session: int) -> Tape:
    """A root, two parallel follow-ups listed last first, and one that waits for both."""
    requests = root_requests(np.full(4, 7), np.full(4, 9), np.full(4, 2), np.zeros(4, np.int64))
    requests["arrival"][0] = arrival
    requests["session"] = session
    requests["parent"] = [NO_ROW, 0, 0, 0]
    requests["first_child"][0] = 2
    requests["next_sibling"] = [NO_ROW, 3, 1, NO_ROW]
    requests["then"][1:3] = 3
    requests["waits_for"] = [0, 1, 1, 3]
    return Tape(requests, np.empty(0, RUN), 16)


def drop_joins_across_trees(tape: Tape) -> None:
    """Leave out the joins that no file can hold, as one piece might have but one of the trees."""
    requests = tape.requests
    order, root_of = np.empty((2, len(requests)), np.int64)
    walk_trees(requests, order, root_of)
    for row in np.flatnonzero(requests["then"] != NO_ROW):
        then = requests["then"][row]
        if root_of[row] != root_of[then]:
            requests["waits_for"][then] -= 1
            requests["then"][row] = NO_ROW


TRACES = [
    "mooncake_arxiv_toolagent_head1000/mooncake_trace_1000.jsonl.gz",
    "lmcache_agent/requests.jsonl.gz",
    "dynamo_pi_agent/requests.jsonl.gz",
    "azure_llm_2023/AzureLLMInferenceTrace_code.csv.gz",
]


@pytest.mark.parametrize("name", TRACES)
def test_traces_come_back_as_they_were(traces: Path, tmp_path: Path, name: str) -> None:
    tape = read_trace(traces / name)
    path = tmp_path / "trace.parquet"
    assert native.write([tape], path) == len(tape.requests)
    assert_equal(read_trace(path), tape)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.parquet"]


@pytest.mark.parametrize(
    "workload",
    [
        SharedPrompts(500, Poisson(5.0), 16, 20, None, 600, 100, 50),
        MultiTurnChat(500, Poisson(5.0), 16, closed_loop=True),
    ],
    ids=["shared prompts", "chat"],
)
def test_generated_tapes_come_back_as_they_were(tmp_path: Path, workload: Any) -> None:
    tape = workload.tape(3)
    native.write([tape], tmp_path / "tape.parquet")
    assert_equal(native.read(tmp_path / "tape.parquet"), tape)


@settings(max_examples=40)
@given(count=st.integers(1, 40), seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 50))
def test_any_tape_comes_back_whole_and_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, count: int, seed: int, rows: int
) -> None:
    tape = build_tape(random_draws(np.random.default_rng(seed), count, 4, 5, True), 4)
    drop_joins_across_trees(tape)
    path = tmp_path_factory.mktemp("native") / "tape.parquet"
    native.write([tape], path)
    assert_equal(native.read(path), tape)
    chunks = list(native.read_chunks(path, rows))
    for chunk in chunks:
        validate(chunk)
    assert sum(len(chunk.requests) for chunk in chunks) == count
    native.write(chunks, path)
    for found, expected in zip(native.read_chunks(path, rows), chunks, strict=True):
        assert_equal(found, expected)


def test_siblings_and_joins_come_back(tmp_path: Path) -> None:
    path = tmp_path / "tape.parquet"
    native.write([family(5, 0)], path)
    assert_equal(native.read(path), family(5, 0))


def test_pieces_hold_whole_trees_in_order(tmp_path: Path) -> None:
    path = tmp_path / "tape.parquet"
    families = [family(10 * number, number) for number in range(50)]
    assert native.write(iter(families), path) == 200
    whole = native.read(path)
    validate(whole)
    np.testing.assert_array_equal(whole.requests["parent"][196:], [NO_ROW, 196, 196, 196])
    for rows in (1, 4, 10, 200, 1000):
        chunks = list(native.read_chunks(path, rows))
        assert max(len(chunk.requests) for chunk in chunks) <= rows + 3 + rows
        requests = [request for chunk in chunks for request in chunk.requests]
        assert [r["session"] for r in requests] == [n for n in range(50) for _ in range(4)]
        np.testing.assert_array_equal(
            chunks[-1].requests["parent"][-4:] - NO_ROW, [0, *[len(chunks[-1].requests) - 3] * 3]
        )


def test_reading_in_pieces_holds_little(tmp_path: Path) -> None:
    """Memory by Python's count of what NumPy and Python hold, for two lengths of file."""
    import tracemalloc

    peaks = []
    for count in (20_000, 80_000):
        path = tmp_path / f"{count}.parquet"
        tape = SharedPrompts(count, Poisson(5.0), 16, 20, None, 600, 100, 50).tape(0)
        native.write([tape], path)
        del tape
        tracemalloc.start()
        assert sum(len(chunk.requests) for chunk in native.read_chunks(path, 5_000)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_smaller_blocks_keep_what_decoding_fills(tmp_path: Path) -> None:
    tape = MultiTurnChat(300, Poisson(5.0), 64, closed_loop=True).tape(1)
    path = tmp_path / "tape.parquet"
    native.write([tape], path)
    fine = native.read(path, block_size=16)
    validate(fine)
    requests, before = fine.requests, tape.requests
    ceiling = -(-before["prompt_tokens"] // 16)
    np.testing.assert_array_equal(requests["num_blocks"], ceiling)
    filled = before["cacheable_blocks"] > before["prompt_tokens"] // 64
    assert filled.any()
    np.testing.assert_array_equal(
        requests["cacheable_blocks"][filled], 4 * before["cacheable_blocks"][filled]
    )
    with pytest.raises(ValueError, match="block_size: found 24, must divide the trace's 64"):
        native.read(path, block_size=24)


def test_only_tapes_that_make_one_trace_are_written(tmp_path: Path) -> None:
    path = tmp_path / "tape.parquet"
    path.write_text("what was there")
    other = Tape(family(9, 1).requests, np.empty(0, RUN), 8)
    broken = family(9, 1)
    broken.requests["waits_for"][3] = 2
    crossing = Tape(np.concatenate([family(0, 0).requests, family(1, 1).requests]), RUN_NONE, 16)
    crossing.requests["parent"][5:] = 4
    crossing.requests["first_child"][4] = 6
    crossing.requests["next_sibling"][4:] = [NO_ROW, 7, 5, NO_ROW]
    crossing.requests["then"][1:3], crossing.requests["then"][5:7] = [3, 7], [7, 7]
    crossing.requests["waits_for"] = [0, 1, 1, 2, 0, 1, 1, 4]
    for chunks, reason in (
        ([], "no chunk to write"),
        ([family(0, 0), other], "chunk 1: block_size: found 8, must be 16 as before"),
        ([family(5, 0), family(4, 1)], "chunk 1: requests[0].arrival: found 4, must not be before"),
        ([family(0, 0), broken], "chunk 1: requests[3].waits_for: found 2, must be"),
        ([crossing], "chunk 0: requests[2].then: found 7, must stem from the same root"),
    ):
        with pytest.raises(ValueError, match=r"tape\.parquet: ") as error:
            native.write(chunks, path)
        assert str(error.value).startswith(f"{path}: {reason}")
    assert path.read_text() == "what was there"
    assert len(list(tmp_path.iterdir())) == 1


RUN_NONE = np.empty(0, RUN)

# What another program might write, and the error.
CHANGES: list[tuple[dict[str, pl.Expr], str]] = [
    ({"row": pl.lit(0, pl.Int64)}, "row: found 0 where row is 0, must be there once"),
    ({"session": pl.lit(None, pl.Int32)}, "session: found null where row is 0"),
    ({"session": pl.lit(0, pl.Int16)}, "session: found Int16, must be Int32"),
    ({"parent": pl.col("parent") + 90}, "parent: found 90 where row is 1, must be a row of"),
    ({"then": pl.col("then") + 90}, "then: found 93 where row is 1, must be a row of the same"),
    (
        {"parent": pl.when(pl.col("row") < 3).then("parent")},
        "arrival_ps: found None where row is 3, roots have",
    ),
    ({"think_ps": pl.col("think_ps").fill_null(3)}, "think_ps: found 3 where row is 0, roots have"),
    (
        {"prompt_tokens": pl.lit(0, pl.Int32)},
        "requests[0].prompt_tokens: found 0, must be at least",
    ),
    ({"arrival_ps": -pl.col("arrival_ps")}, "requests[0].arrival: found -5, must be between 0"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES, ids=[reason for _, reason in CHANGES])
def test_a_malformed_column_is_named(
    tmp_path: Path, change: dict[str, pl.Expr], reason: str
) -> None:
    path = tmp_path / "tape.parquet"
    native.write([family(5, 0)], path)
    metadata = {"prefixgym.trace": json.dumps({"version": 1, "block_size": 16})}
    pl.read_parquet(path).with_columns(**change).write_parquet(path, metadata=metadata)
    for read in (native.read, lambda path: list(native.read_chunks(path, 3))):
        with pytest.raises(ValueError, match=r"tape\.parquet: ") as error:
            read(path)
        assert str(error.value).startswith(f"{path}: {reason}")


def test_other_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tape.parquet"
    native.write([family(5, 0)], path)
    frame, whole = pl.read_parquet(path), path.read_bytes()
    key = "prefixgym.trace"
    for about, reason in (
        ({}, "metadata: no prefixgym.trace, this is not a trace of prefixgym"),
        ({key: "{"}, "metadata: prefixgym.trace: found '{', must be JSON with version and"),
        ({key: "[1]"}, "metadata: prefixgym.trace: found '[1]', must be JSON"),
        ({key: '{"version": 2, "block_size": 16}'}, "metadata: version: found 2, must be 1"),
        (
            {key: '{"version": 1, "block_size": 0}'},
            "metadata: block_size: found 0, must be between",
        ),
    ):
        frame.write_parquet(path, metadata=about)
        with pytest.raises(ValueError, match="metadata") as error:
            native.read(path)
        assert str(error.value).startswith(f"{path}: {reason}")
    frame.drop("then").write_parquet(path, metadata={key: '{"version": 1, "block_size": 16}'})
    with pytest.raises(ValueError, match=r"tape\.parquet: then: missing, found columns row, arr"):
        native.read(path)
    frame[:0].write_parquet(path, metadata={key: '{"version": 1, "block_size": 16}'})
    with pytest.raises(ValueError, match=r"tape\.parquet: found 0 requests"):
        native.read(path)
    for damaged in (whole[:4], whole[:100], whole[:-30], whole[:4] + bytes(len(whole) - 4)):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"tape\.parquet: Parquet: damaged or cut off"):
            native.read(path)
    path.write_bytes(b"PARK")
    with pytest.raises(ValueError, match=r"tape\.parquet: not a Parquet file, must begin with"):
        native.read(path)


def test_the_page_describes_the_file(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (repository / "docs" / "trace-format.md").read_text(encoding="utf-8")
    columns = re.findall(r"^\| `(\w+)` \| (?:int|list)", page, re.MULTILINE)
    assert columns == list(native.SCHEMA)
    code = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[-1]
    monkeypatch.chdir(tmp_path)
    exec(code, {"native": native})
    tape = native.read("two.parquet")
    assert tape.requests["parent"].tolist() == [NO_ROW, 0]
    native.write([tape], "again.parquet")
    assert_equal(native.read("again.parquet"), tape)
