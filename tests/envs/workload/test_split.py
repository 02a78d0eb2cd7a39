"""Smaller blocks: what was shared still is, and nothing else."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import build_tape, random_draws

from prefixgym.envs.workload.reuse import reuse
from prefixgym.envs.workload.split import split_blocks
from prefixgym.envs.workload.validate import validate


@settings(max_examples=50)
@given(count=st.integers(1, 30), seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 2, 4]))
def test_requests_share_the_same_tokens(count: int, seed: int, size: int) -> None:
    coarse = build_tape(random_draws(np.random.default_rng(seed), count, 8, 5, False), 8)
    fine = split_blocks(coarse, size)
    validate(fine)
    assert fine.block_size == size
    unchanged = [name for name in coarse.requests.dtype.names or () if "block" not in name]
    for name in set(unchanged) - {"first_run", "num_runs"}:
        np.testing.assert_array_equal(fine.requests[name], coarse.requests[name])
    ratio = 8 // size
    for row in range(count):
        for other in range(row):
            before = _shared(coarse.block_ids(row), coarse.block_ids(other))
            after = _shared(fine.block_ids(row), fine.block_ids(other))
            # All that was shared, unless the ids of a partial block have become fewer.
            whole = min(len(fine.block_ids(row)), len(fine.block_ids(other)), before * ratio)
            assert after == whole


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    return int(np.argmin(np.append(a[:length] == b[:length], False)))


def test_the_same_size_changes_nothing() -> None:
    tape = build_tape(random_draws(np.random.default_rng(0), 20, 8, 5, False), 8)
    assert split_blocks(tape, 8) is tape
    assert reuse(split_blocks(tape, 4)).requests == 20
