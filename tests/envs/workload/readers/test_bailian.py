"""Reader of Bailian chats: parents, think times, chained ids."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.workload.readers.bailian import read_bailian
from prefixgym.envs.workload.tape import NO_ROW
from prefixgym.envs.workload.validate import validate

Row = dict[str, Any]


def chat(number: int, parent: int, time: float, tokens: int, output: int, ids: list[int]) -> Row:
    return {
        "chat_id": number,
        "parent_chat_id": parent,
        "timestamp": time,
        "input_length": tokens,
        "output_length": output,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
    }


ROWS = [
    chat(7, -1, 1.5, 40, 100, [5, 6, 7]),
    chat(3, -1, 2.0, 16, 0, [5]),
    chat(9, 7, 31.5, 64, 10, [5, 6, 8, 9]),
    chat(8, 7, 32.5, 33, 10, [5, 6, 10]),
    chat(4, 999, 40.0, 16, 1, [5]),
    chat(5, 9, 31.5, 80, 1, [5, 6, 8, 9, 11]),
]


def test_turns_follow_each_other(write: Callable[[Any], Path]) -> None:
    tape = read_bailian(write(ROWS))
    validate(tape)
    requests = tape.requests
    assert tape.block_size == 16
    # By time: 7, 3, 9, 5, 8, 4. The parent of 4 is not there.
    np.testing.assert_array_equal(requests["prompt_tokens"], [40, 16, 64, 80, 33, 16])
    np.testing.assert_array_equal(requests["output_tokens"], [100, 1, 10, 1, 10, 1])
    np.testing.assert_array_equal(requests["parent"], [NO_ROW, NO_ROW, 0, 2, 0, NO_ROW])
    sessions = requests["session"]
    assert sessions[0] == sessions[2] == sessions[3] == sessions[4]
    assert len({sessions[0], sessions[1], sessions[5]}) == 3
    # A call took 1 s and 20 ms a token: 30 - 3 and 31 - 3 s are left of the gaps; of 0 s, nothing.
    seconds = requests["arrival"] / TICKS_PER_SECOND
    np.testing.assert_allclose(seconds, [0, 0.5, 27, 0, 28, 38.5])
    np.testing.assert_array_equal(requests["num_blocks"], [3, 1, 4, 5, 3, 1])
    np.testing.assert_array_equal(requests["cacheable_blocks"], [2, 1, 4, 5, 2, 1])


def test_the_speed_of_the_recorded_service_is_an_assumption(write: Callable[[Any], Path]) -> None:
    requests = read_bailian(write(ROWS), recorded_ttft=0, recorded_tpot=0.1).requests
    np.testing.assert_allclose(requests["arrival"][2:5] / TICKS_PER_SECOND, [20, 0, 21])
    with pytest.raises(ValueError, match="recorded_tpot: found -1, must be finite and at least 0"):
        read_bailian(write(ROWS), recorded_tpot=-1)


def test_an_open_loop_has_the_recorded_times(write: Callable[[Any], Path]) -> None:
    requests = read_bailian(write(ROWS), open_loop=True).requests
    np.testing.assert_allclose(requests["arrival"] / TICKS_PER_SECOND, [0, 0.5, 30, 30, 31, 38.5])
    assert set(requests["parent"]) == {NO_ROW}


def test_ids_that_name_contents_become_ids_of_prefixes(write: Callable[[Any], Path]) -> None:
    rows = [
        chat(1, -1, 0, 48, 1, [5, 6, 5]),
        chat(2, -1, 1, 32, 1, [6, 5]),
        chat(3, -1, 2, 48, 1, [5, 6, 6]),
    ]
    tape = read_bailian(write(rows))
    validate(tape)
    first, second, third = (tape.block_ids(row).tolist() for row in range(3))
    assert first[:2] == third[:2]
    assert len({*first, *second, *third}) == 6


WRONG = [
    ({"chat_id": 7}, "chat_id: found 7 again, line 1 has it; must be unique"),
    ({"parent_chat_id": -2}, "parent_chat_id: found -2, must be between -1"),
    ({"timestamp": 0.5}, "timestamp: found 0.5, earlier than that of its parent on line 1"),
    ({"output_length": None}, "output_length: found None, must be a whole number"),
    ({"hash_ids": [5]}, "hash_ids: found 1 ids for input_length 64, must be 4 of 16 tokens each"),
]


@pytest.mark.parametrize(("change", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_a_malformed_row_is_named(write: Callable[[Any], Path], change: Row, reason: str) -> None:
    path = write([*ROWS[:2], ROWS[2] | change])
    with pytest.raises(ValueError, match=r"trace\.jsonl:3: ") as error:
        read_bailian(path)
    assert str(error.value).startswith(f"{path}:3: {reason}")
