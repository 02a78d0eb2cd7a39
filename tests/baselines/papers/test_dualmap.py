"""DualMap, worked by hand. Which homes a prefix has is up to the hash: they are asked for first."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from made_views import BLOCK, decide, one_view, router_for

N = 8
PROMPT = [1, 2, 3, 4]


def arrive(router: Any, ids: list[int], available: Any = 1, n: int = N, **columns: Any) -> int:
    request = {"prompt_tokens": max(1, len(ids)) * BLOCK, "slo_ttft": 1.0}
    return decide(router, one_view(n, ids, request, available=available, **columns))


def homes(ids: list[int], n: int = N, **parameters: Any) -> tuple[int, int]:
    """The two instances that a prompt can go to, found by making either of them the busier."""
    router = router_for(n, "dualmap", **parameters)
    first = arrive(router, ids, n=n)
    pending = np.zeros(n, np.int64)
    pending[first] = 1
    return first, arrive(router, ids, n=n, prefill_tokens=pending)


def at(values: Mapping[int, float], n: int = N) -> list[float]:
    return [values.get(i, 0) for i in range(n)]


def test_a_prefix_has_two_different_homes_and_prefixes_spread() -> None:
    pairs = [homes([k, 50 + k, 100 + k, 150 + k]) for k in range(60)]
    assert all(a != b for a, b in pairs)
    assert {i for pair in pairs for i in pair} == set(range(N))
    assert len({tuple(sorted(pair)) for pair in pairs}) > 15  # of 28
    # Only the fourth block counts, which stands for all before it.
    assert homes([9, 8, 7, 4, 5, 6]) == homes(PROMPT)


def test_no_third_instance_is_ever_chosen() -> None:
    pair = homes(PROMPT)
    router = router_for(N, "dualmap")
    rng = np.random.default_rng(0)
    for _ in range(50):
        columns: dict[str, Any] = {
            "hit_tokens": rng.integers(0, 3, N) * BLOCK,
            "prefill_tokens": rng.integers(0, 3, N),
            "backlog_seconds": rng.random(N) * 2,
        }
        assert arrive(router, PROMPT, **columns) in pair


def test_equal_hits_go_to_the_fewer_pending_tokens() -> None:
    a, b = sorted(homes(PROMPT))
    router = router_for(N, "dualmap")
    hits = {a: BLOCK, b: BLOCK}
    columns: dict[str, Any] = {"hit_tokens": at(hits)}
    assert arrive(router, PROMPT, prefill_tokens=at({a: 11, b: 10}), **columns) == b
    assert arrive(router, PROMPT, prefill_tokens=at({a: 10, b: 10}), **columns) == a
    # Whatever their backlog in seconds.
    assert arrive(router, PROMPT, backlog_seconds=at({a: 9.0}), **columns) == a


def test_the_warmer_home_until_its_queue_takes_the_objective() -> None:
    a, b = homes(PROMPT)
    router = router_for(N, "dualmap")
    columns: dict[str, Any] = {
        "hit_tokens": at({a: BLOCK, b: 3 * BLOCK}),
        "prefill_tokens": at({a: 5, b: 9000}),
        "prefill_seconds": at({a: 0.3, b: 0.25}),
    }
    assert arrive(router, PROMPT, backlog_seconds=at({b: 0.75}), **columns) == b  # 1.0 <= 1.0
    assert arrive(router, PROMPT, backlog_seconds=at({b: 0.76}), **columns) == a
    # Too long a queue, but still the shorter of the two.
    columns["prefill_tokens"] = at({a: 9001, b: 9000})
    assert arrive(router, PROMPT, backlog_seconds=at({b: 0.76}), **columns) == b


def test_dynamos_budget_is_in_tokens() -> None:
    a, b = homes(PROMPT)
    router = router_for(N, "dualmap", pending_prefill_token_budget=1000)
    # 4 blocks of 512, 3 of them cached: 512 uncached tokens, 488 may be pending.
    columns: dict[str, Any] = {"hit_tokens": at({b: 3 * BLOCK}), "backlog_seconds": at({b: 9.0})}
    assert arrive(router, PROMPT, prefill_tokens=at({b: 488}), **columns) == b
    assert arrive(router, PROMPT, prefill_tokens=at({b: 489}), **columns) == a


def test_a_prompt_without_a_key_goes_to_the_fewest_pending() -> None:
    router = router_for(N, "dualmap")
    pending = [9, 8, 7, 3, 5, 3, 9, 9]
    assert arrive(router, [1, 2, 3], prefill_tokens=pending) == 3
    assert arrive(router, [], prefill_tokens=pending) == 3
    assert arrive(router, [1], prefill_tokens=pending, available=[1, 1, 1, 0, 1, 1, 1, 1]) == 5


def test_a_hot_prefix_takes_a_longer_key() -> None:
    # Four instances: above half of the window is hot. Eight blocks tell the requests apart.
    router = router_for(4, "dualmap", window_requests=16)
    choices = {arrive(router, [*PROMPT, 5, 6, 7, 1000 + k], n=4) for k in range(16)}
    assert len(choices) > 2
    # With a longer shortest key nothing is shared, with no longer key there is nothing to take.
    cold = router_for(4, "dualmap", window_requests=16)
    short = {arrive(cold, [*PROMPT, 5, 6, 1000 + k], n=4) for k in range(16)}
    assert len(short) == 1
    # Half of the window is not hot: every other request.
    cool = router_for(4, "dualmap", window_requests=16)
    pairs: list[int] = []
    for k in range(32):
        arrive(cool, [200 + k, 300 + k, 400 + k, 500 + k], n=4)
        pairs.append(arrive(cool, [*PROMPT, 5, 6, 7, 1000 + k], n=4))
    assert len(set(pairs)) == 1


def test_only_the_keys_of_a_leaving_instance_move() -> None:
    up = np.ones(N, np.int64)
    up[3] = 0
    stayed = moved = 0
    for k in range(80):
        ids = [k, 100 + k, 200 + k, 300 + k]
        before = set(homes(ids))
        router = router_for(N, "dualmap")
        first = arrive(router, ids, available=up)
        pending = np.zeros(N, np.int64)
        pending[first] = 1
        after = {first, arrive(router, ids, available=up, prefill_tokens=pending)}
        if 3 in before:
            assert before - {3} <= after
            moved += 1
        else:
            assert after == before
            stayed += 1
    assert moved > 5
    assert stayed > 40


@pytest.mark.parametrize("n", [1, 2])
def test_small_clusters(n: int) -> None:
    router = router_for(n, "dualmap")
    assert {arrive(router, [k, 2, 3, 40 + k], n=n) for k in range(9)} == {0}
