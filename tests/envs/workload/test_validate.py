"""A tape that breaks the contract in one place is refused, and the place is named."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.tape import RUN, Tape, root_requests
from prefixgym.envs.workload.validate import validate


def closed_chat() -> Tape:
    """40 rows with follow-ups; rows 0 … have at least two blocks of 16 tokens."""
    return MultiTurnChat(
        40, Poisson(50.0), 16, turns=4, think_time=0.2, system_tokens=100, closed_loop=True
    ).tape(0)


def parent_with_child(tape: Tape) -> int:
    return int(np.flatnonzero(tape.requests["first_child"] >= 0)[0])


def orphan(tape: Tape) -> None:
    tape.requests["first_child"][parent_with_child(tape)] = -1


def foreign_child(tape: Tape) -> None:
    tape.requests["first_child"][-1] = tape.requests["first_child"][parent_with_child(tape)]


def circle(tape: Tape) -> None:
    child = tape.requests["first_child"][parent_with_child(tape)]
    tape.requests["next_sibling"][child] = child


def join_root(tape: Tape) -> None:
    tape.requests["then"][0] = np.flatnonzero(tape.requests["parent"] == -1)[1]


def joined(tape: Tape) -> None:
    tape.requests["then"][0] = np.flatnonzero(tape.requests["parent"] > 0)[0]


def late_root(tape: Tape) -> None:
    roots = np.flatnonzero(tape.requests["parent"] == -1)
    tape.requests["arrival"][roots[2]] = 0


def put(field: str, value: int, row: int = 3) -> Callable[[Tape], None]:
    def change(tape: Tape) -> None:
        tape.requests[field][row] = value

    return change


def put_run(field: str, value: int, run: int = 3) -> Callable[[Tape], None]:
    def change(tape: Tape) -> None:
        tape.runs[field][run] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("prompt_tokens", 0), r"requests\[3\]\.prompt_tokens: found 0, must be at least 1"),
        (put("output_tokens", -2), r"requests\[3\]\.output_tokens: found -2, must be at least 1"),
        (put("session", -1), r"requests\[3\]\.session: found -1, must be at least 0"),
        (put("slo_class", -1), r"requests\[3\]\.slo_class: found -1, must be at least 0"),
        (put("arrival", -1), r"requests\[3\]\.arrival: found -1, must be between"),
        (put("parent", 3), r"requests\[3\]\.parent: found 3, must be an earlier row or -1"),
        (put("parent", -2), r"requests\[3\]\.parent: found -2, must be an earlier row or -1"),
        (late_root, r"requests\[\d+\]\.arrival: found 0, roots must be sorted"),
        (orphan, r"requests\[\d+\]: found parent \d+, first_child .* each of its follow-ups once"),
        (foreign_child, r"requests\[39\]: found parent"),
        (circle, r"requests\[\d+\]: found parent"),
        (put("next_sibling", 5, row=0), r"requests\[0\]: found parent -1, .* next_sibling 5"),
        (put("first_child", 10**6, row=0), r"requests\[0\]: found parent -1, first_child 1000000"),
        (put("then", 3), r"requests\[3\]\.then: found 3, must be a later row or -1"),
        (put("then", 40), r"requests\[3\]\.then: found 40, must be a later row or -1"),
        (join_root, r"requests\[0\]\.then: found \d+, names a root"),
        (put("waits_for", 1, row=0), r"requests\[0\]\.waits_for: found 1, must be 0 for a root"),
        (joined, r"requests\[\d+\]\.waits_for: found 1, must be .* 1 \+ the rows whose `then`"),
        (put_run("start", -1), r"runs\[3\]\.start: found -1, must be at least 0"),
        (put_run("count", 0), r"runs\[3\]\.count: found 0, must be at least 1"),
        (put("num_runs", -1), r"requests\[3\]\.num_runs: found -1, must be at least 0"),
        (put("first_run", 10**6), r"requests\[3\]\.first_run: found 1000000, its runs must lie"),
        (put("num_blocks", 1), r"requests\[3\]\.num_blocks: found 1, must be the floor or the"),
        (put("cacheable_blocks", 10**6), r"requests\[3\]\.cacheable_blocks: found 1000000, must"),
        (put("cacheable_blocks", -1), r"requests\[3\]\.cacheable_blocks: found -1, must"),
        (put("num_runs", 1), r"requests\[3\]\.num_runs: found 6, ids in its runs, must be"),
        (put_run("start", 1, run=2), r"requests\[1\]: a block id follows another id"),
        (put_run("start", 0, run=3), r"requests\[1\]: a block id follows another id"),
    ],
)
def test_one_broken_place_is_named(change: Callable[[Tape], None], message: str) -> None:
    tape = closed_chat()
    validate(tape)
    change(tape)
    with pytest.raises(ValueError, match=message):
        validate(tape)


def test_arrays_and_block_size_are_checked_first() -> None:
    tape = closed_chat()
    with pytest.raises(ValueError, match="block_size: found 0, must be at least 1"):
        validate(Tape(tape.requests, tape.runs, 0))
    with pytest.raises(ValueError, match="runs: found int64"):
        validate(Tape(tape.requests, np.zeros(3, np.int64), 16))


@given(rows=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1, max_size=6))
def test_chains_are_checked_as_a_table_of_predecessors_would(rows: list[list[int]]) -> None:
    # One-token blocks, one run for each id.
    lengths = np.array([len(ids) for ids in rows])
    zeros = np.zeros(len(rows), np.int64)
    requests = root_requests(zeros, lengths, zeros + 1, lengths)
    requests["num_blocks"] = requests["cacheable_blocks"] = lengths
    runs = np.array([(block, 1) for ids in rows for block in ids], RUN)

    chained = True
    before: dict[int, tuple[int, int]] = {}
    for ids in rows:
        for depth, block in enumerate(ids):
            place = (depth, ids[depth - 1] if depth > 0 else -1)
            chained &= before.setdefault(block, place) == place
    if chained:
        validate(Tape(requests, runs, 1))
    else:
        with pytest.raises(ValueError, match="a block id follows another id"):
            validate(Tape(requests, runs, 1))
