"""llm-d's endpoint picker: decisions worked by hand, and what its scores and index keep."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_views import BLOCK, cluster_of, decide, one_view, router_for

from prefixgym.baselines.llmd.approximate import LlmdApproximate
from prefixgym.baselines.llmd.approximate_prefix import (
    add,
    approximate_prefix,
    match_tokens,
    with_room,
)
from prefixgym.baselines.llmd.weighted import LlmdPrecise
from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.view.view import View


def scores(name: str, view: View, **parameters: Any) -> list[float]:
    """The weighted sums of a fresh router, rounded."""
    router = cast(LlmdPrecise, router_for(view.instances.shape[1], name, **parameters))
    return [round(float(-score), 6) for score in router.scores(view)[0]]


def prompt(tokens: int, **more: float) -> dict[str, float]:
    return {"prompt_tokens": tokens, **more}


def only(scorer: str, **parameters: Any) -> dict[str, Any]:
    """Parameters that leave one scorer, with weight 1."""
    weights = dict.fromkeys(
        ("queue_scorer", "kv_cache_utilization_scorer", "prefix_cache_scorer"), 0.0
    )
    return {**weights, scorer: 1.0, **parameters}


# --- scorers -----------------------------------------------------------------------------------


def test_the_sum_is_2_queue_2_kv_3_prefix() -> None:
    view = one_view(
        3, request=prompt(1000), waiting=[4, 0, 1], kv_usage=[0.5, 0.1, 0.0],
        hit_tokens=[1000, 0, 500],
    )  # fmt: skip
    # queue: 0, 1, 3/4; KV: 0.5, 0.9, 1; prefix: 1, 0, 0.5.
    assert scores("llmd_precise", view) == [0 + 1 + 3, 2 + 1.8 + 0, 1.5 + 2 + 1.5]
    assert decide(router_for(3, "llmd_precise"), view) == 2
    assert scores("llmd_precise", view, prefix_cache_scorer=6.0) == [7.0, 3.8, 6.5]


def test_equal_queues_all_score_1_and_unavailable_pods_do_not_count() -> None:
    view = one_view(3, waiting=[2, 2, 2])
    assert scores("llmd_precise", view, **only("queue_scorer")) == [1, 1, 1]
    view = one_view(3, waiting=[0, 2, 4], available=[0, 1, 1])
    assert scores("llmd_precise", view, **only("queue_scorer"))[1:] == [1, 0]
    assert decide(router_for(3, "llmd_precise"), view) == 1
    view = one_view(3, running=[1, 2, 5])
    assert scores("llmd_precise", view, **only("running_requests_size_scorer")) == [1, 0.75, 0]


def test_load_aware_is_half_at_most_and_absolute() -> None:
    view = one_view(4, waiting=[0, 32, 128, 500])
    assert scores("llmd_precise", view, **only("load_aware_scorer")) == [0.5, 0.375, 0, 0]


def test_active_request_rates_idle_pods_1() -> None:
    view = one_view(4, requests=[0, 1, 2, 4])
    assert scores("llmd_precise", view, **only("active_request_scorer")) == [1, 0.75, 0.5, 0]
    busy = only("active_request_scorer", idle_threshold=1, max_busy_score=0.5)
    assert scores("llmd_precise", view, **busy) == [1, 1, 0.25, 0]


def test_token_load_adds_the_requests_own_uncached_tokens() -> None:
    view = one_view(
        3, request=prompt(1000), prefill_tokens=[0, 1000, 9000], hit_tokens=[0, 500, 1000]
    )
    parameters = only("token_load_scorer", queue_threshold_tokens=4000)
    assert scores("llmd_precise", view, **parameters) == [0.75, 0.625, 0]


def test_ties_are_drawn() -> None:
    view = one_view(4, waiting=[0, 0, 1, 0])
    found = {decide(router_for(4, "llmd_precise", seed=s), view) for s in range(40)}
    assert found == {0, 1, 3}


def cold(router: Router, index: int, num_pods: int = 4, **columns: Any) -> list[float]:
    """The no-hit-LRU scores of a cold request, which then goes to the best pod."""
    view = one_view(num_pods, request=prompt(1000, index=index), **columns)
    found = cast(LlmdPrecise, router).scores(view)[0]
    decide(router, view)
    return [round(float(-score), 4) for score in found]


def test_no_hit_lru_takes_never_used_pods_in_order_then_the_least_recently_used() -> None:
    router = router_for(4, "llmd_no_hit_lru", **only("no_hit_lru_scorer"))
    third = 0.3333
    assert cold(router, 0) == [1, 0.6667, third, 0]
    assert cold(router, 1) == [0, 1, 0.6667, third]
    # Requests with a hit leave the order alone and are rated 0.5 everywhere.
    assert cold(router, 2, hit_tokens=[0, 0, 0, 512]) == [0.5] * 4
    assert cold(router, 3) == [third, 0, 1, 0.6667]
    assert cold(router, 4) == [0.6667, third, 0, 1]
    # All used, in the order 0, 1, 2, 3.
    assert cold(router, 5, available=[0, 1, 1, 1]) == [0, 0.5, 0, 0]  # ranks 1, 2, 3 of 2
    assert cold(router, 6) == [1, 0, 0.6667, third]
    alone = router_for(1, "llmd_no_hit_lru", **only("no_hit_lru_scorer"))
    assert [cold(alone, k, num_pods=1) for k in range(2)] == [[1], [1]]


def test_no_hit_lru_spreads_a_cold_cluster() -> None:
    router = router_for(4, "llmd_no_hit_lru")
    assert [decide(router, one_view(4, request={"index": k})) for k in range(8)] == [
        0, 1, 2, 3, 0, 1, 2, 3,
    ]  # fmt: skip


@given(
    columns=st.lists(
        st.tuples(*([st.integers(0, 300)] * 4), st.floats(0, 1), st.integers(0, 1)), min_size=1
    ),
    weights=st.lists(st.floats(0, 4), min_size=8, max_size=8),
    tokens=st.integers(1, 2000),
)
def test_scores_are_between_0_and_the_sum_of_weights(
    columns: list[tuple[float, ...]], weights: list[float], tokens: int
) -> None:
    names = [name for name in vars(make_router("llmd_precise")) if name.endswith("_scorer")]
    parameters = dict(zip(names, weights, strict=True))
    waiting, running, requests, hits, usage, up = zip(*columns, strict=True)
    view = one_view(
        len(columns), request=prompt(tokens), waiting=waiting, running=running, requests=requests,
        hit_tokens=np.minimum(hits, tokens), kv_usage=usage, available=up, prefill_tokens=hits,
    )  # fmt: skip
    for score in scores("llmd_no_hit_lru", view, **parameters):
        assert 0 <= score <= sum(weights) + 1e-6


# --- approximate prefix ------------------------------------------------------------------------


def send(
    router: Router, ids: list[int], num_pods: int = 3, waiting: Any = 0, **request: float
) -> int:
    return decide(router, one_view(num_pods, ids, request, waiting=waiting))


def test_a_sent_prompt_counts_from_the_next_moment_on() -> None:
    router = router_for(3, "llmd_approximate")
    home = send(router, [1, 2], time=1.0, waiting=[1, 0, 1])
    assert home == 1
    approximate = cast(LlmdApproximate, router)
    same_moment = one_view(3, [1, 2], {"time": 1.0})
    assert approximate.matched_tokens(same_moment).tolist() == [[0, 0, 0]]
    later = one_view(3, [1, 2, 3], {"time": 1.001, "prompt_tokens": 2 * BLOCK + 5})
    assert approximate.matched_tokens(later).tolist() == [[0, 2 * BLOCK, 0]]
    assert send(router, [1, 9], time=2.0) == 1  # equal loads, half a match


def test_partial_last_blocks_count_their_tokens() -> None:
    router = router_for(2, "llmd_approximate")
    send(router, [1, 2], 2, time=0.0, prompt_tokens=BLOCK + 100, waiting=[0, 1])
    view = one_view(2, [1, 2], {"time": 1.0, "prompt_tokens": BLOCK + 100})
    assert cast(LlmdApproximate, router).matched_tokens(view).tolist() == [[BLOCK + 100, 0]]


def matched(index: Any, ids: list[int], now: float = 1e9) -> list[int]:
    found = np.empty(len(index.capacity), np.int64)
    match_tokens(index, 0, np.array(ids), len(ids) * BLOCK, BLOCK, now, found)
    return [tokens // BLOCK for tokens in found.tolist()]


def test_the_head_goes_first_and_pods_count_without_it() -> None:
    index = with_room(approximate_prefix(1, np.array([4, 9])), 20)
    add(index, 0, np.array([1, 2, 3, 4]), 0, 0.0)
    add(index, 0, np.array([1, 2, 3]), 1, 1.0)
    assert matched(index, [1, 2, 3, 4]) == [4, 3]
    # Pod 0 holds four blocks: 5 pushes out 1. It still counts for 2, 3, 4, since pod 1 has 1.
    add(index, 0, np.array([5]), 0, 2.0)
    assert matched(index, [1, 2, 3, 4]) == [3, 3]
    assert matched(index, [5, 2, 3]) == [1 + 2, 2]
    # Looking up refreshes nothing: the next to go is 2.
    add(index, 0, np.array([6]), 0, 3.0)
    assert matched(index, [2, 3, 4]) == [2, 2]
    # Without any pod at the head the rest is of no use.
    lonely = with_room(approximate_prefix(1, np.array([2, 2])), 20)
    add(lonely, 0, np.array([1, 2, 3]), 0, 0.0)
    assert matched(lonely, [1, 2, 3]) == [0, 0]
    assert matched(lonely, [2, 3]) == [2, 0]


def test_capacity_is_in_tokens() -> None:
    def capacity(**parameters: Any) -> int:
        router = cast(LlmdApproximate, router_for(2, "llmd_approximate", **parameters))
        return int(router._index.capacity[1])

    # 100 blocks of 512 tokens are 3200 of the engine's 16, believed to be of 64.
    assert capacity() == 400
    assert capacity(engine_block_size=64) == 100
    # 31,250 · 64 / 512
    assert capacity(auto_tune=False) == 3906


def test_only_the_first_131072_tokens_are_looked_at() -> None:
    router = cast(
        LlmdApproximate, router_for(2, "llmd_approximate", max_prefix_tokens_to_match=2 * BLOCK)
    )
    send(router, [1, 2, 3, 4], 2, time=0.0, waiting=[0, 1])
    view = one_view(2, [1, 2, 3, 4], {"time": 1.0})
    assert router.matched_tokens(view).tolist() == [[2 * BLOCK, 0]]


@given(
    capacity=st.lists(st.integers(1, 7), min_size=2, max_size=2),
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 1)), max_size=30
    ),
)
def test_each_pod_has_an_lru_of_its_own(
    capacity: list[int], prompts: list[tuple[list[int], int]]
) -> None:
    index = approximate_prefix(1, np.array(capacity))
    orders: list[list[int]] = [[], []]
    for now, (letters, pod) in enumerate(prompts):
        # The id of a block is the path that leads to it, read as a number.
        ids = np.cumsum((np.array(letters, np.int64) + 1) * 4 ** np.arange(len(letters)))
        index = with_room(index, len(ids))
        add(index, 0, ids, pod, float(now))
        for block in ids.tolist():
            orders[pod] = [b for b in orders[pod] if b != block] + [block]
            orders[pod] = orders[pod][-capacity[pod] :]
        known = set(orders[0]) | set(orders[1])
        assert index.ids.ids.shape[1] - index.ids.num_spare[0] == len(known)
        for block in range(90):
            assert matched(index, [block]) == [int(block in order) for order in orders]


# --- affinity filter, decision tree ------------------------------------------------------------


def test_affinity_keeps_to_pods_with_80_percent_of_the_prompt() -> None:
    router = router_for(3, "llmd_affinity")
    view = one_view(3, request=prompt(1000), hit_tokens=[799, 800, 0], prefill_tokens=[0, 9000, 0])
    assert decide(router, view) == 1
    view = one_view(3, request=prompt(1000), hit_tokens=[850, 800, 0], prefill_tokens=[99, 0, 0])
    assert decide(router, view) == 1  # both sticky: fewer tokens, also with 200 of its own
    view = one_view(3, request=prompt(1000), hit_tokens=[799, 0, 0], prefill_tokens=[900, 0, 101])
    assert decide(router, view) == 1  # none: 1101, 1000, 1101
    view = one_view(3, request=prompt(1000), hit_tokens=[799, 800, 0], available=[1, 0, 1])
    assert decide(router, view) == 0


def test_affinity_breaks_above_18_seconds() -> None:
    # 18 s at 15,928 tokens/s are 286,704 tokens.
    def choose(tokens: int, **parameters: Any) -> int:
        view = one_view(
            2, request=prompt(1000), hit_tokens=[1000, 0], prefill_tokens=[tokens + 500, 500]
        )
        return decide(router_for(2, "llmd_affinity", **parameters), view)

    assert choose(286_704) == 0
    assert choose(286_705) == 1
    assert choose(286_705, max_ttft_penalty_ms=0.0) == 0
    assert choose(2000, affinity_threshold=0.0) == 1  # filter off: 500 + 1000 < 2500
    assert choose(2000, exploration_probability=1.0) == 1


def test_gie_tree_keeps_short_queues_then_low_kv() -> None:
    def leaves(**columns: Any) -> set[int]:
        n = len(columns["waiting"])
        return {
            decide(router_for(n, "gie_tree", seed=s), one_view(n, **columns)) for s in range(30)
        }

    # Queues up to 0 + (9 - 0) // 3 = 3.
    assert leaves(waiting=[0, 3, 9]) == {0, 1}
    assert leaves(waiting=[0, 4, 9]) == {0}
    # 0 + (2 - 0) // 3 = 0: whole requests.
    assert leaves(waiting=[0, 1, 2]) == {0}
    # KV up to 0.2 + (0.6 - 0.2) / 2 = 0.4 of the two that are left.
    assert leaves(waiting=[0, 0, 9], kv_usage=[0.2, 0.6, 0.0]) == {0}
    assert leaves(waiting=[0, 0, 0], kv_usage=[0.2, 0.3, 0.8]) == {0, 1}
    # More than 128 waiting do not even set the range, unless all have that many.
    assert leaves(waiting=[128, 100, 900]) == {1}
    assert leaves(waiting=[114, 100, 129, 900]) == {1}
    assert leaves(waiting=[129, 200, 900, 1000], kv_usage=[0.9, 0.8, 0, 0]) == {1}


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("llmd_precise", {"queue_scorer": -1.0}, "llmd_precise.queue_scorer: found -1.0, allowed"),
        ("llmd_precise", {"max_busy_score": 1.5}, "max_busy_score: found 1.5, allowed: 0 to 1"),
        ("llmd_approximate", {"lru_capacity_per_server": 0}, "found 0, allowed: at least 1"),
        ("llmd_affinity", {"affinity_threshold": 1.1}, "found 1.1, allowed: 0 to 1"),
        ("gie_tree", {"queue_threshold": -1}, "found -1, allowed: at least 0"),
    ],
)
def test_bad_parameters(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_router(name, parameters).reset(cluster_of(2), [0])
