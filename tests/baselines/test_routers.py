"""Decisions worked by hand, rule by rule. Views are built here, without a simulator."""

from typing import Any

import numpy as np
import pytest
from made_views import cluster_of, decide, one_view, router_for, view_of

from prefixgym.baselines.choosing import draw
from prefixgym.baselines.router import Router, make_router, router_keys


def decisions(name: str, num_instances: int, count: int = 400, **columns: Any) -> list[int]:
    """What a fresh router decides at decision 0, 1, … of otherwise equal views."""
    router = router_for(num_instances, name)
    views = [one_view(num_instances, request={"index": k}, **columns) for k in range(count)]
    return [decide(router, view) for view in views]


# --- random, round_robin, least_load -----------------------------------------------------------


def test_random_is_uniform_over_the_available() -> None:
    choices = decisions("random", 4, count=3000, available=[1, 0, 1, 1])
    counts = np.bincount(choices, minlength=4)
    assert counts[1] == 0
    assert (abs(counts[[0, 2, 3]] - 1000) < 100).all()  # 4 standard deviations are 103


def test_round_robin_takes_the_available_in_turn() -> None:
    assert decisions("round_robin", 3, count=7) == [0, 1, 2, 0, 1, 2, 0]
    # As in the gateway's own test: with the middle worker down 0, 2, 0, 2.
    assert decisions("round_robin", 3, count=4, available=[1, 0, 1]) == [0, 2, 0, 2]


@pytest.mark.parametrize("name", ["random", "round_robin"])
def test_plan_is_what_route_would_choose(name: str) -> None:
    router = make_router(name)
    router.reset(cluster_of(5), [3, 4])
    plan = router.plan(300)
    assert plan is not None
    for k in range(300):
        view = one_view(5, request={"index": k})
        both = view_of(
            view.cluster,
            np.repeat(view.requests, 2),
            np.repeat(view.block_ids, 2, axis=0),
            np.repeat(view.instances, 2, axis=0),
        )
        assert router.route(both).tolist() == plan[:, k].tolist()
    np.testing.assert_array_equal(router.plan(100, first=150), plan[:, 150:250])


def test_least_load_takes_the_fewest_requests_and_breaks_ties_at_random() -> None:
    assert set(decisions("least_load", 4, requests=[3, 2, 4, 9])) == {1}
    choices = decisions("least_load", 4, requests=[3, 2, 2, 2], available=[1, 1, 0, 1])
    counts = np.bincount(choices, minlength=4)
    assert counts[0] == counts[2] == 0
    assert abs(counts[1] - 200) < 40


# --- power_of_two ------------------------------------------------------------------------------


def test_power_of_two_draws_two_different_instances() -> None:
    # The busiest of three is never the better one of two; the others are chosen 2/3 and 1/3.
    counts = np.bincount(decisions("power_of_two", 3, count=900, waiting=[10, 5, 0]), minlength=3)
    assert counts[0] == 0
    assert abs(counts[2] - 600) < 60


def test_power_of_two_takes_the_first_drawn_of_equals() -> None:
    (key,) = router_keys([0])
    first_drawn = [draw(key, 2 * k, 4) for k in range(400)]  # two draws a decision
    assert decisions("power_of_two", 4, waiting=3) == first_drawn
    # A first draw that is busier loses to any second one.
    lost = decisions("power_of_two", 4, waiting=[3, 3, 4, 3])
    assert {b for a, b in zip(first_drawn, lost, strict=True) if a == 2} == {0, 1, 3}
    assert all(a == b for a, b in zip(first_drawn, lost, strict=True) if a != 2)


def test_power_of_two_can_compare_telemetry_or_the_ledger() -> None:
    view = one_view(2, waiting=[1, 0], running=[1, 1], requests=[0, 7])
    assert decide(router_for(2, "power_of_two"), view) == 1
    assert decide(router_for(2, "power_of_two", load="ledger"), view) == 0


def test_power_of_two_with_one_instance_left() -> None:
    assert set(decisions("power_of_two", 3, available=[0, 1, 0], waiting=[0, 99, 0])) == {1}


# --- prefix_hash -------------------------------------------------------------------------------


def prefix_home(router: Router, ids: list[int], **request: float) -> int:
    return decide(router, one_view(4, ids, request=request))


def test_prefix_hash_looks_at_the_block_that_holds_the_last_prefix_token() -> None:
    # Tokens 0..255 lie in the first block of 512, whatever follows.
    router = router_for(4, "prefix_hash")
    homes = [prefix_home(router, [first, 50 + first, 90]) for first in range(40)]
    assert len(set(homes)) == 4
    assert homes == [prefix_home(router, [first]) for first in range(40)]
    assert homes == [prefix_home(router, [first], prompt_tokens=100) for first in range(40)]
    # So do 512; the 513th token is in the second block, unless the prompt ends before.
    exact = router_for(4, "prefix_hash", prefix_token_count=512)
    assert homes == [prefix_home(exact, [first, 50 + first, 90]) for first in range(40)]
    longer = router_for(4, "prefix_hash", prefix_token_count=513)
    assert homes != [prefix_home(longer, [first, 50 + first, 90]) for first in range(40)]
    assert homes == [prefix_home(longer, [first], prompt_tokens=512) for first in range(40)]
    assert [prefix_home(longer, [7, 50 + k]) for k in range(9)] == [
        prefix_home(longer, [8, 50 + k, 1]) for k in range(9)
    ]


def test_prefix_hash_keeps_its_home_within_the_load_factor() -> None:
    # Total 100 on 4 instances: (100 + 1) / 4 · 1.25 = 31.56.
    router = router_for(4, "prefix_hash")
    ids = next([k] for k in range(99) if prefix_home(router, [k]) == 2)
    assert decide(router, one_view(4, ids, requests=[23, 23, 31, 23])) == 2
    # 32 is too much: the least loaded, the first of equals.
    assert decide(router, one_view(4, ids, requests=[23, 22, 32, 23])) == 1
    assert decide(router, one_view(4, ids, requests=[24, 22, 32, 22])) == 1
    # Equality is within: (7 + 1) / 4 · 1.5 = 3.
    factor = router_for(4, "prefix_hash", load_factor=1.5)
    assert decide(factor, one_view(4, ids, requests=[2, 1, 3, 1])) == 2


def test_prefix_hash_keeps_its_home_when_all_are_overloaded_or_idle() -> None:
    router = router_for(4, "prefix_hash", load_factor=0.5)
    ids = next([k] for k in range(99) if prefix_home(router, [k]) == 3)
    assert decide(router, one_view(4, ids, requests=[9, 9, 9, 10])) == 3  # limit 4.75
    assert decide(router, one_view(4, ids, requests=[0, 0, 0, 0])) == 3


def test_prefix_hash_counts_and_chooses_only_the_available() -> None:
    router = router_for(4, "prefix_hash")
    ids = next([k] for k in range(99) if prefix_home(router, [k]) == 2)
    other = decide(router, one_view(4, ids, available=[1, 1, 0, 1]))
    assert other != 2
    # Three instances, the down one's 90 do not count: the limit of 4 is (10 + 1) / 3 · 1.25 = 4.6,
    # that of 6 is (12 + 1) / 3 · 1.25 = 5.4.
    loads = [3, 3, 90, 3]
    loads[other] = 4
    assert decide(router, one_view(4, ids, available=[1, 1, 0, 1], requests=loads)) == other
    loads[other] = 6
    assert decide(router, one_view(4, ids, available=[1, 1, 0, 1], requests=loads)) != other


def test_prefix_hash_without_a_block_id_takes_the_least_loaded() -> None:
    router = router_for(4, "prefix_hash")
    assert decide(router, one_view(4, [], requests=[5, 2, 2, 8])) == 1


# --- min_ttft, greedy_dump ---------------------------------------------------------------------


def test_min_ttft_adds_backlog_and_own_prefill() -> None:
    for name in ("min_ttft", "greedy_dump"):
        columns: dict[str, Any] = {
            "backlog_seconds": [0.5, 0.2, 0.0],
            "prefill_seconds": [0.1, 0.2, 0.5],
        }
        assert set(decisions(name, 3, **columns)) == {1}
        assert set(decisions(name, 3, available=[1, 0, 1], **columns)) == {2}


def test_min_ttft_breaks_ties_at_random() -> None:
    columns: dict[str, Any] = {
        "backlog_seconds": [0.5, 0.25, 0.0],
        "prefill_seconds": [0.5, 0.25, 0.5],
    }
    counts = np.bincount(decisions("min_ttft", 3, **columns), minlength=3)
    assert counts[0] == 0
    assert abs(counts[1] - 200) < 40


def test_greedy_dump_sends_hopeless_requests_to_the_busiest() -> None:
    router = router_for(3, "greedy_dump")
    columns: dict[str, Any] = {
        "backlog_seconds": [0.75, 2.0, 5.0],
        "prefill_seconds": [0.25, 0.25, 0.25],
    }

    def choose(slo_ttft: float, **more: Any) -> int:
        return decide(router, one_view(3, request={"slo_ttft": slo_ttft}, **columns, **more))

    assert choose(1.0) == 0  # exactly in time
    assert choose(0.99) == 2
    assert choose(0.99, available=[1, 1, 0]) == 1
    equal = one_view(3, request={"slo_ttft": 0.5}, backlog_seconds=[1.0, 3.0, 3.0])
    assert decide(router, equal) in (1, 2)
    late = one_view(3, request={"slo_ttft": 1.0}, **columns)
    late.cluster = cluster_of(3, frontend_latency=0.01)
    assert decide(router, late) == 2
