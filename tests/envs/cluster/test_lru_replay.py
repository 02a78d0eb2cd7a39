"""The cache's kernels as a plain LRU: known curves of two traces, and a list of recencies."""

import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_cases import build_tape, random_draws

from prefixgym.envs.cluster.lru_replay import lru_hit_rate
from prefixgym.envs.workload.readers.mooncake import read_mooncake
from prefixgym.envs.workload.tape import Tape

INFINITE = 10**9
CAPACITIES = (1_000, 10_000, 30_000, 50_000, 100_000, INFINITE)

# `traces.md` §3.4, block hit over the whole trace, there computed directly and by stack distance.
HIT_RATES = {
    "mooncake_conversation/conversation_trace": (0.0445, 0.2116, 0.3257, 0.3546, 0.3637, 0.3664),
    "mooncake_synthetic/synthetic_trace": (0.0841, 0.4239, 0.6242, 0.6396, 0.6396, 0.6396),
}


@functools.cache
def mooncake(path: Path) -> Tape:
    return read_mooncake(path)


@pytest.mark.parametrize("name", HIT_RATES)
def test_mooncake_traces_have_their_known_lru_curve(traces: Path, name: str) -> None:
    tape = mooncake(traces / f"{name}.jsonl.gz")
    found = tuple(round(lru_hit_rate(tape, capacity), 4) for capacity in CAPACITIES)
    assert found == HIT_RATES[name]


@given(count=st.integers(1, 60), capacity=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
def test_hits_are_the_leading_blocks_of_recent_enough_use(
    count: int, capacity: int, seed: int
) -> None:
    tape = build_tape(random_draws(np.random.default_rng(seed), count, 4, 5, False), 4)
    recency: list[int] = []  # least recently used first, without limit
    hits = total = 0
    for row, request in enumerate(tape.requests):
        ids = tape.block_ids(row)[: request["num_blocks"]].tolist()
        total += len(ids)
        cached = recency[-capacity:]
        for key in ids:
            if key not in cached:
                break
            hits += 1
        recency = [key for key in recency if key not in ids] + ids[::-1]
    assert lru_hit_rate(tape, capacity) == (hits / total if total else 0.0)


def test_a_cache_has_blocks() -> None:
    tape = build_tape([], 4)
    with pytest.raises(ValueError, match="num_blocks: found 0, must be at least 1"):
        lru_hit_rate(tape, 0)
    assert lru_hit_rate(tape, 1) == 0.0
