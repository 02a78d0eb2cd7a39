"""Reader of Mooncake's format: figures of the published traces, splitting, and malformed files."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.workload.readers.mooncake import read_mooncake
from prefixgym.envs.workload.reuse import Reuse, reuse
from prefixgym.envs.workload.validate import validate

Row = dict[str, Any]

# Blocks of 4 tokens: prompts of 10, 10 (the same), 9 and 4 tokens.
ROWS: list[Row] = [
    {"timestamp": 0, "input_length": 10, "output_length": 3, "hash_ids": [0, 1, 2]},
    {"timestamp": 5, "input_length": 10, "output_length": 1, "hash_ids": [0, 1, 2]},
    {"timestamp": 5, "input_length": 9, "output_length": 7, "hash_ids": [0, 1, 7]},
    {"timestamp": 9.5, "input_length": 4, "output_length": 2, "hash_ids": [4]},
]


def write(folder: Path, rows: list[Row | str]) -> Path:
    """A trace file of `rows`; a string is a line as it stands."""
    path = folder / "trace.jsonl"
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return path


def test_rows_become_requests(tmp_path: Path) -> None:
    tape = read_mooncake(write(tmp_path, [*ROWS]))
    validate(tape)
    assert tape.block_size == 4
    requests = tape.requests
    assert list(requests["arrival"]) == [0, 5 * TICKS_PER_MS, 5 * TICKS_PER_MS, 9_500_000_000]
    assert list(requests["prompt_tokens"]) == [10, 10, 9, 4]
    assert list(requests["output_tokens"]) == [3, 1, 7, 2]
    assert list(requests["num_blocks"]) == [3, 3, 3, 1]
    assert list(requests["cacheable_blocks"]) == [2, 2, 2, 1]
    assert list(requests["session"]) == [0, 1, 2, 3]
    assert [list(tape.block_ids(row)) for row in range(4)] == [r["hash_ids"] for r in ROWS]
    assert len(tape.runs) == 5


def test_coarse_blocks_split_into_fine_ones(tmp_path: Path) -> None:
    tape = read_mooncake(write(tmp_path, [*ROWS]), block_size=2)
    validate(tape)
    assert tape.block_size == 2
    assert [list(tape.block_ids(row)) for row in range(4)] == [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 14],
        [8, 9],
    ]
    assert list(tape.requests["num_blocks"]) == [5, 5, 5, 2]
    assert list(tape.requests["cacheable_blocks"]) == [5, 5, 4, 2]
    with pytest.raises(ValueError, match="block_size: found 3, must divide the trace's 4"):
        read_mooncake(write(tmp_path, [*ROWS]), block_size=3)
    with pytest.raises(ValueError, match="block_size: found 8, must be between 1 and 4"):
        read_mooncake(write(tmp_path, [*ROWS]), block_size=8)


def test_rows_are_selected_and_start_at_zero(tmp_path: Path) -> None:
    path = write(tmp_path, ["", *ROWS, "  ", "not read"])
    tape = read_mooncake(path, start=1, stop=4)
    validate(tape)
    assert list(tape.requests["arrival"] / TICKS_PER_MS) == [0, 0, 4.5]
    assert list(tape.block_ids(1)) == [0, 1, 7]
    path = write(tmp_path, [*ROWS])
    for start, stop in ((4, None), (0, 5)):
        with pytest.raises(ValueError, match=r"trace\.jsonl: found 4 rows, too few for start"):
            read_mooncake(path, start=start, stop=stop)
    with pytest.raises(ValueError, match="stop: found 2, must be between 3"):
        read_mooncake(path, start=2, stop=2)


def test_block_size_is_inferred_or_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, [ROWS[0]])  # ceil(10 / 4) = 3
    assert read_mooncake(path).block_size == 4
    path = write(tmp_path, [ROWS[3]])  # one id for 4 tokens: any size from 4 on
    with pytest.raises(ValueError, match=r"trace_block_size: not given, .* allow 4 to 1073741823"):
        read_mooncake(path)
    assert read_mooncake(path, trace_block_size=512).block_size == 512


BREAKS: list[tuple[Row | str, str]] = [
    ({"timestamp": None}, "timestamp: found None, must be a number"),
    ({"timestamp": "7"}, "timestamp: found '7', must be a number"),
    ({"timestamp": -1}, "timestamp: found -1, must be between 0"),
    ({"timestamp": float("nan")}, "timestamp: found nan, must be between 0"),
    ({"timestamp": float("inf")}, "timestamp: found inf, must be between 0"),
    ({"timestamp": 10**12}, "timestamp: found 1000000000000, must be between 0"),
    ({"timestamp": 1}, "timestamp: found 1 ms after 5 ms, rows must be sorted"),
    ({"input_length": 0}, "input_length: found 0, must be between 1"),
    ({"input_length": -4}, "input_length: found -4, must be between 1"),
    ({"input_length": 2**31}, "input_length: found 2147483648, must be between 1"),
    ({"input_length": 10.0}, "input_length: found 10.0, must be a whole number"),
    ({"input_length": True}, "input_length: found True, must be a whole number"),
    ({"output_length": 0}, "output_length: found 0, must be between 1"),
    ({"output_length": "3"}, "output_length: found '3', must be a whole number"),
    ({"output_length": float("inf")}, "output_length: found inf, must be a whole number"),
    ({"hash_ids": "0 1 2"}, "hash_ids: found '0 1 2', must be a list"),
    ({"hash_ids": []}, "hash_ids: found none, must cover input_length 10"),
    ({"hash_ids": [0, 1, -2]}, "hash_ids[2]: found -2, must be between 0"),
    ({"hash_ids": [0, 1, 2.0]}, "hash_ids[2]: found 2.0, must be a whole number"),
    ({"hash_ids": [0, 1, None]}, "hash_ids[2]: found None, must be a whole number"),
    ({"hash_ids": [0, 1, 2**63]}, "hash_ids[2]: found 9223372036854775808, must be between 0"),
    ({"hash_ids": [0, 1]}, "hash_ids: found 2 ids for input_length 10, must be one for each"),
    ({"hash_ids": [0, 1, 2, 3]}, "hash_ids: found 4 ids for input_length 10, must be one for"),
    ({"hash_ids": [0, 1, 1]}, "hash_ids: found id 1 after id 1, but after id 0 on line 1"),
    ({"hash_ids": [0, 9, 2]}, "hash_ids: found id 2 after id 9, but after id 1 on line 1"),
    ({"hash_ids": [1, 8, 9]}, "hash_ids: found id 1 after no other id, but after id 0 on line 1"),
    ('{"timestamp": 6, "input_le', "not JSON, or cut off (Unterminated string starting at, column"),
    ("[" * 100_000, "not JSON of a request ("),
    ('{"timestamp": ' + "9" * 5000 + "}", "not JSON of a request ("),
    ("", "found 2 rows"),
    ("[1, 2]", "found '[1, 2]', must be a JSON object"),
    ("{}", "timestamp: missing, found keys none"),
]


@pytest.mark.parametrize(("change", "reason"), BREAKS, ids=[reason for _, reason in BREAKS])
def test_a_malformed_row_is_named_by_file_line_and_key(
    tmp_path: Path, change: Row | str, reason: str
) -> None:
    row = change if isinstance(change, str) else {**ROWS[0], "timestamp": 6, **change}
    path = write(tmp_path, [*ROWS[:2], row])
    with pytest.raises(ValueError, match=r"trace\.jsonl:") as error:
        read_mooncake(path, stop=3)
    place = f"{path}:" if row == "" else f"{path}:3:"
    assert str(error.value).startswith(f"{place} {reason}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["timestamp", "input_length", "output_length", "hash_ids"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    row = {name: value for name, value in ROWS[2].items() if name != key}
    with pytest.raises(ValueError, match=rf"trace\.jsonl:2: {key}: missing, found keys "):
        read_mooncake(write(tmp_path, [ROWS[0], row]))


def test_a_block_size_that_does_not_fit_is_named_by_row(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"trace\.jsonl:1: .* must be 2 of 5 tokens each"):
        read_mooncake(write(tmp_path, [*ROWS]), trace_block_size=5)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    text = "".join(json.dumps(row) + "\n" for row in ROWS * 1)
    packed = gzip.compress(text.encode())
    path = tmp_path / "trace.jsonl.gz"

    path.write_bytes(packed)
    assert len(read_mooncake(path).requests) == 4
    path.write_bytes(packed[:-12])
    with pytest.raises(ValueError, match=r"trace\.jsonl\.gz:\d: gzip: damaged or cut off"):
        read_mooncake(path)
    path.write_bytes(text.encode())
    with pytest.raises(ValueError, match=r"trace\.jsonl\.gz:1: gzip: damaged or cut off"):
        read_mooncake(path)
    path.write_bytes(packed[:20] + bytes(20) + packed[40:])
    with pytest.raises(ValueError, match=r"trace\.jsonl\.gz:\d: gzip: damaged or cut off"):
        read_mooncake(path)
    plain = tmp_path / "trace.jsonl"
    plain.write_bytes(text.encode() + b"\xff\xfe\n")
    with pytest.raises(ValueError, match=r"trace\.jsonl:5: not UTF-8"):
        read_mooncake(plain)
    plain.write_bytes(b"\n\n")
    with pytest.raises(ValueError, match=r"trace\.jsonl: found 0 rows"):
        read_mooncake(plain)
    with pytest.raises(FileNotFoundError, match="absent"):
        read_mooncake(tmp_path / "absent.jsonl")


PUBLISHED = {
    # `traces.md` §3.2 and §3.3, to the digits printed there.
    "mooncake_conversation/conversation_trace.jsonl.gz": (
        (12_031, 288_500, 182_790),
        Reuse(
            12_031,
            12_035,
            343,
            288_500,
            182_790,
            0.366,
            0.374,
            0.398,
            0.409,
            0.0,
            (1, 25, 106),
            0.759,
        ),
    ),
    "mooncake_synthetic/synthetic_trace.jsonl.gz": (
        (3_993, 121_877, 43_924),
        Reuse(
            3_993,
            15_325,
            149,
            121_877,
            43_924,
            0.640,
            0.651,
            0.863,
            0.432,
            0.55,
            (0, 70, 121),
            0.585,
        ),
    ),
    "mooncake_arxiv_toolagent_head1000/mooncake_trace_1000.jsonl.gz": (
        (1_000, 19_686, 12_207),
        Reuse(
            1_000, 9_792, 199, 19_686, 12_207, 0.380, 0.391, 0.467, 0.572, 0.003, (5, 12, 41), 0.855
        ),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_traces_have_the_published_figures(traces: Path, name: str) -> None:
    tape = read_mooncake(traces / name)
    validate(tape)
    assert tape.block_size == 512
    found = reuse(tape)
    counts, expected = PUBLISHED[name]
    assert (found.requests, found.blocks, found.unique_blocks) == counts
    for field in ("prompt_tokens", "output_tokens"):
        assert getattr(found, field) == pytest.approx(getattr(expected, field), abs=0.5)
    for field in ("block_hit", "token_hit", "token_hit_second_half", "request_hit"):
        assert getattr(found, field) == pytest.approx(getattr(expected, field), abs=0.0006), field
    without = expected.requests_without_hit
    assert found.requests_without_hit == pytest.approx(without, abs=0.006)
    assert found.hit_depth == pytest.approx(expected.hit_depth, abs=0.5)
    assert found.blocks_used_once == pytest.approx(expected.blocks_used_once, abs=0.0006)


def test_splitting_a_real_trace_keeps_its_sharing(traces: Path) -> None:
    path = traces / "mooncake_synthetic" / "synthetic_trace.jsonl.gz"
    coarse, fine = read_mooncake(path), read_mooncake(path, block_size=16)
    validate(fine)
    np.testing.assert_array_equal(
        fine.requests["num_blocks"], -(-coarse.requests["prompt_tokens"] // 16)
    )
    assert reuse(fine).token_hit == pytest.approx(reuse(coarse).token_hit, abs=1e-9)
