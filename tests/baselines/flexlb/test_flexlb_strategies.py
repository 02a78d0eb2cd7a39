"""FlexLB's strategies, worked by hand: CostBasedPrefill, ShortestTTFT and CostBasedDecode."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from flexlb_stage import DISPATCHED, ENDED, FIRST_TOKEN, STARTED, Stage
from hypothesis import given
from hypothesis import strategies as st

from prefixgym.baselines.flexlb.cost_based import score_cutoff
from prefixgym.baselines.router import make_router

ONCE: dict[str, Any] = {"flexlb_batch_size_max": 1}
"""Batches of one: nothing is held back, and the ledger knows of a request once it has left."""


def choices(on: Stage, number: int = 200, **columns: Any) -> set[int]:
    """What the router draws in one state, of a router that does not remember what it chose."""
    seen = set()
    for _ in range(number):
        choice = on.route(0, slot=0, **columns)
        seen.add(choice)
    return seen


# --- CostBasedPrefill --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "cutoff"), [(100, 120), (1000, 1100), (0, 20), (219, 240), (-50, -30)]
)
def test_near_ties(least: int, cutoff: int) -> None:
    assert score_cutoff(least, 0.1, 20) == cutoff


def test_a_hit_wins_if_it_is_worth_more_than_the_tolerance() -> None:
    # T̂ = 4096 - 0.7 · hit, cut to whole ms: 4096, 3379 and 3715 or 3718; the cutoff is 3379 + 337.
    on = Stage(3, **ONCE)
    assert choices(on, hit_tokens=[0, 1024, 544]) == {1, 2}
    assert choices(on, hit_tokens=[0, 1024, 540]) == {1}
    on = Stage(3, score_tie_random_enabled=False, **ONCE)
    assert choices(on, hit_tokens=[0, 1024, 544]) == {1}
    assert choices(on, hit_tokens=[0, 1024, 1024]) == {1, 2}


def test_untrained_learning_predictor_does_not_see_caches() -> None:
    on = Stage(2, prefill_predictor_type="learning", **ONCE)
    draws = Counter(
        on.route(1000 * k, prompt=9400, slot=0, hit_tokens=[9216, 0]) for k in range(200)
    )
    assert abs(draws[0] - 100) < 40


def test_work_in_the_ledger_counts() -> None:
    on = Stage(2, **ONCE)
    on.route(0, prompt=1000, slot=0, available=[1, 0])
    on.leave(0, 0, 0)
    # 1000 in flight on 0: 4096 + 1000 against 4096 · 1.1 = 4505.
    assert on.route(0, slot=1) == 1
    # Both have work now; a prompt of 4096 with a hit of 2048 costs 2662.
    on.leave(0, 1, 1)
    assert on.route(0, slot=2, hit_tokens=[0, 2048]) == 0  # 5096 against 2662 + 4096


def test_pending_requests_close_a_worker_until_fifteen_percent_below() -> None:
    on = Stage(2, prefill_queue_size_threshold=20, **ONCE)
    for slot in range(20):
        assert on.route(0, prompt=1, slot=slot, available=[1, 0]) == 0
        on.leave(0, 0, slot)
    assert on.route(0, slot=100, available=[1, 0]) == 2  # NO_AVAILABLE_WORKER
    assert on.route(0, slot=100) == 1
    for slot in range(2):
        on.hear(1, slot, 0, STARTED, FIRST_TOKEN)
    assert on.route(20, slot=101, available=[1, 0]) == 2  # 18 are left
    on.hear(21, 2, 0, STARTED, FIRST_TOKEN)
    assert on.route(39, slot=101, available=[1, 0]) == 2  # not known yet
    assert on.route(40, slot=101, available=[1, 0]) == 0  # 17 = 20 · 0.85


def test_what_is_pending() -> None:
    on = Stage(2, prefill_queue_size_threshold=5)
    for slot in range(3):
        on.route(0, slot=slot, available=[1, 0])
    on.leave(0, 0, 0)
    # One in the ledger, two in the queue, and two in the engine beyond the one.
    assert on.route(1, slot=9, available=[1, 0], waiting=[3, 0]) == 2
    # The 15 % of 5 below which it comes back is 4.
    assert on.route(1, slot=9, available=[1, 0], waiting=[2, 0]) == 0


def test_slo_filter_looks_at_prefill_and_ledger_but_not_at_the_batcher() -> None:
    parameters: dict[str, Any] = {"cost_slo_filter_enabled": True, **ONCE}
    on = Stage(2, **parameters)
    on.route(0, prompt=300, slot=0, available=[1, 0])
    on.leave(0, 0, 0)
    # slo - margin = 400; worker 0 has 300 in flight.
    assert on.route(0, prompt=100, slot=1, available=[1, 0]) == 0
    on.leave(0, 0, 1)
    assert on.route(0, prompt=1, slot=2, available=[1, 0]) == 2
    assert on.route(0, prompt=401, slot=2) == 2
    held = Stage(1, cost_slo_filter_enabled=True)
    assert held.route(0, prompt=400, slot=0) == 0  # T_batcher is 300
    buckets = Stage(1, cost_slo_buckets="1000: 900, 100:150", **parameters)
    assert buckets.route(0, prompt=100, slot=0) == 1  # 100 > 150 - 100
    assert buckets.route(0, prompt=800, slot=0) == 0
    assert buckets.route(0, prompt=50, slot=0) == 0
    assert buckets.route(0, prompt=2000, slot=0) == 1  # the last bucket's 900


def test_hot_spot_and_imbalance_filters() -> None:
    # Five workers; worker 0 has nine requests of 1 token, the others two: mean 17 // 5 = 3, and
    # 9 > 3 · 3 does not hold; with one more it does. A cache hit there would win otherwise.
    for on_first, expected in [(9, 0), (10, 1)]:
        on = Stage(5, score_tie_threshold_ms=0, score_tie_threshold_pct=0.0, **ONCE)
        slot = 0
        for worker, number in enumerate([on_first, 2, 2, 2, 2]):
            for _ in range(number):
                alone = [i == worker for i in range(5)]
                on.route(0, prompt=1, slot=slot, available=alone)
                on.leave(0, worker, slot)
                slot += 1
        hits = [4095, 4000, 0, 0, 0]
        assert on.route(0, slot=99, hit_tokens=hits) == expected
    # T_inflight 4000 on one of five: mean 800, above 3 times that.
    on = Stage(5, **ONCE)
    on.route(0, prompt=4000, slot=0, available=[1, 0, 0, 0, 0])
    on.leave(0, 0, 0)
    huge: dict[str, Any] = {"prompt": 40_000, "hit_tokens": [39_000, 0, 0, 0, 0]}
    assert on.route(0, slot=1, **huge) != 0  # although 4000 + 12,700 is far below 40,000
    on.router.cost_imbalance_multiplier = 0.0
    assert on.route(0, slot=1, **huge) == 0


def test_if_the_filters_leave_nobody_the_least_waiting_stays() -> None:
    on = Stage(2, cost_imbalance_multiplier=0.5, **ONCE)
    for slot, prompt in enumerate((4000, 2000)):
        on.route(0, prompt=prompt, slot=slot, available=[slot == 0, slot == 1])
        on.leave(0, slot, slot)
    assert on.route(0, slot=9, prompt=10_000, hit_tokens=[9999, 0]) == 1


def test_arrivals_herd_within_a_window() -> None:
    """A queue that has begun is a shorter wait than an empty one, and no work is seen on it."""
    on = Stage(2, cost_formula_compute_ms=0.05)
    first = on.route(0, slot=0)
    # 204 + 300 elsewhere, 204 + 240 there, and 10 % of that do not bridge the difference.
    followers = [on.route(60 + k, slot=1 + k) for k in range(7)]
    assert followers == [first] * 7
    assert on.release_ms(first) == 66
    assert on.inflight(66, first) == 0
    # On four workers the filter of hot spots ends it with the fourth: 4 > 3 · (4 // 4).
    on = Stage(4, cost_formula_compute_ms=0.05)
    first = on.route(0, slot=0)
    followers = [on.route(60 + k, slot=1 + k) for k in range(4)]
    assert followers[:3] == [first] * 3
    assert followers[3] != first


def test_without_a_batcher_the_backlog_compounds() -> None:
    """A request is booked with min S, in which the ledger's wait is: 1, 2, 4, … times the work."""
    on = Stage(1, flexlb_batch_enabled=False, flexlb_batch_size_max=1)
    for slot in range(4):
        on.route(0, prompt=100, slot=slot)
    assert on.inflight(0) == 100 + 200 + 400 + 800
    # And with batches of eight, a window is always in it, as the batcher's queue is empty.
    on = Stage(1, flexlb_batch_enabled=False)
    on.route(0, prompt=100, slot=0)
    assert on.release_ms() == 0
    assert on.inflight(0) == 400
    on.hear(0, 0, 0, DISPATCHED, STARTED)
    assert on.inflight(150) == 250  # time runs from the commitment
    on.hear(190, 0, 0, FIRST_TOKEN)
    on.listen(200)
    assert on.inflight(200) == 0


def test_without_a_batcher_the_score_of_the_best_is_booked_not_the_chosen_ones() -> None:
    on = Stage(2, flexlb_batch_enabled=False, flexlb_batch_size_max=1)
    booked = {}
    for seed in range(20):
        on = Stage(2, seed=seed, flexlb_batch_enabled=False, flexlb_batch_size_max=1)
        choice = on.route(0, prompt=1000, slot=0, hit_tokens=[100, 0])
        booked[choice] = on.inflight(0, choice)
    assert booked == {0: 930, 1: 930}


def test_without_a_batcher_requests_are_pending_once_a_poll_has_named_them() -> None:
    on = Stage(1, prefill_queue_size_threshold=2, flexlb_batch_enabled=False)
    for slot in range(3):
        assert on.route(1, slot=slot) == 0
        on.leave(1, 0, slot)
    assert on.route(19, slot=3) == 0
    assert on.route(20, slot=4) == 1


def test_uniform_over_near_ties() -> None:
    on = Stage(5, **ONCE)
    draws = Counter(on.route(0, slot=0, hit_tokens=[0, 100, 0, 0, 2000]) for _ in range(400))
    assert set(draws) == {4}
    draws = Counter(on.route(0, slot=0, hit_tokens=[0, 100, 0, 0, 200]) for _ in range(1000))
    assert all(abs(draws[i] - 200) < 60 for i in range(5))


# --- ShortestTTFT ------------------------------------------------------------------------------


def test_the_least_recently_chosen_of_the_fastest_third() -> None:
    on = Stage(10, "flexlb_shortest_ttft", **ONCE)
    hits = [0, 0, 400, 0, 300, 0, 200, 0, 100, 0]
    columns: dict[str, Any] = {"hit_tokens": hits}
    # The pool is 2, 4, 6.
    assert [on.route(k, slot=0, **columns) for k in range(5)] == [2, 4, 6, 2, 4]
    single = Stage(3, "flexlb_shortest_ttft", **ONCE)
    assert [single.route(k, slot=0, hit_tokens=[0, 9, 0]) for k in range(3)] == [1, 1, 1]


def test_equal_ttft_goes_by_last_choice_then_by_index() -> None:
    on = Stage(3, "flexlb_shortest_ttft", **ONCE)
    assert [on.route(0, slot=0) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_fixed_pool_and_no_batcher_term() -> None:
    pool: dict[str, Any] = {
        "shortest_ttft_candidate_pool_mode": "FIXED",
        "shortest_ttft_candidate_pool_size": 2,
    }
    on = Stage(4, "flexlb_shortest_ttft", **pool)
    hits = [0, 500, 0, 600]
    # The queue that has begun on 3 makes no difference.
    assert [on.route(k, slot=k, hit_tokens=hits) for k in range(4)] == [3, 1, 3, 1]
    on = Stage(2, "flexlb_shortest_ttft", flexlb_batch_enabled=False)
    assert on.route(0, prompt=1000, slot=0, hit_tokens=[100, 0]) == 0
    assert on.inflight(0, 0) == 930  # the prefill alone, no window
    assert on.route(0, prompt=1000, slot=1, hit_tokens=[100, 0]) == 1


# --- CostBasedDecode ---------------------------------------------------------------------------

CAPACITY = 100 * 512  # tokens, of a made cluster's instance


def decode(num_instances: int = 2, seed: int = 0, **parameters: Any) -> Stage:
    return Stage(num_instances, "flexlb_decode", seed, **parameters)


def share_of_first(used: list[float], **parameters: Any) -> float:
    on = decode(len(used), **parameters)
    kv = np.array(used) / CAPACITY
    draws = []
    for k in range(1000):
        draws.append(on.route(k, prompt=10, slot=0, kv_usage=kv))
        on.hear(k, 0, draws[-1], STARTED)
    return draws.count(0) / len(draws)


def test_weights_fall_with_used_kv() -> None:
    # exp(-0.001 · 1000) against 1: e / (1 + e) = 0.731 for the one with 1000 tokens less.
    assert share_of_first([1000, 2000]) == pytest.approx(0.731, abs=0.04)
    assert share_of_first([1000, 1000]) == pytest.approx(0.5, abs=0.05)
    assert share_of_first([1000, 2000], weighted_cache_decay_factor=0.0) == pytest.approx(
        0.5, abs=0.05
    )


def test_reservations_last_until_the_worker_reports() -> None:
    on = decode(weighted_cache_decay_factor=1.0)
    first = on.route(0, prompt=500, slot=0)
    assert on.router._reserved["expected"][0, first] == 1500
    assert on.router._reserved["prompt"][0, first] == 500
    assert on.route(1, prompt=500, slot=1) == 1 - first
    on.hear(2, 0, first, DISPATCHED)
    on.route(3, prompt=50, slot=2, available=[first == 1, first == 0])
    on.hear(4, 0, first, STARTED, FIRST_TOKEN, ENDED)
    assert on.route(5, prompt=500, slot=3) == first
    assert on.router._reserved["expected"][0, first] == 1500


def test_an_expectation_is_at_most_the_capacity() -> None:
    on = decode(1)
    on.route(0, prompt=CAPACITY - 10, slot=0)
    assert on.router._reserved["expected"][0, 0] == CAPACITY


def test_full_workers_are_closed_with_hysteresis() -> None:
    on = decode()
    assert {on.route(k, slot=0, kv_usage=[0.9, 0.5], prompt=1) for k in range(30)} == {1}
    on = decode(1, weighted_cache_decay_factor=0.0)
    usage = [0.89, 0.9, 0.89, 0.77, 0.765, 0.89]
    chosen = []
    for k, share in enumerate(usage):
        chosen.append(on.route(k, prompt=1, slot=0, kv_usage=share))
        on.hear(k, 0, 0, ENDED)
    assert chosen == [0, 1, 1, 1, 0, 0]


def test_room_for_the_prompt_beside_the_prompts_reserved() -> None:
    on = decode(1, decode_available_memory_threshold=100)
    assert on.route(0, prompt=30_000, slot=0) == 0
    assert on.route(1, prompt=CAPACITY - 30_000 + 1, slot=1) == 1
    assert on.route(2, prompt=CAPACITY - 30_000, slot=2) == 0


def test_decode_hot_spots_imbalance_and_limit() -> None:
    flat: dict[str, Any] = {"weighted_cache_decay_factor": 0.0}

    def seen(columns: dict[str, Any], **parameters: Any) -> set[int]:
        chosen = set()
        on = decode(4, **flat, **parameters)
        for k in range(100):
            chosen.add(on.route(k, prompt=1, slot=0, **columns))
            on.hear(k, 0, 0, ENDED)
        return chosen

    # Means 13 // 4 = 3 and 12 // 4 = 3: 10 > 9, 9 is not.
    assert seen({"requests": [10, 1, 1, 1]}) == {1, 2, 3}
    assert seen({"requests": [9, 1, 1, 1]}) == {0, 1, 2, 3}
    assert seen({"running": [9, 1, 1, 1], "waiting": [1, 0, 0, 0]}) == {1, 2, 3}
    assert seen({"requests": [10, 1, 1, 1]}, decode_hotspot_multiplier=0.0) == {0, 1, 2, 3}
    assert seen({"kv_usage": [0.5, 0.01, 0.01, 0.01]}) == {1, 2, 3}
    assert seen({"requests": [2, 1, 2, 3]}, decode_concurrency_limit=2) == {1}
    assert seen({"requests": 2}, decode_concurrency_limit=2) == {4}


# --- parameters --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("flexlb", {"prefill_predictor_type": "x"}, "found 'x', allowed: formula, learning"),
        ("flexlb", {"cost_slo_buckets": "100"}, "found '100', allowed: entries \"tokens:ms\""),
        ("flexlb", {"flexlb_batch_size_max": 0}, "flexlb_batch_size_max: found 0, allowed: at le"),
        ("flexlb", {"flexlb_batch_slo_max_inflight_batches": 17}, "found 17, allowed: 0 to 16"),
        ("flexlb", {"score_tie_threshold_pct": -1}, "score_tie_threshold_pct: found -1.0"),
        ("flexlb", {"hysteresis_bias_percent": 101}, "found 101, allowed: 0 to 100"),
        ("flexlb_shortest_ttft", {"shortest_ttft_candidate_pool_ratio": 0}, "found 0.0, allowed"),
        ("flexlb_decode", {"max_new_tokens_cap": -1}, "found -1, allowed: at least 0"),
    ],
)
def test_bad_parameters(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_router(name, parameters)


@given(
    hits=st.lists(st.integers(0, 4000), min_size=3, max_size=3),
    up=st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_the_choice_is_within_the_tolerance_of_the_best(hits: list[int], up: list[bool]) -> None:
    on = Stage(3, **ONCE)
    choice = on.route(0, hit_tokens=hits, available=up)
    scores = [int(4096 - hit + 0.3 * hit) for hit in hits]
    if not any(up):
        assert choice == 3
    else:
        least = min(score for score, is_up in zip(scores, up, strict=True) if is_up)
        assert up[choice]
        assert scores[choice] <= least + max(int(0.1 * least), 20)
