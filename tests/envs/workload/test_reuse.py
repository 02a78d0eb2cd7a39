"""Infinite-cache figures against a set of all ids seen so far."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.generators.shared_prompts import SharedPrompts
from prefixgym.envs.workload.reuse import reuse
from prefixgym.envs.workload.tape import Tape, Workload

WORKLOADS: st.SearchStrategy[Workload] = st.one_of(
    st.builds(
        SharedPrompts,
        num_requests=st.integers(1, 60),
        arrivals=st.just(Poisson(5.0)),
        block_size=st.sampled_from([4, 16]),
        num_groups=st.integers(1, 4),
        prompts_per_group=st.one_of(st.none(), st.integers(1, 4)),
        system_tokens=st.just((0, 80)),
        question_tokens=st.just((1, 40)),
        output_tokens=st.just((1, 40)),
    ),
    st.builds(
        MultiTurnChat,
        num_requests=st.integers(1, 60),
        arrivals=st.just(Poisson(5.0)),
        block_size=st.sampled_from([4, 16]),
        think_time=st.just(2.0),
        num_system_prompts=st.integers(1, 3),
        system_tokens=st.just((0, 80)),
    ),
)


def count_with_a_set(tape: Tape) -> tuple[list[int], int]:
    """Leading blocks of each prompt that some earlier request named, and the ids of the tape."""
    seen: set[int] = set()
    hits = []
    for row, request in enumerate(tape.requests):
        ids = [int(block) for block in tape.block_ids(row)]
        hit = 0
        while hit < request["num_blocks"] and ids[hit] in seen:
            hit += 1
        hits.append(hit)
        seen.update(ids)
    return hits, len(seen)


@settings(max_examples=50)
@given(workload=WORKLOADS, seed=st.integers(0, 2**63))
def test_figures_equal_those_of_a_set(workload: Workload, seed: int) -> None:
    tape = workload.tape(seed)
    # Sparse ids are counted as dense ones.
    tape.runs["start"] += np.where(tape.runs["start"] > 5, 10**15, 0)
    hits, unique = count_with_a_set(tape)
    found = reuse(tape)
    requests = tape.requests
    prompt = requests["prompt_tokens"]
    tokens = np.minimum(np.array(hits) * tape.block_size, prompt)
    half = len(requests) // 2

    assert found.requests == len(requests)
    assert found.prompt_tokens == pytest.approx(prompt.mean())
    assert found.output_tokens == pytest.approx(requests["output_tokens"].mean())
    assert found.blocks == requests["num_blocks"].sum()
    assert found.unique_blocks == unique
    assert found.block_hit == pytest.approx(sum(hits) / found.blocks)
    assert found.token_hit == pytest.approx(tokens.sum() / prompt.sum())
    assert found.token_hit_second_half == pytest.approx(tokens[half:].sum() / prompt[half:].sum())
    assert found.request_hit == pytest.approx(np.mean(tokens / prompt))
    assert found.requests_without_hit == pytest.approx(hits.count(0) / len(hits))
    assert found.hit_depth == pytest.approx(tuple(np.percentile(hits, (50, 90, 99))))
    uses = Counter(int(block) for row in range(len(requests)) for block in tape.block_ids(row))
    once = sum(count == 1 for count in uses.values())
    assert found.blocks_used_once == pytest.approx(once / max(1, len(uses)))


def test_blocks_that_decoding_fills_count_in_the_next_turn() -> None:
    # Prompts of 8, 16, 24 … tokens in blocks of 8: turn k + 1 finds all but its last block.
    chat = MultiTurnChat(
        40,
        Poisson(100.0),
        8,
        turns=3,
        think_time=0.01,
        system_tokens=0,
        user_tokens=4,
        output_tokens=4,
        max_prompt_tokens=10**6,
    )
    tape = chat.tape(0)
    hits, _ = count_with_a_set(tape)
    known = {int(r["session"]): i for i, r in reversed(list(enumerate(tape.requests)))}
    for row, request in enumerate(tape.requests):
        first = known[int(request["session"])] == row
        assert hits[row] == (0 if first else request["num_blocks"] - 1)
