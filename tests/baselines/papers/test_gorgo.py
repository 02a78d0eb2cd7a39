"""GORGO worked by hand. That the real one decides alike is in `test_gorgo_parity`."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from made_views import BLOCK, decide, one_view, router_for

from prefixgym.baselines.router import Router, make_router
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.view.view import ENDED, EVENT_VIEW, FIRST_TOKEN


def scores(router: Router, ids: list[int], queued: list[int], **request: float) -> list[float]:
    assert isinstance(router, ScoredRouter)
    view = one_view(len(queued), ids, request, context_tokens=queued)
    found: list[float] = router.scores(view)[0].tolist()
    return found


def send(router: Router, ids: list[int], instance: int, available: Any = 1) -> None:
    assert isinstance(router, ScoredRouter)
    view = one_view(3, ids, available=available)
    router.scores(view)
    router.commit(view, np.array([instance]))


def test_three_terms() -> None:
    weights: dict[str, Any] = {"rtt_weight": 2, "prefill_weight": 0.5, "load_weight": 3}
    router = router_for(3, "gorgo", rtt_ms="10,0,40", **weights)
    send(router, [1, 2, 3], 1)
    expected = [20 + BLOCK + 300, 0.0, 80 + BLOCK]
    assert scores(router, [1, 2], [100, 0, 0]) == expected
    router = router_for(
        3, "gorgo_2d", rtt_ms="10,0,40", prefill_rate=0.5, queue_rate=1.5, queue_weight=2
    )
    send(router, [1, 2, 3], 1)
    assert scores(router, [1, 2], [100, 0, 0]) == [10 + BLOCK + 300, 0.0, 40 + BLOCK]


def test_without_times_the_network_is_the_same_everywhere() -> None:
    assert scores(router_for(2, "gorgo"), [1], [7, 0]) == [BLOCK + 7, BLOCK]


def test_prefixes_are_known_for_whoever_was_sent_them_and_for_ever() -> None:
    router = router_for(3, "gorgo")
    send(router, [1, 2, 3, 4], 0)
    send(router, [1, 2, 7], 1)
    for other in range(100, 400):
        send(router, [other], 2)

    def blocks(ids: list[int]) -> list[float]:
        return [len(ids) - score / BLOCK for score in scores(router, ids, [0, 0, 0])]

    assert blocks([1, 2, 3, 4, 5]) == [4, 2, 0]
    assert blocks([1, 2, 7]) == [2, 3, 0]
    assert blocks([1, 9]) == [1, 1, 0]
    assert blocks([150]) == [0, 0, 1]
    # A prompt shorter than its last block costs no more than its tokens.
    assert scores(router, [8], [0, 0, 0], prompt_tokens=5) == [5, 5, 5]
    assert scores(router, [1], [0, 0, 0], prompt_tokens=5) == [0, 0, 5]


def test_an_instance_that_is_gone_is_forgotten() -> None:
    router = router_for(3, "gorgo")
    send(router, [1, 2], 0)
    send(router, [1, 2], 1)
    send(router, [5], 2, available=[0, 1, 1])
    assert scores(router, [1, 2], [0, 0, 0]) == [2 * BLOCK, 0, 2 * BLOCK]


def test_first_of_equals() -> None:
    assert decide(router_for(3, "gorgo"), one_view(3, [1])) == 0
    assert decide(router_for(3, "gorgo"), one_view(3, [1], available=[0, 1, 1])) == 1


def test_routing_fills_the_trie() -> None:
    router = router_for(2, "gorgo")
    assert decide(router, one_view(2, [1, 2], context_tokens=[1, 0])) == 1
    assert decide(router, one_view(2, [1, 2], context_tokens=[0, 2 * BLOCK])) == 0
    assert decide(router, one_view(2, [1, 2, 3], context_tokens=[1, 0])) == 1


class Served:
    """A router whose requests all answer after a time that depends on its weights."""

    def __init__(self, **parameters: Any) -> None:
        self.router: Any = router_for(2, "gorgo", auto_tune=True, **parameters)
        self.now = 0.0
        self._heard: list[tuple[float, int, int, int]] = []

    def weights(self) -> tuple[float, float, float]:
        """rtt, prefill and load weight in use, as the scores show them."""
        found = []
        for ids, queued, rtt in (([], [0, 0], True), ([77], [0, 0], False), ([], [1, 0], False)):
            row = scores(self.router, ids, queued, prompt_tokens=BLOCK if ids else 0)
            zero = scores(self.router, [], [0, 0], prompt_tokens=0)
            found.append(row[1] if rtt else (row[0] - zero[0]) / (BLOCK if ids else 1))
        return found[0], found[1], found[2]

    def serve(self, requests: int, ttft: float = 1.0, answers: bool = True) -> None:
        for _ in range(requests):
            events = np.zeros((1, 2), EVENT_VIEW)
            for k, event in enumerate(self._heard):
                events[0, k] = event
            view = one_view(2, [5], {"time": self.now})
            counts = np.array([len(self._heard)])
            self.router.route(dataclasses.replace(view, events=events, num_events=counts))
            self._heard = [(self.now + ttft, 0, 0, FIRST_TOKEN)] if answers else []
            self._heard.append((self.now + ttft, 0, 0, ENDED))
            self.now += ttft + 1


def test_the_first_window_is_judged_when_it_is_full_then_every_hop() -> None:
    served = Served(rtt_ms="0,1", window_size=6, hop_size=3)
    changes = []
    before = served.weights()
    for number in range(1, 16):
        served.serve(1)
        # What is served ends before the next decision.
        if served.weights() != before:
            changes.append(number - 1)
            before = served.weights()
    assert changes == [6, 9, 12]
    assert before[2] == 1.0  # load_weight is not tuned by default
    assert before[0] != 1.0 != before[1]


def test_requests_without_an_answer_are_not_judged() -> None:
    served = Served(rtt_ms="0,1", window_size=2, hop_size=1)
    served.serve(20, answers=False)
    assert served.weights() == (1, 1, 1)


def test_slower_weights_are_given_up() -> None:
    served = Served(rtt_ms="0,1", window_size=1, hop_size=1, tuned="load_weight")
    served.serve(1)  # judged: 1.0 s with weight 1
    served.serve(1, ttft=1.1)
    worse = served.weights()[2]
    served.serve(2, ttft=1.1)
    assert worse != served.weights()[2]
    seen = [served.weights()[2]]
    for _ in range(40):
        served.serve(1, ttft=9.0)
        seen.append(served.weights()[2])
    # Nothing was better, so the search narrowed around 1 until it stayed there.
    assert seen[-1] == 1.0


def test_weights_stay_in_their_range_and_worse_ones_within_the_tolerance_count() -> None:
    served = Served(rtt_ms="0,1", window_size=1, hop_size=1, tuned="load_weight", load_weight=5)
    seen = []
    for number in range(60):
        served.serve(1, ttft=1.004**number)
        seen.append(served.weights()[2])
    # Every window is worse, but within the tolerance: all count as better, so that the steps grow
    # until the weight jumps from one end of its range to the other.
    assert max(seen[-20:]) == 5
    assert min(seen[-20:]) == 1e-5


@pytest.mark.parametrize(
    ("name", "parameter", "value", "allowed"),
    [
        ("gorgo", "rtt_ms", "1,two", "numbers of at least 0"),
        ("gorgo", "rtt_ms", "1,-2", "numbers of at least 0"),
        ("gorgo", "tuned", "queue_weight", "some of rtt_weight,prefill_weight,load_weight"),
        ("gorgo", "tuned", "load_weight,load_weight", "some of rtt_weight"),
        ("gorgo", "objective_metric", "ttft", "neg_p50_ttft, "),
        ("gorgo_2d", "queue_rate", -1, "at least 0 and finite"),
        ("gorgo_2d", "hop_size", 0, "at least 1"),
    ],
)
def test_values_out_of_range_are_refused(
    name: str, parameter: str, value: Any, allowed: str
) -> None:
    with pytest.raises(ValueError, match=rf"{name}\.{parameter}: found .*, allowed: {allowed}"):
        make_router(name, {parameter: value})


def test_as_many_times_as_instances() -> None:
    with pytest.raises(ValueError, match="found 2 numbers, allowed: none or one for each of 3"):
        router_for(3, "gorgo", rtt_ms="1,2")
