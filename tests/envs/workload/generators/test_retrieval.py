"""Retrieval: who shares which blocks, the order and popularity of passages, RAGPulse's figures."""

import numpy as np
import pytest

from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.generators.retrieval import RetrievedPassages
from prefixgym.envs.workload.reuse import reuse

# Tokens of all parts tell apart which one a prompt has: 5 + one of 100 … 900 each.
FEW = RetrievedPassages(
    400,
    Poisson(1.0),
    block_size=1,
    num_system_prompts=2,
    num_passages=4,
    zipf=0.5,
    passages=(0, 3),
    system_tokens=(50, 90),
    passage_tokens=(100, 900),
    question_tokens=(1, 9),
    output_tokens=5,
)


def test_beginnings_are_shared_up_to_the_first_difference() -> None:
    tape = FEW.tape(0)
    chains = [tape.block_ids(row) for row in range(400)]
    # With blocks of one token, the runs are the parts: system, passages, question.
    parts = []
    for request in tape.requests:
        first, last = request["first_run"], request["first_run"] + request["num_runs"]
        parts.append(tape.runs[first:last])
    beginnings: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for part in parts:
        for depth in range(1, len(part)):
            sizes = tuple(part["count"][:depth].tolist())
            beginnings.setdefault(sizes, set()).add(tuple(part["start"][:depth].tolist()))
    # Lengths name the parts here: one beginning has one chain, and others have others.
    assert all(len(chain) == 1 for chain in beginnings.values())
    ends = [next(iter(chain))[-1] for chain in beginnings.values()]
    assert len(set(ends)) == len(ends)
    # 2 systems, with up to 3 of 4 passages in any order: at most 2 · (1 + 4 + 12 + 24).
    assert 50 < len(beginnings) <= 82
    assert {len(part) for part in parts} == {2, 3, 4, 5}
    # Questions are nobody else's.
    tails = np.concatenate([c[-int(p["count"][-1]) :] for c, p in zip(chains, parts, strict=True)])
    assert len(np.unique(tails)) == len(tails)


@pytest.mark.parametrize("block_size", [7, 64, 2048])
def test_larger_blocks_share_what_lies_wholly_in_the_common_tokens(block_size: int) -> None:
    fine = FEW.tape(3)
    coarse = RetrievedPassages(**{**FEW.__dict__, "block_size": block_size}).tape(3)
    np.testing.assert_array_equal(fine.requests["prompt_tokens"], coarse.requests["prompt_tokens"])
    tokens = [fine.block_ids(row) for row in range(60)]
    blocks = [coarse.block_ids(row) for row in range(60)]
    for a in range(60):
        for b in range(a):
            common = _common(tokens[a], tokens[b])
            assert _common(blocks[a], blocks[b]) == common // block_size


def _common(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) if len(differ) else length


def test_passages_are_popular_by_zipf_and_come_in_any_order() -> None:
    workload = RetrievedPassages(
        40_000,
        Poisson(1.0),
        block_size=1,
        num_system_prompts=1,
        num_passages=5,
        zipf=1.0,
        passages=2,
        system_tokens=10,
        passage_tokens=(100, 900),
        question_tokens=1,
        output_tokens=1,
    )
    tape = workload.tape(0)
    size = tape.runs["count"].reshape(-1, 4)[:, 1:3]
    assert np.all(size[:, 0] != size[:, 1])
    # Probability of the pair (i, j) in this order: half of both successive draws.
    p = 1 / np.arange(1, 6) / np.sum(1 / np.arange(1, 6))
    pair = (p[:, None] * p / (1 - p[:, None]) + p * p[:, None] / (1 - p)) / 2
    np.fill_diagonal(pair, 0.0)
    for place in (0, 1):
        shares = np.unique(size[:, place], return_counts=True)[1] / 40_000
        np.testing.assert_allclose(np.sort(shares), np.sort(pair.sum(axis=1)), atol=0.01)


def test_reuse_is_near_ragpulse() -> None:
    # 7,106 requests of 2,944 tokens, 283 out; token hit 0.315 in the prefix order (`traces.md`).
    tape = RetrievedPassages(7106, Poisson(1.0), block_size=16).tape(0)
    found = reuse(tape)
    assert found.prompt_tokens == pytest.approx(2944, rel=0.03)
    assert found.output_tokens == pytest.approx(283, rel=0.03)
    assert found.token_hit == pytest.approx(0.315, abs=0.02)
    assert found.requests_without_hit < 0.01
