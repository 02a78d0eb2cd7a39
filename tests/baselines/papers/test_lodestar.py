"""Lodestar: what it learns, and when it does not trust it."""

from typing import Any

import numpy as np
import pytest
from made_views import BLOCK, cluster_of, decide, one_view, router_for, view_of
from numpy.typing import ArrayLike

from prefixgym.baselines.papers.lodestar import Lodestar
from prefixgym.baselines.router import make_router
from prefixgym.envs.cluster.profiles import constant_profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.view.view import ENDED, FIRST_TOKEN, View

N = 4
PROMPT = [1, 2, 3, 4]


def a_view(index: int, events: list[tuple[float, int, int, int]], **columns: ArrayLike) -> View:
    request: dict[str, float] = {"index": index, "time": index, "slot": index % 8}
    view = one_view(N, PROMPT, request, **columns)
    return view_of(view.cluster, view.requests, view.block_ids, view.instances, [events])


def learned(num_samples: int = 300, **parameters: Any) -> Lodestar:
    """A router that has seen TTFTs of 0.1 s and 0.1 s more for each waiting request.

    Waiting requests are 0 to 9, requests in flight always equal: its heuristic sees no difference.
    """
    settings = {"theta": num_samples, "training_epochs": 60, "learning_rate": 0.002}
    router = router_for(N, "lodestar", **{**settings, **parameters})
    assert isinstance(router, Lodestar)
    rng = np.random.default_rng(0)
    events: list[tuple[float, int, int, int]] = []
    for index in range(num_samples + 1):
        waiting = rng.integers(0, 10, N)
        chosen = decide(router, a_view(index, events, waiting=waiting, running=rng.integers(5)))
        slot = index % 8
        events = [(index + 0.1 + 0.1 * waiting[chosen], slot, chosen, FIRST_TOKEN)]
        events.append((index + 0.99, slot, chosen, ENDED))
    return router


def test_the_heuristic_takes_the_largest_share_among_usual_loads() -> None:
    router = router_for(N, "lodestar")
    hits: dict[str, Any] = {"hit_tokens": [0, BLOCK, 2 * BLOCK, BLOCK]}
    assert decide(router, one_view(N, PROMPT, requests=[1, 1, 1, 0], **hits)) == 2
    # Mean 2, sample deviation 2.16: 5 is too busy, of equal shares the fewer requests.
    assert decide(router, one_view(N, PROMPT, requests=[0, 2, 5, 1], **hits)) == 3
    # A difference above 8: only the least loaded, with or without a hit.
    assert decide(router, one_view(N, PROMPT, requests=[0, 9, 9, 9], **hits)) == 0
    assert decide(router, one_view(N, PROMPT, requests=[1, 9, 9, 9], **hits)) == 2
    # No hits: the least loaded.
    assert decide(router, one_view(N, PROMPT, requests=[3, 2, 1, 2])) == 2


def test_first_tokens_label_what_the_request_was_routed_with() -> None:
    router = router_for(N, "lodestar", theta=3)
    assert isinstance(router, Lodestar)
    for index in range(3):
        hits = [0, 0, (index + 1) * BLOCK, 0]
        assert decide(router, a_view(index, [], hit_tokens=hits, running=index)) == 2
    router.hear(a_view(3, [(3.5, 1, 2, FIRST_TOKEN), (4.0, 0, 2, FIRST_TOKEN)]))
    assert router._num_new[0] == 2
    # Routed at 1 and at 0: the longer wait is the smaller reward.
    assert router._new_rewards[0, :2].tolist() == [-2.5, -4.0]
    # Prompt tokens, hit share, running; prefill and decode tokens were 0.
    assert router._new_features[0, 0, :3].tolist() == [4 * BLOCK, 0.5, 1]
    assert router._new_features[0, 1, :3].tolist() == [4 * BLOCK, 0.25, 0]
    assert not router._trained[0]
    router.hear(a_view(4, [(4.5, 2, 2, FIRST_TOKEN)]))
    assert router._trained[0]
    assert router._num_new[0] == 0
    # All three decode now on instance 2.
    decide(router, a_view(4, []))
    assert router._features[0, :, 5].tolist() == [0, 0, 3 * 4 * BLOCK, 0]


def test_it_learns_what_its_heuristic_does_not_look_at() -> None:
    router = learned()
    for best in range(N):
        waiting = [1 if i == best else 8 for i in range(N)]
        assert decide(router, a_view(500, [], waiting=waiting, running=2)) == best
    # Predicted TTFT: 0.1 + 0.1 · waiting, here 0.3 and 0.8 s.
    scores = router.scores(a_view(501, [], waiting=[2, 2, 7, 7], running=2))[0]
    assert scores.tolist() == pytest.approx([0.3, 0.3, 0.8, 0.8], abs=0.1)


def test_out_of_its_range_the_heuristic_decides() -> None:
    router = learned()
    columns: dict[str, Any] = {"running": 2, "requests": [2, 1, 2, 2]}
    assert decide(router, a_view(500, [], waiting=[0, 9, 9, 9], **columns)) == 0
    # Ten have never been seen waiting: the fewest requests, however many wait there.
    assert decide(router, a_view(501, [], waiting=[0, 9, 9, 10], **columns)) == 1
    # What is down does not count.
    up = [1, 1, 1, 0]
    assert decide(router, a_view(502, [], waiting=[0, 9, 9, 10], available=up, **columns)) == 0
    # A feature that never varied is not looked at.
    assert decide(router, a_view(503, [], waiting=[0, 9, 9, 9], kv_usage=0.5, **columns)) == 0


def test_above_the_kv_threshold_a_prefix_has_two_homes() -> None:
    router = learned()
    choices = set()
    for best in range(N):
        waiting = [0 if i == best else 9 for i in range(N)]
        choices.add(decide(router, a_view(500, [], waiting=waiting, running=2, kv_usage=0.81)))
    assert len(choices) == 2
    for best in range(N):
        waiting = [0 if i == best else 9 for i in range(N)]
        view = a_view(500, [], waiting=waiting, running=2, kv_usage=0.8)
        assert decide(router, view) == best


def test_the_kind_of_an_instance_is_a_feature() -> None:
    fast, slow = constant_profile(1, 1), constant_profile(2, 1)
    kinds = [fast, slow, slow, fast]
    cluster = ClusterSpec(tuple(InstanceSpec(kind, 100) for kind in kinds), BLOCK)
    router = make_router("lodestar")
    router.reset(cluster, [0])
    assert isinstance(router, Lodestar)
    assert router._features[0, :, 7:].tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]


def test_another_round_goes_on_with_recent_and_replay_samples() -> None:
    router = learned(num_samples=40, theta=20, fifo_size=15, replay_size=10, training_epochs=1)
    # After 20 samples 5 were old; after 40 it were 5 + 20, of which 10 were kept.
    data = router._data[0]
    assert (len(data.rewards), len(data.old_rewards)) == (15, 10)
    router.reset(cluster_of(N), [0])
    assert not router._trained.any()
    assert len(router._data[0].rewards) == 0
