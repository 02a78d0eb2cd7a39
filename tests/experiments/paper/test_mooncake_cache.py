"""Local against shared caches: hits by hand, the kernel's LRU, routers, and a whole run."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.lru_replay import lru_hit_rate
from prefixgym.envs.cluster.profiles import constant_profile
from prefixgym.envs.workload.readers.mooncake import read_mooncake
from prefixgym.envs.workload.tape import RUN, Tape, root_requests
from prefixgym.experiments.paper import mooncake_cache
from prefixgym.experiments.paper.mooncake_lru import (
    LruCache,
    PrefillTime,
    Route,
    Seen,
    prefix_greedy,
    recorded,
    replay,
    round_robin,
    sometimes,
)
from prefixgym.experiments.paper.mooncake_play import free_for_all, route_trace
from prefixgym.experiments.paper.published import Effort

BLOCK = 10
PROFILE = "llama-3.1-8b/h100/tp1"


def tape_of(prompts: Sequence[Sequence[int]]) -> Tape:
    """Prompts of whole blocks with these ids, a second apart."""
    counts = np.array([len(ids) for ids in prompts])
    arrival = TICKS_PER_SECOND * np.arange(len(prompts), dtype=np.int64)
    requests = root_requests(arrival, BLOCK * counts, np.ones_like(counts), counts)
    requests["num_blocks"] = requests["cacheable_blocks"] = counts
    runs = np.array([(key, 1) for ids in prompts for key in ids], RUN)
    return Tape(requests, runs, BLOCK)


def missed_tokens(prompt: int, hit: int) -> float:
    return float(prompt - hit)


def test_a_cache_forgets_what_was_used_longest_ago_and_tails_before_heads() -> None:
    cache = LruCache(3)
    cache.touch([1, 2, 3])
    assert cache.match([1, 2, 3, 4]) == 3
    cache.touch([4])  # 3 goes
    assert cache.match([1, 2, 3]) == 2
    cache.touch([1, 2])
    cache.touch([5])  # 4 goes
    assert [cache.match([key]) for key in (1, 2, 3, 4, 5)] == [1, 1, 0, 0, 1]
    with pytest.raises(ValueError, match="num_blocks: found 0, must be at least 1"):
        LruCache(0)


PROMPTS = [[1, 2], [3, 4], [1, 2], [3, 4], [1, 5]]


@pytest.mark.parametrize(
    ("route", "hits", "work"),
    [
        (prefix_greedy("balanced"), 5, [30, 20]),  # [1, 2] and [3, 4] on a node each
        (prefix_greedy("first"), 5, [50, 0]),  # misses too: all on one node
        (round_robin(2), 5, [30, 20]),
        (recorded(np.array([0, 1, 1, 0, 0])), 1, [50, 40]),  # 1 once
    ],
)
def test_hits_of_two_nodes_by_hand(route: Route, hits: int, work: list[int]) -> None:
    found = replay(tape_of(PROMPTS), 2, 4, route, missed_tokens)
    assert found.hit_rate == hits / 10
    assert found.gpu_seconds == sum(work)
    assert found.busiest == max(work) / sum(work)
    assert found.copies == pytest.approx((10 - hits) / 5)


def test_a_small_node_thrashes_where_the_shared_cache_holds_all() -> None:
    prompts = [[1, 2], [3, 4]] * 3
    assert replay(tape_of(prompts), 2, 2, prefix_greedy("first"), missed_tokens).hit_rate == 0
    assert replay(tape_of(prompts), 1, 4, round_robin(1), missed_tokens).hit_rate == 8 / 12


def test_how_a_greedy_router_decides_ties_misses_and_short_matches() -> None:
    tied = Seen(0, hits=[2, 0, 2], computed=[50, 0, 40])
    assert prefix_greedy("first")(tied) == 0
    assert prefix_greedy("balanced")(tied) == 2
    assert {prefix_greedy("random", seed=seed)(tied) for seed in range(20)} == {0, 2}
    short = Seen(0, hits=[1, 0, 0], computed=[50, 9, 10])
    assert prefix_greedy("balanced")(short) == 0
    assert prefix_greedy("balanced", least=2)(short) == 1
    with pytest.raises(ValueError, match="ties: found 'last', allowed: first, random, balanced"):
        prefix_greedy("last")  # type: ignore[arg-type]


def test_some_requests_follow() -> None:
    def first(seen: Seen) -> int:
        return 0

    seen = Seen(0, [0] * 10, [0] * 10)
    route = sometimes(0.3, first, 10)
    nodes = [route(seen) for _ in range(5000)]
    assert nodes.count(0) / 5000 == pytest.approx(0.3 + 0.7 / 10, abs=0.03)
    always = sometimes(1.0, first, 10)
    assert {always(seen) for _ in range(50)} == {0}


prompts = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 6)).map(
        lambda case: [100 * case[0] + k for k in range(case[1])]
    ),
    min_size=1,
    max_size=30,
)


@given(prompts, st.integers(1, 20))
def test_one_cache_is_the_kernels_lru(cases: list[list[int]], capacity: int) -> None:
    tape = tape_of(cases)
    found = replay(tape, 1, capacity, round_robin(1), missed_tokens)
    assert found.hit_rate == pytest.approx(lru_hit_rate(tape, capacity))


@given(prompts, st.integers(1, 20), st.integers(1, 4))
def test_no_arm_finds_more_than_an_endless_shared_cache(
    cases: list[list[int]], capacity: int, nodes: int
) -> None:
    tape = tape_of(cases)
    endless = replay(tape, 1, 1000, round_robin(1), missed_tokens)
    for route in (prefix_greedy("balanced"), prefix_greedy("first", 2), round_robin(nodes)):
        found = replay(tape, nodes, capacity, route, missed_tokens)
        assert found.hit_rate <= endless.hit_rate
        assert found.gpu_seconds >= endless.gpu_seconds


def test_prefill_takes_a_step_for_each_chunk_and_at_least_one_token() -> None:
    seconds = PrefillTime(constant_profile(prefill_ms=50.0, decode_ms=1.0))
    assert seconds(100, 0) == pytest.approx(0.050)
    assert seconds(20_000, 0) == pytest.approx(0.150)
    assert seconds(20_000, 16_000) == pytest.approx(0.050)
    assert seconds(100, 100) == pytest.approx(0.050)


def test_a_shared_cache_serves_in_turn() -> None:
    # A second apart; misses take 3 s, hits none: the second waits for the first.
    found = free_for_all(tape_of([[1, 2], [3, 4], [1, 2]]), 4, 1, lambda p, h: 0.15 * (p - h))
    np.testing.assert_allclose(found, [3.0, 5.0, 4.0])


def test_a_router_plays_a_trace_for_first_tokens_alone(trace: Path) -> None:
    found = route_trace(trace, "round_robin", PROFILE, 4, 100)
    np.testing.assert_array_equal(found.instances, np.arange(40) % 4)
    assert (found.ttft > 0).all()
    assert found.hit_rate == 0  # pairs part
    together = route_trace(trace, "llmd_precise", PROFILE, 4, 100)
    assert together.hit_rate > 0.2


def test_a_run_on_made_traces(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake_cache, "ROUTERS", ("round_robin", "min_ttft", "llmd_precise"))
    conversation = tmp_path / "mooncake_conversation" / "trace.jsonl"
    conversation.parent.mkdir()
    conversation.write_bytes(trace.read_bytes())
    outcome = mooncake_cache.run(tmp_path, Effort(trace=conversation))
    assert len(outcome.left_out) == 1
    assert "synthetic: no trace at" in outcome.left_out[0]
    assert [f.verdict for f in outcome.figures if f.what.endswith("synthetic")] == ["not run"] * 2
    rows = {(row["part"], row["arm"], row["at"]): row for row in outcome.rows}
    shared = read_mooncake(conversation)
    # 40 pairs of ids, every second request finds the one that its pair shares.
    assert rows["arm", "shared cache", 1.0]["hit_rate"] == lru_hit_rate(shared, 10**6) == 20 / 80
    assert rows["router", "round_robin", 1.0]["hits_shared_over_this"] == np.inf
    outcome.draw(tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        assert image.width > 500
    with (tmp_path / "rows.csv").open("w") as file:
        writer = csv.DictWriter(file, list(outcome.rows[0]))
        writer.writerows(outcome.rows)  # raises if keys differ
    json.dumps([figure.as_dict() for figure in outcome.figures])


def test_without_any_trace_all_is_left_out(tmp_path: Path) -> None:
    outcome = mooncake_cache.run(tmp_path, Effort(trace=tmp_path / "a" / "no.jsonl"))
    assert len(outcome.left_out) == 2
    assert {figure.verdict for figure in outcome.figures} == {"not run"}
    outcome.draw(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").exists()


def test_the_real_traces_have_their_published_shared_hits(traces: Path) -> None:
    tape = read_mooncake(traces / "mooncake_synthetic" / "synthetic_trace.jsonl.gz")
    found = replay(tape, 1, 5859, round_robin(1), missed_tokens)
    assert found.hit_rate == pytest.approx(0.309, abs=5e-4)  # `traces.md` §3.4
