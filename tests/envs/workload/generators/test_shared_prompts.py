"""Shared system prompts: who shares which blocks, popularity, presets, reproducibility."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixgym.envs.workload.arrivals import Gamma, Poisson
from prefixgym.envs.workload.distributions import LogNormal
from prefixgym.envs.workload.generators.shared_prompts import SharedPrompts
from prefixgym.envs.workload.lengths import Length
from prefixgym.envs.workload.reuse import reuse
from prefixgym.envs.workload.validate import validate


def lengths(least: int) -> st.SearchStrategy[Length]:
    """Fixed, uniform and lognormal lengths up to 300."""
    pair = st.tuples(st.integers(least, 300), st.integers(least, 300))
    return st.one_of(
        st.integers(least, 300),
        pair.map(lambda ends: (min(ends), max(ends))),
        st.builds(LogNormal, st.floats(1, 100), st.floats(0.1, 2), high=st.integers(1, 300)),
    )


WORKLOADS = st.builds(
    SharedPrompts,
    num_requests=st.integers(1, 200),
    arrivals=st.sampled_from([Poisson(5.0), Gamma(5.0, 2.0)]),
    block_size=st.sampled_from([1, 16, 64]),
    num_groups=st.integers(1, 20),
    prompts_per_group=st.one_of(st.none(), st.integers(1, 10)),
    system_tokens=lengths(0),
    question_tokens=lengths(1),
    output_tokens=lengths(1),
    zipf=st.sampled_from([0.0, 0.7, 1.2]),
)


@given(workload=WORKLOADS, seed=st.integers(0, 2**63))
def test_tapes_are_valid_and_within_their_bounds(workload: SharedPrompts, seed: int) -> None:
    tape = workload.tape(seed)
    validate(tape)
    requests = tape.requests
    assert len(requests) == workload.num_requests
    assert requests["session"].max() < workload.num_sessions
    assert requests["num_blocks"].max() <= workload.max_blocks
    # What decoding fills belongs to one request: it has no id.
    np.testing.assert_array_equal(
        requests["cacheable_blocks"], requests["prompt_tokens"] // workload.block_size
    )
    np.testing.assert_array_equal(
        requests["num_blocks"], -(-requests["prompt_tokens"] // workload.block_size)
    )


@given(workload=WORKLOADS, seed=st.integers(0, 2**63))
def test_the_same_seed_gives_the_same_bits(workload: SharedPrompts, seed: int) -> None:
    tape, again = workload.tape(seed), workload.tape(seed)
    assert tape.requests.tobytes() == again.requests.tobytes()
    assert tape.runs.tobytes() == again.runs.tobytes()


def test_a_group_shares_exactly_its_system_prompts_full_blocks() -> None:
    # 100 system tokens in blocks of 16: six shared blocks, four tokens in the seventh.
    workload = SharedPrompts(300, Poisson(1.0), 16, 3, 4, 100, (30, 60), 8)
    tape = workload.tape(0)
    chains = [tuple(tape.block_ids(row)) for row in range(300)]
    sessions = tape.requests["session"]
    for row in range(1, 300):
        shared = sum(a == b for a, b in zip(chains[0], chains[row], strict=False))
        if sessions[row] == sessions[0]:
            assert chains[row] == chains[0]
        elif sessions[row] // 4 == sessions[0] // 4:
            assert shared == 6
        else:
            assert not set(chains[0]) & set(chains[row])


def test_unique_questions_share_only_the_system_prompt() -> None:
    workload = SharedPrompts(50, Poisson(1.0), 16, 1, None, 64, 40, 8)
    tape = workload.tape(0)
    questions = [set(tape.block_ids(row)[4:]) for row in range(50)]
    assert all(set(tape.block_ids(row)[:4]) == {0, 1, 2, 3} for row in range(50))
    assert len(set.union(*questions)) == 50 * 3  # ceil(104 / 16) − 4 each
    assert sorted(tape.requests["session"]) == list(range(50))


def test_zipf_popularity() -> None:
    count, groups, exponent = 100_000, 20, 1.0
    workload = SharedPrompts(count, Poisson(1.0), 16, groups, 2, 32, 8, 8, zipf=exponent)
    shares = np.bincount(workload.tape(1).requests["session"] // 2, minlength=groups) / count
    weights = 1.0 / np.arange(1, groups + 1)
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.006)


def test_presets_are_the_published_conventions() -> None:
    llm_d = SharedPrompts.llm_d(20_000, Poisson(30.0), 16)
    tape = llm_d.tape(0)
    assert len(np.unique(tape.requests["session"])) == 150 * 5 == llm_d.num_sessions
    assert set(tape.requests["prompt_tokens"]) == {7200}
    assert set(tape.requests["output_tokens"]) == {1000}
    # 150 groups of 375 blocks, 750 questions of 75.
    assert reuse(tape).unique_blocks == 150 * 375 + 750 * 75

    sglang = SharedPrompts.sglang(20_000, Poisson(30.0), 16)
    tape = sglang.tape(0)
    assert len(np.unique(tape.requests["session"])) == 64 * 16 == sglang.num_sessions
    assert set(tape.requests["prompt_tokens"]) == {2176}
    assert set(tape.requests["output_tokens"]) == {256}


def test_seeds_differ_and_the_rate_changes_arrivals_only() -> None:
    slow = SharedPrompts.sglang(500, Poisson(3.0), 64).tape(5)
    fast = SharedPrompts.sglang(500, Poisson(6.0), 64).tape(5)
    other = SharedPrompts.sglang(500, Poisson(6.0), 64).tape(6)
    assert not np.array_equal(other.requests["session"], fast.requests["session"])
    assert not np.array_equal(other.requests["arrival"], fast.requests["arrival"])
    assert np.abs(slow.requests["arrival"] - 2 * fast.requests["arrival"]).max() <= 2000
    slow.requests["arrival"] = fast.requests["arrival"]
    assert slow.requests.tobytes() == fast.requests.tobytes()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_requests", 0),
        ("num_requests", 2.5),
        ("block_size", 0),
        ("num_groups", 0),
        ("prompts_per_group", 0),
        ("prompts_per_group", 2**31),
        ("zipf", -0.1),
        ("system_tokens", -1),
        ("question_tokens", 0),
        ("output_tokens", (0, 5)),
    ],
)
def test_bad_fields_are_refused_by_key(key: str, value: object) -> None:
    fields: dict[str, object] = {
        "num_requests": 10,
        "arrivals": Poisson(1.0),
        "block_size": 16,
        "num_groups": 3,
        "prompts_per_group": 2,
        "system_tokens": 10,
        "question_tokens": 10,
        "output_tokens": 10,
    }
    with pytest.raises(ValueError, match=rf"^{key}: found"):
        SharedPrompts(**(fields | {key: value}))  # type: ignore[arg-type]
