"""vllm-router's kv_aware, worked by hand; every rule here was seen on the wheel first."""

from typing import Any

import numpy as np
import pytest
from made_views import decide, one_view, router_for

from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.view.view import ENDED


def ask(router: Router, tokens: int, hits: list[int], **more: Any) -> int:
    request = {"prompt_tokens": tokens} | more.pop("request", {})
    return decide(router, one_view(len(hits), request=request, hit_tokens=hits, **more))


@pytest.mark.parametrize(
    ("queued", "busy", "tokens", "least_hit"),
    [
        # The smallest multiples of 16 with which the wheel sent a prompt to a worker that had
        # `queued` tokens to prefill and `busy` requests, rather than to an idle one before it.
        (160, 1, 640, 496),  # (160 + 144) · 2 < 640
        (160, 1, 1600, 976),
        (160, 1, 3200, 1776),
        (1600, 1, 6400, 4816),
        (0, 1, 320, 176),
        (0, 1, 6400, 3216),
        (0, 2, 320, 224),
        (0, 2, 1600, 1072),
        (0, 2, 6400, 4272),
    ],
)
def test_thresholds_found_on_the_wheel(queued: int, busy: int, tokens: int, least_hit: int) -> None:
    router = router_for(2, "kv_aware")
    load: dict[str, Any] = {"prefill_tokens": [0, queued], "requests": [0, busy]}
    assert ask(router, tokens, [0, least_hit], **load) == 1
    assert ask(router, tokens, [0, least_hit - 16], **load) == 0


def test_first_of_equals_and_only_the_available() -> None:
    router = router_for(3, "kv_aware")
    assert ask(router, 320, [0, 0, 0]) == 0
    assert ask(router, 320, [0, 160, 160]) == 1
    assert ask(router, 320, [0, 160, 160], available=[1, 0, 1]) == 2


def test_temperature_draws_by_cost() -> None:
    # Costs 320, 160 and 64 at T = 100: shares 0.053, 0.262 and 0.685.
    router = router_for(3, "kv_aware", router_temperature=100.0)
    counts = np.zeros(3)
    for k in range(3000):
        counts[ask(router, 320, [0, 160, 256], request={"index": k})] += 1
    shares = np.exp([-3.2, -1.6, -0.64])
    shares /= shares.sum()
    assert (abs(counts / 3000 - shares) < 4 * np.sqrt(shares * (1 - shares) / 3000)).all()


def test_sessions_stay_until_idle_for_the_ttl() -> None:
    router = router_for(2, "kv_aware", kv_aware_session_affinity_ttl_secs=2)
    only_0, only_1 = [304, 0], [0, 304]

    def at(time: float, slot: int, hits: list[int], ended: list[int], session: int = 1) -> int:
        request = {"prompt_tokens": 320, "time": time, "session": session, "slot": slot}
        view = one_view(2, request=request, hit_tokens=hits)
        for k, gone in enumerate(ended):
            view.events[0, k] = (time - 0.5, gone, 0, ENDED)
        view.num_events[0] = len(ended)
        return decide(router, view)

    assert at(0.0, 0, only_1, []) == 1
    assert at(0.1, 1, only_0, [], session=2) == 0  # another session
    assert at(4.0, 2, only_0, []) == 1  # still in flight after the time to live
    assert at(10.0, 0, only_0, [0, 2]) == 1  # ended at 9.5
    assert at(13.0, 0, only_0, [0]) == 1  # ended at 12.5
    assert at(20.0, 2, only_0, [0, 1]) == 1  # ended at 19.5
    assert at(30.0, 3, only_1, [], session=3) == 1
    # Session 2 ended at 19.5 as well, and was idle for longer than 2 s.
    assert at(30.0, 4, only_1, [], session=2) == 1


def test_a_bound_instance_that_is_away_is_left() -> None:
    router = router_for(2, "kv_aware", kv_aware_session_affinity_ttl_secs=60)
    assert ask(router, 320, [0, 304]) == 1
    assert ask(router, 320, [0, 304], available=[1, 0]) == 0
    assert ask(router, 320, [0, 304]) == 0  # bound anew


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("router_temperature", -1.0),
        ("kv_aware_session_affinity_ttl_secs", -1),
        ("kv_aware_session_affinity_ttl_secs", 31_536_001),
    ],
)
def test_bad_parameters(parameter: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"kv_aware.{parameter}: found {value}, allowed: "):
        make_router("kv_aware", {parameter: value})
