"""SMetric, worked by hand."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from made_views import BLOCK, decide, one_view, router_for

from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.cluster.profiles import CompactModel, LinearPart, constant_profile
from prefixgym.envs.cluster.step_time import prefill_ticks

FOUR_BLOCKS = 4 * BLOCK


def turn(router: Any, session: int = 0, slo_ttft: float = 1.0, **columns: Any) -> int:
    request = {"prompt_tokens": FOUR_BLOCKS, "session": session, "slo_ttft": slo_ttft}
    return decide(router, one_view(3, [1, 2, 3, 4], request, **columns))


def test_the_papers_cost_is_the_profiles_step_model() -> None:
    # cost(L, c) = c_lin n + c_attn n (L - n/2), with L = 10,000 and c = 4,000 in one step:
    # 0.02 · 6000 + 1e-6 · 6000 · 7000 = 120 + 42 ms.
    linear = LinearPart(t0=0.0, a=0.0, q=1.0, b=0.015, t_experts=0.0, nu=0.0)
    model = CompactModel(linear, linear, None, (0.0, 0.005, 1e-6), (0.0, 0.0, 0.0))
    cost = dataclasses.replace(constant_profile(0.0, 0.0), step_model=model).step_cost()
    costs = np.array([cost])
    assert prefill_ticks(costs[0], 6000, 4000, 8192) == pytest.approx(162 * TICKS_PER_MS, rel=1e-9)
    # The sum over chunks is the same: Σ k (c + k/2) telescopes.
    assert prefill_ticks(costs[0], 6000, 4000, 512) == pytest.approx(162 * TICKS_PER_MS, rel=1e-9)


def test_a_first_turn_takes_the_least_wait_whatever_the_hits() -> None:
    columns: dict[str, Any] = {
        "backlog_seconds": [0.5, 0.2, 0.0],
        "prefill_seconds": [0.1, 0.2, 0.5],
        "hit_tokens": [3 * BLOCK, 0, 0],
    }
    assert turn(router_for(3, "smetric"), **columns) == 1


def test_a_follow_up_takes_the_most_cached_within_slack_of_the_objective() -> None:
    router = router_for(3, "smetric", SLACK=0.8)
    columns: dict[str, Any] = {"hit_tokens": [0, 0, 4 * BLOCK], "prefill_seconds": [0.4, 0.4, 0.1]}
    assert turn(router, backlog_seconds=[0.0, 0.1, 0.2], prefill_seconds=[0.1] * 3) == 0
    assert turn(router, backlog_seconds=[0.0, 0.1, 0.7], **columns) == 2  # 0.8 <= 0.8
    assert turn(router, backlog_seconds=[0.0, 0.1, 0.75], **columns) == 0  # migrates
    assert turn(router, backlog_seconds=[0.5, 0.1, 0.75], **columns) == 1
    assert turn(router, slo_ttft=1.1, backlog_seconds=[0.0, 0.1, 0.75], **columns) == 2
    # Nobody is in time: the cache again, however long the wait.
    assert turn(router, backlog_seconds=[0.5, 0.6, 9.0], **columns) == 2


def test_a_lost_cache_makes_a_first_turn() -> None:
    # Left behind: 4 blocks. 0.75 of that are 3.
    router = router_for(3, "smetric", HIT_RATIO=0.75)
    columns: dict[str, Any] = {"backlog_seconds": [0.0, 0.1, 0.2], "prefill_seconds": [0.1] * 3}
    turn(router, **columns)
    assert turn(router, hit_tokens=[0, 0, 3 * BLOCK], **columns) == 2
    assert turn(router, hit_tokens=[0, 0, 3 * BLOCK - 1], **columns) == 0


def test_sessions_are_told_apart_and_forgotten_with_reset() -> None:
    router = router_for(3, "smetric")
    columns: dict[str, Any] = {
        "backlog_seconds": [0.0, 0.1, 0.2],
        "prefill_seconds": [0.1] * 3,
        "hit_tokens": [0, 0, 4 * BLOCK],
    }
    assert [turn(router, session, **columns) for session in (7, 900, 7, 900)] == [0, 0, 2, 2]
    router.reset(one_view(3).cluster, [0])
    assert turn(router, 7, **columns) == 0


def test_equal_hits_go_to_the_shorter_wait() -> None:
    router = router_for(3, "smetric")
    columns: dict[str, Any] = {"hit_tokens": [0, 4 * BLOCK, 4 * BLOCK]}
    turn(router)
    assert turn(router, backlog_seconds=[0.0, 0.3, 0.2], **columns) == 2
    assert turn(router, backlog_seconds=[0.0, 0.2, 0.2], **columns) == 1


def test_the_down_are_neither_warm_nor_quick() -> None:
    router = router_for(3, "smetric")
    turn(router)
    columns: dict[str, Any] = {"hit_tokens": [0, 2 * BLOCK, 4 * BLOCK], "available": [0, 1, 1]}
    assert turn(router, backlog_seconds=[0.0, 0.1, 0.9], **columns) == 1
