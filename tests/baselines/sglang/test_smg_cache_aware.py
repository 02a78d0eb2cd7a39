"""SGLang's cache_aware with a gate per request, worked by hand; on a tree and on a hash index."""

from typing import Any

import numpy as np
import pytest
from made_views import decide, one_view, router_for

from prefixgym.baselines.router import Router

HASH = "smg_cache_aware_hash"


def started(num_instances: int, name: str = "smg_cache_aware", **parameters: Any) -> Router:
    return router_for(num_instances, name, **parameters)


def send(router: Router, ids: list[int], requests: list[int], **more: Any) -> int:
    names = [name for name in ("time", "index", "prompt_tokens") if name in more]
    request: dict[str, float] = {name: more.pop(name) for name in names}
    return decide(router, one_view(len(requests), ids, request, requests=requests, **more))


def test_a_miss_goes_to_the_least_loaded_then_the_least_used_then_the_first() -> None:
    router = started(3)
    assert send(router, [1], [1, 0, 0]) == 1
    assert send(router, [2], [1, 0, 0]) == 2  # 1 was sent one before
    assert send(router, [3], [1, 0, 0]) == 1
    assert send(router, [4], [0, 0, 0]) == 0
    assert send(router, [5], [0, 0, 0], available=[0, 1, 1]) == 2


def test_the_match_has_to_exceed_the_threshold() -> None:
    for threshold, expected in [(0.49, 2), (0.5, 0)]:
        router = started(3, cache_threshold=threshold)
        assert send(router, [1, 2], [1, 1, 0]) == 2
        assert send(router, [1, 2, 3, 4], [0, 1, 1]) == expected


def test_only_whole_blocks_count() -> None:
    router = started(2, cache_threshold=0.3)
    assert send(router, [1, 2], [1, 0], prompt_tokens=600) == 1
    # Block 2 is partial: 512 of 1600 tokens are known, also after that of 1024 was sent elsewhere.
    assert send(router, [1, 2, 3, 4], [0, 1], prompt_tokens=1600) == 1
    assert send(router, [1, 9, 8, 7], [0, 1], prompt_tokens=1800) == 0


def test_the_gate_needs_both_margins_strictly() -> None:
    def spills(requests: list[int], **parameters: Any) -> bool:
        router = started(2, **parameters)
        assert send(router, [1], [1, 0]) == 1
        return send(router, [1], requests) == 0

    # Mean 64: 128 is not above 64 + 64; mean 65: 130 is above 129 and 97.5.
    assert not spills([0, 128])
    assert spills([0, 130])
    # Mean 200: 300 is not above 1.5 · 200; mean 200.5: 301 is above 300.75.
    assert not spills([100, 300])
    assert spills([100, 302])
    assert spills([0, 3], balance_abs_threshold=1)
    assert not spills([0, 2], balance_abs_threshold=1)


def test_only_the_busy_prefix_spills_and_is_then_held_twice() -> None:
    router = started(3)
    assert send(router, [1], [1, 0, 1]) == 1
    assert send(router, [2], [1, 1, 0]) == 2
    busy = [0, 200, 20]
    assert send(router, [1], busy) == 0
    assert send(router, [2], busy) == 2  # in the classic router this would spill as well
    # Now 0 and 1 hold the prefix: the less loaded of them.
    assert send(router, [1], [9, 8, 0]) == 1
    assert send(router, [1], [7, 8, 0]) == 0


def test_equal_holders_are_drawn() -> None:
    router = started(3)
    assert send(router, [1], [1, 0, 1]) == 1
    assert send(router, [1], [0, 200, 20]) == 0
    counts = np.bincount([send(router, [1], [5, 5, 0], index=k) for k in range(400)], minlength=3)
    assert counts[2] == 0
    assert abs(counts[0] - 200) < 40


def test_holders_that_are_all_down_mean_the_first_available_and_no_memory() -> None:
    router = started(3)
    assert send(router, [1], [1, 1, 0]) == 2
    assert send(router, [1], [9, 0, 0], available=[1, 1, 0]) == 0
    assert send(router, [1], [0, 0, 9]) == 2


def test_overlap_decay() -> None:
    router = started(2, overlap_decay=1.0)
    assert send(router, [1], [1, 0]) == 1
    assert send(router, [1], [0, 200]) == 0
    # Equal waiting: the less loaded of the holders; 1 more token waiting: the other one.
    assert send(router, [1], [2, 1], waiting_tokens=[7, 7]) == 1
    assert send(router, [1], [2, 1], waiting_tokens=[7, 8]) == 0
    # Off, waiting does not count.
    assert send(started(2), [1], [1, 0]) == 1


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 0.269), (0.25, 0.018)])
def test_selection_temperature(temperature: float, share: float) -> None:
    # Two holders, normalised scores 1 and 0: exp(-1 / T) / (1 + exp(-1 / T)) for the worse one.
    router = started(2, overlap_decay=1.0, selection_temperature=temperature)
    assert send(router, [1], [1, 0]) == 1
    assert send(router, [1], [0, 200]) == 0
    choices = [send(router, [1], [1, 1], waiting_tokens=[0, 5000], index=k) for k in range(2000)]
    assert abs(np.mean(choices) - share) < 0.04


@pytest.mark.parametrize("name", ["smg_cache_aware", HASH])
def test_memory_pressure_turns_affinity_off(name: str) -> None:
    boundary = {"cache_boundaries": "512"} if name == HASH else {}

    def keeps(kv_usage: list[float], **thresholds: float) -> bool:
        router = started(2, name, **boundary, **thresholds)
        assert send(router, [1], [1, 0]) == 1
        return send(router, [1], [0, 1], kv_usage=kv_usage) == 1

    assert keeps([0.0, 1.0])
    assert keeps([0.9, 0.5], overload_token_usage_threshold=0.9)
    assert not keeps([0.91, 0.5], overload_token_usage_threshold=0.9)
    assert keeps([0.25, 0.75], balance_token_usage_threshold=0.5)
    assert not keeps([0.25, 0.76], balance_token_usage_threshold=0.5)


@pytest.mark.parametrize(
    ("name", "boundary"), [("smg_cache_aware", {}), (HASH, {"cache_boundaries": "512"})]
)
def test_any_number_of_prefixes(name: str, boundary: dict[str, str]) -> None:
    router = started(3, name, **boundary)
    for k in range(3000):
        assert send(router, [k], [int(i != k % 3) for i in range(3)]) == k % 3
    assert [send(router, [k], [0, 0, 0]) for k in range(6)] == [0, 1, 2, 0, 1, 2]


# --- cache_index = hash ------------------------------------------------------------------------


def test_without_boundaries_every_request_goes_to_the_least_loaded() -> None:
    router = started(2, HASH)
    assert send(router, [1], [1, 0]) == 1
    assert send(router, [1], [0, 1]) == 0


def test_the_deepest_boundary_with_a_holder_decides() -> None:
    router = started(3, HASH, cache_boundaries="1024, 512")
    assert send(router, [1, 2], [1, 1, 0]) == 2
    assert send(router, [1, 3], [1, 0, 9]) == 2  # by the head of 512; now also at [1, 3]
    assert send(router, [9], [0, 1, 1]) == 0
    # Prompts shorter than every boundary are not looked up: the least loaded.
    assert send(router, [9], [1, 0, 1], prompt_tokens=511) == 1
    # At 512 there are two holders after a spill, at 1024 one.
    assert send(router, [1, 4], [0, 0, 200]) == 0
    assert send(router, [1, 2], [0, 0, 9]) == 2
    assert send(router, [1, 5], [0, 0, 9]) == 0


def test_three_holders_the_stalest_gives_way() -> None:
    above_mean: dict[str, Any] = {"balance_abs_threshold": 0, "balance_rel_threshold": 0}
    router = started(4, HASH, cache_boundaries="512", **above_mean)
    for time, idle in enumerate([0, 1, 2, 3]):
        requests = [0 if k == idle else 9 for k in range(4)]
        # Every holder so far is above the mean, so the idle one becomes the next.
        assert send(router, [1], requests, time=float(time)) == idle
    # 0 has given way to 3.
    assert send(router, [1], [0, 9, 1, 9], time=4.0) == 2


def test_a_holder_is_forgotten_after_its_time() -> None:
    router = started(2, HASH, cache_boundaries="512")
    assert send(router, [1], [1, 0], time=0.0) == 1
    assert send(router, [1], [0, 1], time=180.0) == 1
    assert send(router, [1], [0, 1], time=360.5) == 0


def test_a_holder_that_is_down_is_passed_over() -> None:
    router = started(3, HASH, cache_boundaries="512,1024")
    assert send(router, [1], [1, 0, 1]) == 1
    assert send(router, [1, 2], [1, 9, 0], available=[1, 0, 1]) == 2
    assert send(router, [1, 2], [0, 0, 9]) == 2
    assert send(router, [1, 3], [0, 4, 5]) == 1
