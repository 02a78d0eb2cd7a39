"""CacheRoute, worked by hand."""

import math
from typing import Any

import numpy as np
from made_views import BLOCK, decide, one_view, router_for

IDLE = [0, 0, 0]


def arrive(
    router: Any, key: int, time: float, loads: list[int] | None = None, available: Any = 1
) -> int:
    loads = loads or IDLE
    request = {"prompt_tokens": 4 * BLOCK, "time": time, "index": int(time * 1000)}
    view = one_view(len(loads), [1, 2, 3, key], request, requests=loads, available=available)
    return decide(router, view)


def planned(
    counts: dict[int, int], instances: int = 3, **parameters: Any
) -> tuple[Any, dict[int, int]]:
    """A router at time 10 with a plan from these arrivals, and the home of each key by it."""
    router = router_for(instances, "cacheroute", **{"period": 10.0, **parameters})
    keys = [key for key, count in counts.items() for _ in range(count)]
    for k, key in enumerate(keys):
        arrive(router, key, 10 * k / len(keys), [0] * instances)
    return router, {key: arrive(router, key, 10.0, [0] * instances) for key in counts}


def test_longest_processing_time_first() -> None:
    # Rates 8, 7, 6, 5, 4 on three instances: 8 | 7 | 6, then 5 to the third (6 < 7 < 8), and 4 to
    # the second (7 < 8 < 11).
    _, homes = planned({10: 8, 11: 7, 12: 6, 13: 5, 14: 4})
    assert homes == {10: 0, 11: 1, 12: 2, 13: 2, 14: 1}


def test_equal_rates_are_planned_in_order_of_their_keys() -> None:
    _, homes = planned({12: 2, 11: 2, 10: 2, 13: 2})
    assert homes == {10: 0, 11: 1, 12: 2, 13: 0}


def test_a_planned_key_stays_at_home_whatever_the_load() -> None:
    router, homes = planned({10: 8, 11: 7, 12: 6})
    for key, home in homes.items():
        loads = [99 * (i == home) for i in range(3)]
        assert {arrive(router, key, 11 + k / 100, loads) for k in range(30)} == {home}


def test_other_keys_take_the_less_loaded_of_two() -> None:
    router, _ = planned({10: 8, 11: 7, 12: 6}, warm_keys=2)
    choices = [arrive(router, 12, 11 + k / 100, [1, 0, 2]) for k in range(300)]
    counts = np.bincount(choices, minlength=3)
    # Pairs (0, 1), (0, 2), (1, 2) with equal probability: 0 wins one, 1 wins two, 2 none.
    assert counts[2] == 0
    assert abs(counts[1] - 200) < 40


def test_there_is_no_plan_in_the_first_period() -> None:
    router = router_for(3, "cacheroute", period=10.0)
    choices = {arrive(router, 5, k / 10) for k in range(99)}
    assert choices == {0, 1, 2}
    assert len({arrive(router, 5, 10 + k / 10) for k in range(99)}) == 1


def test_plans_follow_the_window() -> None:
    router, homes = planned({10: 8, 11: 7, 12: 6}, window_requests=21)
    assert homes[10] == 0
    # In the second period only key 12 and then 11 come: they are planned first now.
    for k in range(21):
        arrive(router, 12 if k < 12 else 11, 11 + k / 3)
    assert [arrive(router, key, 20.0) for key in (12, 11)] == [0, 1]


def test_copies_of_a_hot_key_share_it() -> None:
    # 20 arrivals in 10 s are 2 requests/s: two copies of at most 1 each; 10: one. Loads 1 | 1, then
    # the second key's 1 to the third.
    router, homes = planned({10: 20, 11: 10}, q_cap=1.0)
    assert homes == {10: 0, 11: 2}
    assert arrive(router, 10, 11.0, [3, 2, 0]) == 1
    assert arrive(router, 10, 11.1, [2, 3, 0]) == 0
    assert arrive(router, 10, 11.2, [2, 2, 0]) == 0
    # Never more copies than instances.
    router, _ = planned({10: 20}, q_cap=0.1)
    assert [arrive(router, 10, 11.0, loads) for loads in ([0, 1, 1], [1, 0, 1], [1, 1, 0])] == [
        0, 1, 2
    ]  # fmt: skip
    assert math.ceil(2.0 / 0.1) == 20


def test_a_key_whose_home_is_down_takes_two_choices() -> None:
    router, homes = planned({10: 8, 11: 7, 12: 6})
    assert homes[10] == 0
    choices = {arrive(router, 10, 11 + k / 100, available=[0, 1, 1]) for k in range(40)}
    assert choices == {1, 2}
    assert arrive(router, 10, 12.0) == 0


def test_a_short_prompt_has_no_key() -> None:
    router = router_for(3, "cacheroute", period=1.0)
    choices = set()
    for k in range(60):
        request = {"prompt_tokens": 4 * BLOCK - 1, "time": k / 10, "index": k}
        choices.add(decide(router, one_view(3, [1, 2, 3, 4], request)))
    assert choices == {0, 1, 2}
