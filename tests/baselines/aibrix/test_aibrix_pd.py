"""AIBrix's prefill/decode scorer on mixed instances: decisions worked by hand."""

from typing import Any

import pytest
from made_views import decide, one_view, router_for, view_of

from prefixgym.baselines.router import Router
from prefixgym.envs.view.view import ENDED, FIRST_TOKEN


def send(
    router: Router,
    ids: list[int],
    time: float = 0.0,
    ends: tuple[int, ...] = (),
    kind: int = ENDED,
    **columns: Any,
) -> int:
    """A decision before which requests ended on the instances `ends`."""
    num_pods = len(columns["requests"])
    view = one_view(num_pods, ids, {"time": time, "index": int(10 * time)}, **columns)
    events = [(time, 0, instance, kind) for instance in ends]
    view = view_of(view.cluster, view.requests, view.block_ids, view.instances, [events])
    return decide(router, view)


def homes(ids: list[int], **columns: Any) -> set[int]:
    """What fresh routers of many seeds decide."""
    pods = len(columns["requests"])
    return {send(router_for(pods, "aibrix_pd", seed=s), ids, **columns) for s in range(30)}


def test_more_than_16_prefills_apart_one_of_the_least_is_drawn() -> None:
    columns: dict[str, Any] = {"requests": [0, 0, 0], "prefill_requests": [17, 0, 0]}
    assert homes([1], **columns) == {1, 2}
    # 16 are allowed: the next check counts requests in flight.
    assert homes([1], requests=[16, 9, 0], prefill_requests=[16, 0, 0]) == {2}


def test_16_requests_apart_the_least_wins_the_first_of_equals() -> None:
    assert homes([1], requests=[3, 3, 19]) == {0}
    # 15 are allowed, so the throughput counts: 2048 apart still is, 2049 is not.
    assert homes([1], requests=[3, 4, 18], throughput=[2049, 0, 9]) == {1}
    # Scores: decode 3/18 + 0, 4/18 + 1 and 18/18 + 1 - 9/2048.
    assert homes([1], requests=[3, 4, 18], throughput=[2048, 0, 9]) == {0}


def test_the_soonest_drained_wins_if_the_slowest_takes_half_as_long_again() -> None:
    # Requests / ends of the last minute: 3/1, 3/2, 2/1: 3 > 1.5 · 1.5. On scores 2 would win.
    router = router_for(3, "aibrix_pd")
    assert send(router, [1], 1.0, (0, 1, 1, 2), requests=[3, 3, 2]) == 1
    # After a minute they are forgotten, and one pod without any drops the check.
    assert send(router, [2], 61.0, (1, 1, 0), requests=[3, 3, 2]) == 2
    # 3/1 is not more than 1.5 · 2/1. First tokens are no ends.
    router = router_for(3, "aibrix_pd")
    assert send(router, [1], 1.0, (0, 1, 2), requests=[3, 3, 2]) == 2
    router = router_for(3, "aibrix_pd")
    assert send(router, [1], 1.0, (0, 1, 1, 2), FIRST_TOKEN, requests=[3, 3, 2]) == 2


def test_the_sum_of_both_scores_decides() -> None:
    router = router_for(2, "aibrix_pd")
    assert send(router, [1, 2], requests=[0, 1]) == 0
    # Prefill, p = 1 and 0: (50 · 0.1 + 1) / 10 = 0.6 against 10 / 10. Decode, r = 3 and 1:
    # (3/3 + 1) / 1 = 2 → 1 against (1/3 + 1) / 1 = 4/3 → 2/3. 1.6 < 1.67.
    columns: dict[str, Any] = {"requests": [3, 1], "prefill_requests": [1, 0]}
    # mean 0.5 + sample deviation 0.71: 1 prefill is usual.
    assert send(router, [1, 3], 0.1, **columns) == 0
    # With half of the KV of 0 in use its decode score is 4 → 1, the other's 4/3 → 1/3.
    router = router_for(2, "aibrix_pd")
    assert send(router, [1, 2], requests=[0, 1]) == 0
    assert send(router, [1, 3], 0.1, kv_usage=[0.5, 0.0], **columns) == 1


def test_unusually_many_prefills_rule_a_pod_out() -> None:
    router = router_for(4, "aibrix_pd")
    assert send(router, [1, 2], requests=[0, 1, 1, 1]) == 0
    # p = 2, 0, 0, 0: mean 0.5, sample deviation 1, and 2 > 1.5, although all of it matches.
    columns: dict[str, Any] = {"requests": [0, 9, 9, 9], "prefill_requests": [2, 0, 0, 0]}
    assert send(router, [1, 2], 0.1, **columns) != 0
    columns["prefill_requests"] = [1, 1, 0, 0]
    router = router_for(4, "aibrix_pd")
    assert send(router, [1, 2], requests=[0, 1, 1, 1]) == 0
    assert send(router, [1, 2], 0.1, **columns) == 0


def test_equal_sums_are_drawn_and_unavailable_pods_left_out() -> None:
    assert homes([1], requests=[2, 2, 2]) == {0, 1, 2}
    assert homes([1], requests=[0, 2, 2], available=[0, 1, 1]) == {1, 2}
    assert homes([1], requests=[99, 2, 1], available=[0, 1, 1]) == {2}


def test_bad_parameters() -> None:
    with pytest.raises(ValueError, match=r"decode_score_ratio_threshold: found 0.5, allowed: at"):
        router_for(2, "aibrix_pd", decode_score_ratio_threshold=0.5)
