"""AIBrix's Preble: decisions worked by hand, and its sums against a model that keeps everything."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_views import decide, one_view, router_for

from prefixgym.baselines.aibrix.preble import PrefixCachePreble, prefill_cost_ms
from prefixgym.baselines.prefix_tree import ROOT
from prefixgym.baselines.router import Router


def send(router: Router, ids: list[int], time: float, requests: Any = 0, num_pods: int = 3) -> int:
    index = int(1000 * time)
    view = one_view(num_pods, ids, {"time": time, "index": index}, requests=requests)
    return decide(router, view)


def costs(router: Router) -> list[float]:
    """Windowed cost of each pod, s."""
    return [round(c / 1e9, 4) for c in cast(PrefixCachePreble, router)._state.cost[0].tolist()]


def loads(router: Router) -> list[int]:
    found: list[int] = cast(PrefixCachePreble, router)._state.load[0].tolist()
    return found


def test_the_prefill_cost_of_a_node() -> None:
    # A6000: (0.10842571 · 1024 + 4.209777 + 0.32) / 0.9
    assert prefill_cost_ms(1024, 1024) == pytest.approx(128.3975, abs=1e-3)
    # Own tokens of 1024 on a context of 2048: attention (1.86e-4 · 2048 + 0.159) / 2.
    assert prefill_cost_ms(1024, 2048) == pytest.approx(128.3975 + (0.26996 - 0.32) / 0.9, abs=1e-3)
    # (0.10842571 · 4096 + 4.209777 + 0.920856 - 7.37 + 15.81056 + 36.23879) / 0.9
    assert prefill_cost_ms(4096, 4096) == pytest.approx(548.807, abs=2e-2)
    # As there, a node of 361 to 383 tokens looks free or better.
    assert prefill_cost_ms(383, 383) < -16


def test_costs_decide_without_a_long_match() -> None:
    router = router_for(3, "aibrix_preble")
    # V100: a node of 1024 tokens costs 2.5 · 0.1284 s, and decoding 45 · 0.15 s.
    assert send(router, [1, 2], 0.0) == 0
    assert costs(router) == [round(2.5 * 0.1283975 + 6.75, 4), 0, 0]
    assert send(router, [3], 0.1) == 1
    assert send(router, [4, 5], 0.2) == 2
    # 1 has the smallest node: 512 tokens.
    assert send(router, [6], 0.3) == 1
    assert loads(router) == [1, 2, 1]
    # An A6000 is 2.5 times as fast.
    fast = router_for(3, "aibrix_preble", target_gpu="A6000")
    send(fast, [1, 2], 0.0)
    assert costs(fast) == [round(0.1283975 + 6.75, 4), 0, 0]


def test_a_match_above_half_follows_the_least_busy_pod_of_the_deepest_node() -> None:
    router = router_for(3, "aibrix_preble")
    assert send(router, [1, 2, 3], 0.0) == 0
    assert send(router, [1, 2, 4], 0.1) == 0  # 2/3
    assert send(router, [1, 5], 0.2) == 1  # 1/2 is not above a half: the least cost
    # Equal match as a whole; node [1] has the pods 0 and 1, node [1, 2] only 0.
    assert send(router, [1, 2, 6], 0.3) == 0
    assert send(router, [1], 0.4) == 1  # windowed requests: 3 and 1


def test_a_pod_joins_all_nodes_of_the_path() -> None:
    router = router_for(2, "aibrix_preble")
    assert send(router, [1, 2], 0.0, num_pods=2) == 0
    # Out of balance by 9 the holder is hidden: the root has nobody else, so the cost decides.
    assert send(router, [1, 2], 0.1, [9, 0], 2) == 1
    # Now both have the node, and each of its two requests counts for both.
    assert loads(router) == [2, 2]
    assert {send(router, [1, 2], 0.2 + k / 1000, num_pods=2) for k in range(30)} == {0, 1}
    assert send(router, [1, 2], 0.3, [8, 0], 2) in (0, 1)


def test_requests_leave_the_window_after_3_minutes_at_a_whole_second() -> None:
    router = router_for(3, "aibrix_preble")
    assert send(router, [1, 2], 0.5) == 0
    assert send(router, [3], 180.9) == 1  # the look at 180 s: 0.5 > 180 - 180
    assert loads(router) == [1, 1, 0]
    assert send(router, [4], 181.0) == 0  # gone
    assert loads(router) == [1, 1, 0]
    assert costs(router)[2] == 0


def test_idle_nodes_go_after_5_minutes_and_take_their_pods_from_the_nodes_above() -> None:
    router = router_for(3, "aibrix_preble")
    state = cast(PrefixCachePreble, router)
    assert send(router, [1, 2], 0.0) == 0
    assert send(router, [1, 2, 3, 4], 100.0) == 1  # a half is not enough
    assert send(router, [1, 2, 5, 6], 200.0) == 0  # the window has forgotten the first
    assert send(router, [1, 2, 5, 6], 250.0) == 0
    assert state._state.pods[0, ROOT].tolist() == [True, True, False]
    # At 401 s the node [3, 4] is dropped: pod 1 loses [1, 2] and the root too.
    assert send(router, [1, 2, 5, 6], 401.0) == 0
    assert state._state.pods[0, ROOT].tolist() == [True, False, False]
    # At 702 s all of it is.
    send(router, [9], 702.0)
    assert state._state.tree.nodes[0, ROOT]["children"] == 1


def test_a_split_changes_what_a_node_costs() -> None:
    router = router_for(3, "aibrix_preble")
    assert send(router, [1, 2, 3, 4], 0.0) == 0
    whole = round(2.5 * prefill_cost_ms(2048, 2048) / 1000 + 6.75, 4)
    assert costs(router) == [whole, 0, 0]
    # [1] is split off with no requests of its own; the rest keeps a miss rate of 1.
    assert send(router, [1, 5, 6, 7], 0.1) == 1
    lower = round(2.5 * prefill_cost_ms(1536, 2048) / 1000 + 6.75, 4)
    new = round(0.75 * 2.5 * prefill_cost_ms(1536, 2048) / 1000 + 6.75, 4)
    assert costs(router) == [lower, new, 0]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=4), st.floats(0, 90), st.integers(0, 2)
        ),
        max_size=40,
    )
)
def test_sums_are_those_of_the_window(steps: list[tuple[list[int], float, int]]) -> None:
    router = cast(PrefixCachePreble, router_for(3, "aibrix_preble"))
    time = 0.0
    for letters, gap, busy in steps:
        time += gap
        # The id of a block is the path that leads to it, read as a number.
        ids = np.cumsum((np.array(letters, np.int64) + 1) * 4 ** np.arange(len(letters)))
        send(router, ids.tolist(), time, requests=[10 * (i == busy) for i in range(3)])
        s = router._state
        held = s.pods[0] & (s.stats[0]["count"] > 0)[:, None]
        assert (s.load[0] == (held * s.stats[0]["count"][:, None]).sum(0)).all()
        assert (s.cost[0] == (held * s.stats[0]["cost"][:, None]).sum(0)).all()
        log = s.log
        recent = [log.records[0, (log.head[0] + k) % 256] for k in range(log.size[0])]
        assert s.stats[0]["count"].sum() == len(recent)
        assert all(record["time"] > np.floor(time) - 180 for record in recent)
        in_use = s.tree.nodes.shape[1] - s.tree.num_spare[0]
        assert s.order.ends[0, 0]["size"] == in_use - 1
    send(router, [77], time + 700)
    # One request is left, and the nodes of one prompt.
    assert router._state.load[0].sum() == 1
    assert router._state.order.ends[0, 0]["size"] == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"target_gpu": "H100"}, "target_gpu: found 'H100', allowed: A6000, V100"),
        ({"sliding_window_period": 6.0}, "sliding_window_period: found 6.0, allowed: above 0"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        router_for(2, "aibrix_preble", **parameters)
