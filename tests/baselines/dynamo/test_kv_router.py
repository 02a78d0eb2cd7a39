"""Dynamo's costs worked by hand. That the real router has the same is in `test_dynamo_parity`."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from made_tapes import Sent, play
from made_views import BLOCK, cluster_of, decide, one_view, router_for

from prefixgym.baselines.probabilistic import softmax
from prefixgym.baselines.router import Router, make_router
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.view.view import DISPATCHED, ENDED, EVENT_VIEW, FIRST_TOKEN, STARTED, View

SLOTS = 40


def decision_of(
    num_instances: int,
    ids: list[int],
    *events: tuple[int, int, int],
    slot: int = 0,
    tokens: int | None = None,
    **instances: Any,
) -> View:
    """A decision after `events` (slot, instance, kind)."""
    request: dict[str, float] = {"slot": slot, "prompt_tokens": tokens or len(ids) * BLOCK}
    view = one_view(num_instances, ids, request, **instances)
    rows = np.zeros((1, max(1, len(events))), EVENT_VIEW)
    for k, (which, instance, kind) in enumerate(events):
        rows[0, k] = (0.0, which, instance, kind)
    return dataclasses.replace(
        view, events=rows, num_events=np.array([len(events)]), num_slots=SLOTS
    )


def costs(router: Router, view: View) -> list[float]:
    """Costs of a request that is not booked."""
    assert isinstance(router, ScoredRouter)
    router.hear(view)
    found: list[float] = router.scores(view)[0].tolist()
    return found


def send(router: Router, view: View, instance: int) -> None:
    """Book the request on `instance`, whatever it costs."""
    assert isinstance(router, ScoredRouter)
    router.hear(view)
    router.scores(view)
    router.commit(view, np.array([instance]))


def busy_router(name: str = "dynamo", **parameters: Any) -> Router:
    """0 and 1 have the bookings of the documentation's example, less 1 block of prefill and of use.

    0: 7 blocks to prefill and 9 in use; 1: 4 and 4; 2: 1 and 8.
    """
    router = router_for(3, name, **parameters)
    for slot, (instance, prefill, used) in enumerate([(0, 7, 9), (1, 4, 4), (2, 1, 8)]):
        ids = list(range(100 * slot, 100 * slot + used))
        view = decision_of(3, ids[:8], slot=slot, hit_tokens=(min(used, 8) - prefill) * BLOCK)
        send(router, view, instance)
        if used == 9:  # views have room for 8 blocks: the ninth is that of a request in decode
            send(router, decision_of(3, [900], slot=10), instance)
            costs(router, decision_of(3, [0], (10, instance, FIRST_TOKEN)))
    return router


@pytest.mark.parametrize("name", ["dynamo", "dynamo_classic"])
def test_example_of_the_documentation(name: str) -> None:
    # One more block: prefill and decode blocks (8, 10), (5, 5), (2, 9).
    router = busy_router(name)
    assert costs(router, decision_of(3, [1000])) == [18, 10, 11]
    assert decide(router, decision_of(3, [1000], slot=11)) == 1


def test_weights_turn_the_example() -> None:
    view = decision_of(3, [1000])
    assert costs(busy_router("dynamo_classic", overlap_score_weight=2), view) == [26, 15, 13]
    assert costs(busy_router(prefill_load_scale=2), view) == [26, 15, 13]
    assert costs(busy_router(decode_active_request_weight=0.5), view) == [19, 10.5, 11.5]
    assert costs(busy_router(router_track_prefill_tokens=False), view) == [10, 5, 9]


def test_a_hit_takes_its_blocks_off_the_prefill() -> None:
    hits = [0, 3 * BLOCK, BLOCK]
    view = decision_of(3, [1, 2, 3, 4], hit_tokens=hits)
    assert costs(router_for(3, "dynamo"), view) == [8, 5, 7]
    assert costs(router_for(3, "dynamo", overlap_score_credit=0.5), view) == [8, 6.5, 7.5]
    # Never below zero: 4 - 2 · 3 is no bonus.
    assert costs(router_for(3, "dynamo", overlap_score_credit=2), view) == [8, 4, 6]
    # Without prefill it comes off the blocks in use instead.
    router = router_for(3, "dynamo", router_track_prefill_tokens=False)
    assert costs(router, view) == [4, 1, 3]


def test_credit_fades_with_prefill_above_the_least() -> None:
    router = router_for(2, "dynamo", overlap_score_credit_decay=1.0)
    send(router, decision_of(2, [1, 2, 3, 4]), 0)
    # 0 is 4 blocks ahead, twice the prompt's 2: the credit is 1 / (1 + 2) of 1 block.
    view = decision_of(2, [8, 9], slot=1, hit_tokens=[BLOCK, BLOCK])
    assert costs(router, view) == pytest.approx([4 + 2 - 1 / 3 + 6, 2 - 1 + 2])
    # An instance that is down does not set the floor.
    view = decision_of(2, [8, 9], slot=1, hit_tokens=[BLOCK, BLOCK], available=[1, 0])
    assert costs(router, view)[0] == pytest.approx(4 + 2 - 1 + 6)


def test_prefill_counts_until_the_first_token_and_blocks_until_the_end() -> None:
    router = router_for(2, "dynamo")
    send(router, decision_of(2, [1, 2, 3], hit_tokens=BLOCK), 0)

    def seen(*events: tuple[int, int, int]) -> float:
        return costs(router, decision_of(2, [9], *events))[0]

    assert seen() == 2 + 3 + 2
    assert seen((0, 0, DISPATCHED), (0, 0, STARTED)) == 7
    assert seen((0, 0, FIRST_TOKEN)) == 3 + 2
    assert seen((0, 0, ENDED)) == 2
    # A request that ends without a token, and one that does both between two decisions.
    send(router, decision_of(2, [1, 2, 3]), 0)
    assert seen((0, 0, ENDED)) == 2
    send(router, decision_of(2, [1, 2, 3]), 0)
    assert seen((0, 0, FIRST_TOKEN), (0, 0, ENDED)) == 2


def test_live_requests_share_blocks() -> None:
    router = router_for(2, "dynamo", prefill_load_scale=0)
    send(router, decision_of(2, [1, 2, 3], slot=0), 0)
    send(router, decision_of(2, [1, 2, 8], slot=1), 0)
    send(router, decision_of(2, [1, 2, 3], slot=2), 1)
    assert costs(router, decision_of(2, [1, 2, 3, 4])) == [5, 4]
    assert costs(router, decision_of(2, [1, 2, 8])) == [4, 4]
    # 3 is no longer live on 0, 1 and 2 still are.
    assert costs(router, decision_of(2, [1, 2, 3, 4], (0, 0, ENDED))) == [5, 4]
    assert costs(router, decision_of(2, [7], (1, 0, ENDED))) == [1, 4]


def test_only_full_blocks_are_in_use_but_all_tokens_are_prefilled() -> None:
    router = router_for(1, "dynamo")
    half = BLOCK // 2
    assert costs(router, decision_of(1, [1, 2], tokens=BLOCK + half)) == [1.5 + 1]
    send(router, decision_of(1, [1, 2], tokens=BLOCK + half), 0)
    assert costs(router, decision_of(1, [5], tokens=half)) == [1.5 + 0.5 + 1]


def test_equal_costs_are_broken_at_random() -> None:
    choices = {decide(router_for(4, "dynamo", seed), decision_of(4, [1])) for seed in range(40)}
    assert choices == {0, 1, 2, 3}


def test_temperature_draws_by_distance_from_the_best() -> None:
    # Costs 10, 11, 18 at temperature 0.5: 1, exp(-1/4), exp(-8/4), over their sum.
    shares = np.empty(3)
    softmax(np.array([10.0, 11.0, 18.0]), np.arange(3), 3, 0, 1.0, 0.5, shares)
    assert shares == pytest.approx([0.522, 0.407, 0.071], abs=5e-4)
    router = busy_router(router_temperature=0.5)
    counts = np.zeros(3)
    for index in range(4000):
        view = decision_of(3, [1000], slot=20)
        view.requests["index"] = index
        choice = decide(router, view)
        counts[choice] += 1
        assert isinstance(router, ScoredRouter)
        router.hear(decision_of(3, [0], (20, choice, ENDED)))
    assert counts / 4000 == pytest.approx([0.071, 0.522, 0.407], abs=0.025)


def test_temperature_draws_only_from_those_that_can_be_chosen() -> None:
    choices = set()
    for seed in range(30):
        router = router_for(3, "dynamo", seed, router_temperature=10.0)
        choices.add(decide(router, decision_of(3, [1], available=[1, 0, 1])))
    assert choices == {0, 2}


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("active_decode_blocks_threshold", 0.02),  # of 100 blocks
        ("active_prefill_tokens_threshold", 2 * BLOCK),
        ("active_prefill_tokens_threshold_frac", 2 * BLOCK / 8192),
    ],
)
def test_busy_instances_are_not_chosen_and_all_busy_rejects(limit: str, value: float) -> None:
    limits: dict[str, Any] = {limit: value}
    router = router_for(2, "dynamo", **limits)
    send(router, decision_of(2, [1, 2], slot=0), 0)  # at the limit, not above
    assert costs(router, decision_of(2, [1, 2], hit_tokens=[BLOCK, 0])) == [2 + 1 + 2, 4]
    send(router, decision_of(2, [1, 2, 3], slot=1), 0)
    assert costs(router, decision_of(2, [1, 2], hit_tokens=[BLOCK, 0])) == [np.inf, 4]
    send(router, decision_of(2, [4, 5, 6], slot=2), 1)
    assert decide(router, decision_of(2, [1], slot=3)) == 2
    # A rejected request left nothing behind.
    assert decide(router, decision_of(2, [1], (2, 1, ENDED), slot=3)) == 1


def test_rejections_end_when_prefills_end() -> None:
    # Two prompts of 16 blocks at once are too many for one instance; after a second they are done.
    router = router_for(1, "dynamo", active_prefill_tokens_threshold=20.0 * BLOCK)
    sent = [
        Sent(time, range(1000 * k, 1000 * k + 16)) for k, time in enumerate([0.0, 0.0, 0.0, 2.0])
    ]
    outcomes = play(router, sent, 1, block_size=BLOCK)
    assert (outcomes["instance"] >= 0).tolist() == [True, True, False, True]


def test_what_the_engine_uses_makes_it_busy_too() -> None:
    router = router_for(2, "dynamo", active_decode_blocks_threshold=0.8)
    assert decide(router, decision_of(2, [1], kv_usage=[0.81, 0.8])) == 1
    assert decide(router, decision_of(2, [1], slot=1, kv_usage=[0.81, 0.9])) == 2


def test_only_those_that_are_there_can_all_be_busy() -> None:
    router = router_for(2, "dynamo", active_prefill_tokens_threshold=0.0)
    send(router, decision_of(2, [1], slot=0), 0)
    assert decide(router, decision_of(2, [1], slot=1, available=[1, 0])) == 2
    assert decide(router, decision_of(2, [1], slot=1)) == 1


def test_more_slots_than_at_first() -> None:
    router = router_for(1, "dynamo")
    few = dataclasses.replace(decision_of(1, [1]), num_slots=1)
    send(router, few, 0)
    send(router, decision_of(1, [2], slot=SLOTS - 1), 0)
    assert costs(router, decision_of(1, [9], (0, 0, ENDED), (SLOTS - 1, 0, FIRST_TOKEN))) == [3]


def test_reset_forgets() -> None:
    router = busy_router()
    router.reset(cluster_of(3), [0])
    assert costs(router, decision_of(3, [1000])) == [2, 2, 2]


@pytest.mark.parametrize(
    ("name", "parameter", "value", "allowed"),
    [
        ("dynamo", "overlap_score_credit", -1, "at least 0 and finite"),
        ("dynamo", "router_temperature", "inf", "at least 0 and finite"),
        ("dynamo", "active_decode_blocks_threshold", 1.5, "0 to 1, inf"),
        ("dynamo", "active_prefill_tokens_threshold_frac", -0.1, "at least 0"),
        ("dynamo_classic", "overlap_score_weight", -1, "at least 0 and finite"),
        ("dynamo_approximate", "router_ttl_secs", 0, "above 0 and finite"),
        ("dynamo_approximate", "router_prune_target_ratio", 0, "above 0 to 1"),
    ],
)
def test_values_out_of_range_are_refused(
    name: str, parameter: str, value: Any, allowed: str
) -> None:
    with pytest.raises(ValueError, match=rf"{name}\.{parameter}: found .*, allowed: {allowed}"):
        make_router(name, {parameter: value})
