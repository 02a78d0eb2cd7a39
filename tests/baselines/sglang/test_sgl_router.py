"""SGLang's in-tree cache_aware of September 2026, worked by hand. Prompts have 4096 tokens."""

from typing import Any

import numpy as np
import pytest
from made_views import decide, one_view, router_for

KV_TOKENS = 100 * 512
"""Of the instances of `made_views`, which take 256 sequences."""
SMALL: dict[str, Any] = {
    "cache_affinity_min_matched_tokens": 1,
    "cache_switch_margin_tokens": 32,
    "pressure_abs_threshold_tokens": 100,
}


def choose(hit_tokens: list[int], index: int = 0, **more: Any) -> int:
    columns = {
        key: more.pop(key)
        for key in list(more)
        if key in ("waiting", "waiting_tokens", "running", "requests", "kv_usage", "available")
    }
    prompt = more.pop("prompt_tokens", 4096)
    n = len(hit_tokens)
    view = one_view(
        n, request={"prompt_tokens": prompt, "index": index}, hit_tokens=hit_tokens, **columns
    )
    return decide(router_for(n, "sgl_router_cache_aware", **more), view)


def draws(hit_tokens: list[int], **more: Any) -> list[int]:
    counts = np.bincount(
        [choose(hit_tokens, index=k, **more) for k in range(300)], minlength=len(hit_tokens)
    )
    return [int(count) for count in counts]


def test_the_least_uncached_beyond_the_margin_whatever_the_pressure() -> None:
    assert choose([0, 3600, 2000], waiting_tokens=[0, 10**6, 0]) == 1
    # 3600 - 2575 = 1025 is beyond 1024, 3600 - 2576 is not.
    assert choose([0, 3600, 2575], waiting_tokens=[0, 10**6, 0]) == 1
    assert choose([0, 3600, 2576], waiting_tokens=[0, 10**6, 0]) == 2


def test_within_the_margin_the_pressure_guard_needs_both_thresholds() -> None:
    assert choose([3600, 3500], waiting_tokens=[1025, 0]) == 1
    assert choose([3600, 3500], waiting_tokens=[1024, 0]) == 0
    # 3601 > 1.5 · 2400, 3600 is not.
    assert choose([3600, 3500], waiting_tokens=[3601, 2400]) == 1
    assert choose([3600, 3500], waiting_tokens=[3600, 2400]) == 0
    assert choose([3600, 3500], waiting_tokens=[9999, 0], pressure_guard=False) == 0


def test_the_routers_own_test_of_a_near_gain() -> None:
    # 90 and 80 of 100 tokens matched, 1000 and 10 waiting: the guard takes the idle one.
    vector: dict[str, Any] = {"prompt_tokens": 100, "waiting_tokens": [1000, 10], **SMALL}
    assert choose([90, 80], **vector) == 1
    assert choose([90, 80], **vector | {"pressure_guard": False}) == 0


def test_equal_matches_go_by_pressure_then_index() -> None:
    assert choose([2000, 2000, 2000], waiting_tokens=[5, 4, 4], waiting=[0, 1, 1]) == 1
    assert choose([2000, 2000, 2000], waiting=[1, 1, 0]) == 2
    assert choose([2000, 2000, 2000], running=[1, 0, 0]) == 1
    assert choose([2000, 2000, 2000], requests=[1, 1, 0]) == 2
    assert choose([2000, 2000, 2000]) == 0


def test_owners_need_1024_matched_tokens_and_the_ratio() -> None:
    assert choose([0, 1024], requests=[0, 9], waiting_tokens=[0, 9]) == 1
    assert choose([0, 1023], requests=[0, 9], waiting_tokens=[0, 9]) == 0
    ratio: dict[str, Any] = {"cache_affinity_min_match_ratio": 0.5}
    assert choose([0, 2048], waiting_tokens=[0, 9], **ratio) == 1
    assert choose([0, 2047], waiting_tokens=[0, 9], **ratio) == 0


def test_only_the_first_owners_compete() -> None:
    # 10 owners within the margin: the 9th and 10th by match are not looked at, however idle.
    hits = [3000 - k for k in range(10)]
    waiting = [5000] * 8 + [0, 0]
    assert choose(hits, waiting_tokens=waiting) == 0
    assert choose(hits, waiting_tokens=waiting, cache_candidate_min_workers=9) == 8
    assert choose(hits, waiting_tokens=waiting, cache_candidate_ratio=0.81) == 8
    capped: dict[str, Any] = {"cache_candidate_ratio": 1.0, "cache_candidate_max_workers": 8}
    assert choose(hits, waiting_tokens=waiting, **capped) == 0


def test_an_engine_without_room_is_no_owner() -> None:
    assert choose([3600, 3000], running=[300, 256]) == 1
    assert choose([2000, 3600], running=[0, 255]) == 1
    assert choose([2000, 3600], running=[0, 256]) == 0
    # 4096 tokens fit into 8 % of the KV cache, 47104 of 51200 tokens used.
    assert choose([2000, 3600], kv_usage=[0, 47104 / KV_TOKENS]) == 1
    assert choose([2000, 3600], kv_usage=[0, 47105 / KV_TOKENS]) == 0


def test_the_queue_limit_drops_owners() -> None:
    limit: dict[str, Any] = {"worker_queue_limit": 4}
    assert choose([2000, 3600], waiting=[3, 3], **limit) == 1
    assert choose([2000, 3600], waiting=[3, 4], **limit) == 0
    # No owner left, but an instance without a queue: it gets all requests.
    assert draws([0, 3600, 3600], waiting=[0, 4, 4], **limit) == [300, 0, 0]
    # All instances queue: the owners are back.
    assert choose([0, 3600], waiting=[4, 9], **limit) == 1


def test_the_saturation_floor_keeps_the_least_pressed_owner() -> None:
    floor: dict[str, Any] = {"worker_queue_limit": 4, "saturation_queue_floor": 2}
    assert choose([0, 3600, 2000], waiting=[2, 9, 8], **floor) == 2
    assert choose([0, 3600, 2000], waiting=[1, 9, 8], **floor) == 0
    # Without a floor they are not back, since instance 0 does not queue.
    assert choose([0, 3600, 2000], waiting=[2, 9, 8], worker_queue_limit=4) == 0


def test_a_miss_takes_the_less_pressed_of_two() -> None:
    counts = draws([0, 0, 0], waiting_tokens=[20, 10, 0])
    assert counts[0] == 0
    assert abs(counts[2] - 200) < 35


def test_a_miss_avoids_engines_without_room_or_with_a_full_queue() -> None:
    assert draws([0, 0, 0], running=[256, 256, 0])[2] == 300
    # All queue: among those with room the less pressed ... of all.
    limit: dict[str, Any] = {"worker_queue_limit": 4}
    assert draws([0, 0, 0], waiting=[5, 4, 6], **limit)[1] == 300
    # None has room: two are drawn.
    assert draws([0, 0, 0], running=[256, 257, 258])[0] > 150


def test_balanced_affinity_moves_a_request_only_to_much_less_load() -> None:
    balanced: dict[str, Any] = {"affinity": "balanced"}
    # Loads: 5000 + 496 = 5496 against 0 + 4096: not twice as much.
    assert choose([3600, 0], waiting_tokens=[5000, 0], **balanced) == 0
    # 7697 + 496 = 8193 > 2 · 4096.
    assert choose([3600, 0], waiting_tokens=[7696, 0], **balanced) == 0
    assert choose([3600, 0], waiting_tokens=[7697, 0], **balanced) == 1
    # More than twice, by 1024: 1224 against 200; by 1025.
    near: dict[str, Any] = {"prompt_tokens": 3800, "pressure_guard": False, **balanced}
    assert choose([3700, 3600], waiting_tokens=[1124, 0], **near) == 0
    assert choose([3700, 3600], waiting_tokens=[1125, 0], **near) == 1


def test_balanced_affinity_without_another_engine_that_has_room() -> None:
    full: dict[str, Any] = {"affinity": "balanced", "running": [0, 256]}
    assert choose([3600, 0], waiting_tokens=[10**6, 0], **full) == 0


@pytest.mark.parametrize("available", [[0, 1, 1], [1, 0, 1]])
def test_only_available_instances(available: list[int]) -> None:
    chosen = choose([3600, 3600, 0], available=available)
    assert chosen == available[:2].index(1)
