"""Statistics of random tapes against counting with sets, lists and dictionaries."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import build_tape, random_draws

from prefixgym.envs.clock import TICKS_PER_SECOND, to_ticks
from prefixgym.envs.cluster.lru_replay import lru_hit_rate
from prefixgym.envs.workload.statistics.lru_curve import lru_curve
from prefixgym.envs.workload.statistics.quantiles import quantiles
from prefixgym.envs.workload.statistics.sharing import zipf_exponent
from prefixgym.envs.workload.statistics.summary import Study, statistics
from prefixgym.envs.workload.statistics.timeline import FIRST_TOKEN, PER_TOKEN, timeline
from prefixgym.envs.workload.tape import NO_ROW, RUN, Tape, root_requests


@st.composite
def tapes(draw: st.DrawFn, most: int = 80) -> Tape:
    count = draw(st.integers(1, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return build_tape(random_draws(rng, count, 4, 6, False), 4)


def roots(tape: Tape) -> Tape:
    """The same requests, without links and sessions of their own."""
    requests = tape.requests.copy()
    requests["session"] = np.arange(len(requests))
    requests["arrival"] = np.arange(len(requests)) * TICKS_PER_SECOND
    for link in ("parent", "first_child", "next_sibling", "then"):
        requests[link] = NO_ROW
    requests["waits_for"] = 0
    return Tape(requests, tape.runs, tape.block_size)


def prompt_ids(tape: Tape) -> list[list[int]]:
    return [
        tape.block_ids(row)[: request["num_blocks"]].tolist()
        for row, request in enumerate(tape.requests)
    ]


@settings(max_examples=50)
@given(tape=tapes())
def test_a_timeline_plays_the_tape_with_a_fixed_service(tape: Tape) -> None:
    line = timeline(tape)
    requests = tape.requests
    end: list[int] = []
    arrival: list[int] = []
    for row, request in enumerate(requests):
        waits = [end[k] for k in range(row) if requests[k]["then"] == row]
        if request["parent"] != NO_ROW:
            waits.append(end[request["parent"]])
        assert len(waits) == request["waits_for"]
        arrival.append(int(request["arrival"]) + max(waits, default=0))
        service = to_ticks(FIRST_TOKEN + PER_TOKEN * request["output_tokens"])
        end.append(arrival[-1] + int(service))
    order = sorted(range(len(requests)), key=lambda row: (arrival[row], row))
    assert line.tape.requests["arrival"].tolist() == [arrival[row] for row in order]
    assert prompt_ids(line.tape) == [prompt_ids(tape)[row] for row in order]
    if line.closed_loop:
        expected = [int(requests[row]["parent"]) for row in order]
        found = [NO_ROW if p == NO_ROW else order[p] for p in line.parent.tolist()]
        assert found == expected


@settings(max_examples=50)
@given(tape=tapes(), capacity=st.integers(1, 100))
def test_stack_distances_give_the_lru_replay_at_any_capacity(tape: Tape, capacity: int) -> None:
    study = Study.of(tape)
    found = lru_curve(study.line, study.parts, [capacity])
    for size, hit in zip(found.capacity, found.block_hit, strict=True):
        assert hit == pytest.approx(lru_hit_rate(study.line.tape, max(1, size)))
    assert found.capacity[0] == min(capacity, found.capacity[-1])


@settings(max_examples=50)
@given(tape=tapes())
def test_an_infinite_lru_cache_finds_what_reuse_counts(tape: Tape) -> None:
    found = statistics(tape)
    if found.reuse is None or found.lru is None or found.sharing is None:
        assert tape.requests["num_blocks"].sum() == 0
        return
    assert found.lru.block_hit[-1] == pytest.approx(found.reuse.block_hit)
    assert found.lru.token_hit_second_half[-1] == pytest.approx(found.reuse.token_hit_second_half)
    assert found.lru.capacity[-1] == found.reuse.unique_blocks
    parts = (found.sharing.hot_hit, found.sharing.continuation_hit, found.sharing.other_hit)
    assert sum(parts) == pytest.approx(found.reuse.block_hit)


@settings(max_examples=100)
@given(tape=tapes())
def test_derived_sessions_follow_the_latest_end_within_a_prompt(tape: Tape) -> None:
    tape = roots(tape)
    ids = prompt_ids(tape)
    users = Counter(key for chain in ids for key in chain)
    hot = {key for key, count in users.items() if count >= 0.05 * len(ids)}
    prompt = tape.requests["prompt_tokens"]
    ends: dict[int, int] = {}
    parents = []
    for row, chain in enumerate(ids):
        beyond = [key for key in chain if key not in hot]
        earlier = next((ends[key] for key in reversed(beyond) if key in ends), NO_ROW)
        if earlier != NO_ROW and prompt[row] < prompt[earlier]:
            earlier = NO_ROW
        parents.append(earlier)
        full = chain[: prompt[row] // tape.block_size]
        if full and full[-1] not in hot:
            ends[full[-1]] = row
    study = Study.of(tape)
    assert study.lineage.derived
    assert study.lineage.parent.tolist() == parents

    seen: dict[int, int] = {}
    gaps = []
    hits = Counter[str]()
    for row, chain in enumerate(ids):
        for key in chain:
            if key in seen:
                where = "hot" if key in hot else "other" if parents[row] == NO_ROW else "turn"
                hits[where] += 1
                if key not in hot:
                    gaps.append(row - seen[key])
            seen[key] = row
    found = study.statistics()
    assert found.reuse_gap == pytest.approx(quantiles(gaps, (10, 50, 80, 90, 99)))
    if found.sharing is not None:
        total = sum(map(len, ids))
        assert found.sharing.hot_blocks == len(hot)
        assert found.sharing.hot_hit == pytest.approx(hits["hot"] / total)
        assert found.sharing.continuation_hit == pytest.approx(hits["turn"] / total)
        firsts = Counter(chain[0] for chain in ids if chain)
        assert found.sharing.roots == len(firsts)
        top = [count / len(ids) for _, count in firsts.most_common(5)]
        assert found.sharing.top_roots == pytest.approx(top)


def test_stated_sessions_are_taken_as_stated() -> None:
    # Two sessions, the second answers in 5 s steps; all share block 7, and nothing else is shared.
    requests = root_requests(
        to_ticks([0.0, 1.0, 6.0, 11.0]),
        np.array([8, 8, 12, 20]),
        np.array([1, 2, 3, 4]),
        np.array([2, 2, 2, 2]),
    )
    requests["num_blocks"] = [2, 2, 3, 5]
    requests["session"] = [0, 1, 1, 1]
    runs = np.array([(7, 1), (20, 1), (7, 1), (30, 1), (7, 1), (30, 2), (7, 1), (30, 4)], RUN)
    tape = Tape(requests, runs, 4)
    found = statistics(tape)
    assert not found.sessions.derived
    assert found.sessions.sessions == 2
    assert found.sessions.multi_turn_sessions == 0.5
    assert found.sessions.multi_turn_requests == 0.75
    assert found.sessions.turns["max"] == 3
    assert found.sessions.gap["p50"] == 5.0
    assert found.sessions.growth["p50"] == (4 + 8) / 2
    assert found.sessions.added["p50"] == (4 - 2 + 8 - 3) / 2
    assert found.sharing is not None
    assert found.sharing.hot_hit == 3 / 12
    assert found.sharing.continuation_hit == (1 + 2) / 12
    assert statistics(tape, derive=True).sessions.derived


@given(
    values=st.lists(st.integers(0, 9), min_size=1, max_size=9),
    seed=st.integers(0, 2**32 - 1),
)
def test_weighted_quantiles_are_those_of_repeated_values(values: list[int], seed: int) -> None:
    weights = np.random.default_rng(seed).integers(0, 4, len(values))
    levels = (0, 10, 33, 50, 99, 100)
    repeated = np.repeat(values, weights)
    expected = np.percentile(repeated, levels).tolist() if len(repeated) else []
    found = quantiles(values, levels, weights)
    assert list(found.values()) == pytest.approx(expected)
    assert list(found)[-1:] == (["max"] if expected else [])


def test_zipf_exponent_of_a_power_law() -> None:
    rank = np.arange(1, 100)
    assert zipf_exponent(rank, 500.0 * rank.astype(np.float64) ** -0.7) == pytest.approx((0.7, 1.0))
    assert zipf_exponent(rank, np.full(99, 3.0)) == (0.0, 1.0)
    assert np.isnan(zipf_exponent(rank[:1], np.ones(1))).all()


def test_an_empty_tape_has_no_statistics() -> None:
    with pytest.raises(ValueError, match="found no requests"):
        statistics(build_tape([], 4))
