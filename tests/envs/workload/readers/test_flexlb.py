"""Reader of FlexLB's logs: full blocks only, failed requests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.workload.readers.flexlb import read_flexlb
from prefixgym.envs.workload.validate import validate


def request(ts: float, il: int, ol: int, bh: list[int], pep: str = "prefill0") -> dict[str, Any]:
    return {"ts": ts, "il": il, "ol": ol, "cached": 0, "pep": pep, "bh": bh}


# Stamps as of 2025; the second and third failed, the last but one has less than a block.
EPOCH = 1_760_000_000_000
ROWS = [
    request(EPOCH + 5, 2100, 10, [0, 1]),
    request(EPOCH + 5, 3000, 0, [0, 1]),
    request(EPOCH + 6, 1500, 40, [0], "prefill-1"),
    request(EPOCH + 9.5, 700, 3, []),
    request(EPOCH + 8, 2048, 1, [0, 2]),
]


def test_rows_become_requests(write: Callable[[Any], Path]) -> None:
    tape = read_flexlb(write(ROWS))
    validate(tape)
    assert tape.block_size == 1024
    np.testing.assert_array_equal(tape.requests["prompt_tokens"], [2100, 2048, 700])
    np.testing.assert_allclose(tape.requests["arrival"] / TICKS_PER_MS, [0, 3, 4.5])
    np.testing.assert_array_equal(tape.requests["num_blocks"], [2, 2, 0])
    assert [tape.block_ids(row).tolist() for row in range(3)] == [[0, 1], [0, 2], []]
    np.testing.assert_array_equal(tape.requests["session"], [0, 2, 1])


def test_failed_requests_can_be_kept(write: Callable[[Any], Path]) -> None:
    tape = read_flexlb(write(ROWS), keep_failed=True)
    validate(tape)
    np.testing.assert_array_equal(tape.requests["prompt_tokens"], [2100, 3000, 1500, 2048, 700])
    np.testing.assert_array_equal(tape.requests["output_tokens"], [10, 1, 40, 1, 3])


def test_smaller_blocks_have_ids_beyond_the_full_ones(write: Callable[[Any], Path]) -> None:
    tape = read_flexlb(write(ROWS), block_size=512)
    validate(tape)
    np.testing.assert_array_equal(tape.requests["num_blocks"], [4, 4, 1])
    assert tape.block_ids(0).tolist() == [0, 1, 2, 3]
    assert tape.block_ids(1).tolist() == [0, 1, 4, 5]
    assert tape.block_ids(2)[0] > 5


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ts": "now"}, "ts: found 'now', must be a number (ms)"),
    ({"il": 0}, "il: found 0, must be between 1"),
    ({"ol": -1}, "ol: found -1, must be between 0"),
    ({"bh": [0]}, "bh: found 1 ids for il 2048, must be 2 of 1024 tokens each, full ones only"),
    ({"bh": [1, 0]}, "bh: found id 1 after no other id, but after id 0 on line 1"),
]


@pytest.mark.parametrize(("change", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_a_malformed_row_is_named(
    write: Callable[[Any], Path], change: dict[str, Any], reason: str
) -> None:
    path = write([*ROWS[:4], ROWS[4] | change])
    with pytest.raises(ValueError, match=r"trace\.jsonl:5: ") as error:
        read_flexlb(path)
    assert str(error.value).startswith(f"{path}:5: {reason}")


def test_stamps_too_far_apart_are_named(write: Callable[[Any], Path]) -> None:
    path = write([request(5, 700, 3, []), *ROWS])
    with pytest.raises(ValueError, match=r"trace\.jsonl:5: its time is 1\.76e\+09 s after the f"):
        read_flexlb(path)


def test_a_log_of_failures_alone_is_refused(write: Callable[[Any], Path]) -> None:
    with pytest.raises(ValueError, match=r"trace\.jsonl: found 0 requests, must be at least 1"):
        read_flexlb(write(ROWS[1:3]))
