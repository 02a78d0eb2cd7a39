"""Dynamo without KV events, worked by hand."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_views import BLOCK, one_view, router_for

from prefixgym.baselines.router import Router
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.view.view import ENDED, EVENT_VIEW, View


def decision_of(num_instances: int, ids: list[int], time: float, tokens: int | None = None) -> View:
    request = {"time": time, "prompt_tokens": tokens or len(ids) * BLOCK}
    view = one_view(num_instances, ids, request)
    return dataclasses.replace(view, num_events=np.zeros(1, np.int64), num_slots=1)


def hits(router: Router, ids: list[int], time: float, num_instances: int = 2) -> list[float]:
    """Blocks of the prompt that the router believes to be cached; nothing may be in flight."""
    assert isinstance(router, ScoredRouter)
    view = decision_of(num_instances, ids, time)
    router.hear(view)
    return [2 * len(ids) - cost for cost in router.scores(view)[0].tolist()]


def send(
    router: Router, ids: list[int], instance: int, time: float, tokens: int | None = None
) -> None:
    """Send the prompt to `instance`, where it ends at once."""
    assert isinstance(router, ScoredRouter)
    view = decision_of(2, ids, time, tokens)
    router.hear(view)
    router.scores(view)
    router.commit(view, np.array([instance]))
    events = np.zeros((1, 1), EVENT_VIEW)
    events[0, 0] = (time, 0, instance, ENDED)
    router.hear(dataclasses.replace(view, events=events, num_events=np.array([1])))


def test_it_believes_its_own_decisions() -> None:
    router = router_for(2, "dynamo_approximate")
    send(router, [1, 2, 3], 1, time=0.0)
    assert hits(router, [1, 2, 3], 0.0) == [0, 3]
    assert hits(router, [1, 2, 7], 0.0) == [0, 2]
    assert hits(router, [7, 8], 0.0) == [0, 0]
    send(router, [1, 2], 0, time=1.0)
    assert hits(router, [1, 2, 3], 1.0) == [2, 3]


def test_blocks_expire_and_start_anew_when_sent_again() -> None:
    router = router_for(2, "dynamo_approximate")
    send(router, [1, 2, 3], 0, time=0.0)
    send(router, [1, 2, 4], 0, time=100.0)
    assert hits(router, [1, 2, 3], 119.9) == [3, 0]
    assert hits(router, [1, 2, 3], 120.0) == [2, 0]
    assert hits(router, [1, 2, 4], 219.9) == [3, 0]
    assert hits(router, [1, 2, 4], 220.0) == [0, 0]
    # Of each instance by itself.
    send(router, [1], 0, time=300.0)
    send(router, [1], 1, time=310.0)
    assert hits(router, [1], 425.0) == [0, 1]


def test_only_full_blocks_are_believed() -> None:
    router = router_for(2, "dynamo_approximate")
    send(router, [1, 2], 0, time=0.0, tokens=BLOCK + 1)
    assert hits(router, [1, 2], 0.0) == [1, 0]


def test_a_full_index_is_cut_to_its_target() -> None:
    # 10 blocks, then down to 8: of the oldest decision the last blocks go first.
    small: dict[str, Any] = {"router_max_tree_size": 10, "router_prune_target_ratio": 0.8}
    router = router_for(2, "dynamo_approximate", **small)
    send(router, [1, 2, 3, 4], 0, time=0.0)
    send(router, [1, 2, 5, 6], 0, time=1.0)
    send(router, [1, 2, 3, 4], 1, time=2.0)
    assert hits(router, [1, 2, 3, 4], 2.0) == [4, 4]  # 10 blocks: not above the limit
    send(router, [9], 1, time=3.0)
    # 3 blocks too many: 4 and 3 of the first decision on 0, then 6 of the second.
    assert hits(router, [1, 2, 3, 4], 3.0) == [2, 4]
    assert hits(router, [1, 2, 5, 6], 3.0) == [3, 2]
    assert hits(router, [9], 3.0) == [0, 1]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=5),
            st.integers(0, 1),
            st.floats(0, 40),
        ),
        max_size=40,
    ),
    st.integers(3, 30),
)
def test_like_a_dictionary_of_expiries(
    sent: list[tuple[list[int], int, float]], max_tree_size: int
) -> None:
    parameters: dict[str, Any] = {"router_ttl_secs": 60, "router_max_tree_size": max_tree_size}
    router = router_for(2, "dynamo_approximate", **parameters)
    # Expiry, order of decision and depth of a block on an instance.
    index: dict[tuple[int, int], tuple[float, int, int]] = {}
    time = 0.0
    for number, (path, instance, gap) in enumerate(sent):
        time += gap
        ids = [int("".join(str(x + 1) for x in path[: k + 1])) for k in range(len(path))]
        index = {key: entry for key, entry in index.items() if entry[0] > time}
        expected = []
        for i in range(2):
            held = [(block_id, i) in index for block_id in ids]
            expected.append([*held, False].index(False))
        assert hits(router, ids, time) == expected
        send(router, ids, instance, time)
        for depth, block_id in enumerate(ids):
            index[block_id, instance] = (time + 60, number, -depth)
        if len(index) > max_tree_size:
            order = sorted(index, key=lambda key: index[key])
            for key in order[: len(index) - int(max_tree_size * 0.8)]:
                del index[key]


def test_many_decisions_at_once() -> None:
    router = router_for(2, "dynamo_approximate")
    for k in range(700):  # more than there was room for at first
        send(router, [1 + k], k % 2, time=k * 0.01)
    assert [hits(router, [1 + k], 7.0)[k % 2] for k in range(700)] == [1] * 700
    with_expired = [hits(router, [1 + k], 123.0)[k % 2] for k in range(700)]
    assert with_expired == pytest.approx([0] * 301 + [1] * 399)
