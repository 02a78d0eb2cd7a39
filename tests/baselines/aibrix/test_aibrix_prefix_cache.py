"""AIBrix's prefix-cache router: decisions worked by hand, and what its table keeps."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_views import BLOCK, decide, one_view, router_for

from prefixgym.baselines.aibrix.prefix_table import (
    NO_MATCH,
    match_percent,
    prefix_table,
    put,
    sweep,
    table_size,
    with_room,
)
from prefixgym.baselines.router import Router
from prefixgym.envs.view.id_table import NONE, find

PREFIX_CACHES = ["aibrix_prefix_cache", "aibrix_prefix_cache_chart"]


def send(router: Router, ids: list[int], requests: list[int], **request: Any) -> int:
    return decide(router, one_view(len(requests), ids, request, requests=requests))


def test_a_known_prefix_is_followed_and_a_new_one_goes_to_the_least_loaded() -> None:
    router = router_for(3, "aibrix_prefix_cache")
    assert send(router, [1, 2], [1, 0, 1]) == 1
    # c = 1, 2, 1: mean 4/3, sample deviation 0.577: 2 > 1.91 is too much.
    assert send(router, [1, 3], [1, 2, 1], index=1) in (0, 2)
    # c = 1, 1, 1 is usual, and one shared block of two is a match.
    router = router_for(3, "aibrix_prefix_cache")
    assert send(router, [1, 2], [1, 0, 1]) == 1
    assert send(router, [1, 4], [1, 1, 1], index=1) == 1
    # c = 3, 3, 2 for the holder of nothing: the holder stays at mean 8/3 + 0.577 = 3.24.
    assert send(router, [1, 5], [3, 3, 2], index=2) == 1


def test_deviation_is_of_the_sample_and_the_comparison_not_strict() -> None:
    # c = 0, 2: mean 1, sample deviation sqrt(2): 2 ≤ 2.41 (of the population it would be 1: also
    # within, as mean + 1 = 2). c = 0, 0, 3: mean 1, sample deviation sqrt(3) = 1.73: 3 > 2.73.
    router = router_for(2, "aibrix_prefix_cache")
    assert send(router, [1], [0, 5]) == 0
    assert send(router, [1], [2, 0], index=1) == 0
    router = router_for(3, "aibrix_prefix_cache")
    assert send(router, [1], [5, 5, 0]) == 2
    assert send(router, [1], [0, 0, 3], index=1) in (0, 1)


def test_the_longest_match_wins_then_the_least_loaded() -> None:
    router = router_for(3, "aibrix_prefix_cache")
    assert send(router, [1, 2, 3, 4], [0, 9, 9]) == 0
    assert send(router, [1, 2, 7], [9, 0, 1], index=1) == 1  # 0 is too busy: 9 > 3.33 + 4.93
    # Now 0 holds 1 2 3 4 and 1 holds 1 2 7.
    assert send(router, [1, 2, 3, 5], [3, 2, 1], index=2) == 0  # 75 % against 50 %, and 3 ≤ 2 + 1
    assert send(router, [1, 2, 9, 10], [3, 2, 1], index=3) == 1  # equal: fewer requests
    assert send(router, [1, 2, 11, 12], [0, 2, 2], index=4) == 0


def test_equal_matches_are_drawn() -> None:
    first = {
        send(router_for(4, "aibrix_prefix_cache", seed=seed), [1], [2, 2, 2, 2])
        for seed in range(40)
    }
    assert first == {0, 1, 2, 3}


def test_an_imbalance_above_8_hides_the_busier_holders() -> None:
    router = router_for(10, "aibrix_prefix_cache")
    assert send(router, [1, 2], [0] + 9 * [1]) == 0
    # Nine pods at 0 and the holder at 8: the gap is allowed, but 8 > 0.8 + 2.53.
    assert send(router, [1, 2], [8] + 9 * [0], index=1) != 0
    # Alternating 9 and 1: mean 5, deviation 4.2: 9 is usual; a gap of 8 is no imbalance.
    router = router_for(10, "aibrix_prefix_cache")
    assert send(router, [1, 2], [0] + 9 * [1]) == 0
    assert send(router, [1, 2], 5 * [9, 1], index=1) == 0
    # 10 is, so the match is not even seen; those at 1 are.
    assert send(router, [1, 2], 5 * [10, 1], index=2) % 2 == 1
    # Both defaults of the chart are wider.
    router = router_for(10, "aibrix_prefix_cache_chart")
    assert send(router, [1, 2], [0] + 9 * [1]) == 0
    assert send(router, [1, 2], 5 * [10, 1], index=1) == 0


def test_a_short_prompt_has_no_block_in_the_charts_hash() -> None:
    # 20 tokens are 80 characters, less than one block of 128.
    for name, known in zip(PREFIX_CACHES, (True, False), strict=True):
        router = router_for(3, name)
        assert send(router, [1], [1, 0, 1], prompt_tokens=20) == 1
        again = {send(router, [1], [1, 1, 1], prompt_tokens=20, index=k) for k in range(1, 30)}
        assert (again == {1}) == known


def percents(
    capacity: int, prompts: list[tuple[list[int], int]], looked_up: list[int]
) -> list[int]:
    """The match in % of `looked_up` on two pods after `prompts` (ids, pod) were put in."""
    size = table_size(capacity, 4 * BLOCK, 20, 4, BLOCK)
    table = prefix_table(1, 2)
    for number, (ids, pod) in enumerate(prompts):
        table = with_room(table, len(ids), size)
        put(table, size, 0, np.array(ids), len(ids) * BLOCK, pod, float(number))
    found, ready = np.empty(2, np.int64), np.ones(2, np.bool_)
    match_percent(table, size, 0, np.array(looked_up), len(looked_up) * BLOCK, ready, found)
    return found.tolist()


def test_match_is_contiguous_and_floored() -> None:
    prompts = [([1, 2, 3], 0), ([1, 2], 1), ([1, 4, 5], 1)]
    assert percents(9, prompts, [1, 2, 3]) == [100, 66]
    assert percents(9, prompts, [1, 4, 6]) == [33, 66]
    assert percents(9, prompts, [7, 2, 3]) == [NO_MATCH, NO_MATCH]


def test_the_head_of_a_prompt_goes_first_and_with_it_the_match() -> None:
    # Four blocks fit. 9 pushes out 1, the head: 2, 3 and 4 are of no use any more.
    prompts = [([1, 2, 3, 4], 0), ([9], 1)]
    assert percents(4, prompts, [1, 2, 3, 4]) == [NO_MATCH, NO_MATCH]
    assert percents(5, prompts, [1, 2, 3, 4]) == [100, NO_MATCH]
    # Sending it again puts all of it in front.
    assert percents(5, [*prompts, ([1, 2, 3, 4], 1), ([8], 0)], [1, 2, 3, 4]) == [100, 100]
    # A prompt longer than the table keeps its tail only.
    assert percents(3, [([1, 2, 3, 4], 0)], [1, 2, 3, 4]) == [NO_MATCH, NO_MATCH]


def test_blocks_are_dropped_20_minutes_after_they_were_last_sent() -> None:
    # The sweep at 1200 s finds an age of 1199.5 s, that at 1201 s one of 1200.5 s.
    for later, homes in [(1200.9, {1}), (1201.0, {0, 1, 2})]:
        found = set()
        for seed in range(20):
            router = router_for(3, "aibrix_prefix_cache", seed=seed)
            assert send(router, [1, 2], [1, 0, 1], time=0.5) == 1
            found.add(send(router, [1, 2], [1, 1, 1], time=later, index=1))
        assert found == homes


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=5), st.integers(0, 1)), max_size=30),
)
def test_the_table_is_an_lru_of_its_size(
    capacity: int, prompts: list[tuple[list[int], int]]
) -> None:
    size = table_size(capacity, 4 * BLOCK, 20, 4, BLOCK)
    table = prefix_table(1, 2)
    order = dict[int, set[int]]()  # block to pods, oldest first
    for now, (letters, pod) in enumerate(prompts):
        # The id of a block is the path that leads to it, read as a number.
        ids = np.cumsum((np.array(letters, np.int64) + 1) * 5 ** np.arange(len(letters)))
        table = with_room(table, len(ids), size)
        sweep(table, size, 0, now)
        put(table, size, 0, ids, len(ids) * BLOCK, pod, now)
        for block in ids.tolist():
            order[block] = order.pop(block, set()) | {pod}
            if len(order) > capacity:
                del order[next(iter(order))]
        assert table.order.ends[0, 0]["size"] == len(order) <= capacity
        for block, pods in order.items():
            entry = find(table.ids, 0, block)
            assert entry != NONE
            assert {p for p in range(2) if table.pods[0, entry, p]} == pods


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"prefix_cache_block_number": 0}, "prefix_cache_block_number: found 0, allowed: 1 or"),
        ({"chars_per_token": 0.0}, "chars_per_token: found 0.0, allowed: above 0"),
        ({"standard_deviation_factor": -1}, "standard_deviation_factor: found -1, allowed: at"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        router_for(2, "aibrix_prefix_cache", **parameters)
