"""Mooncake's Conductor and its early rejection, worked by hand."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from made_views import BLOCK, decide, one_view, router_for, view_of

from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.cluster.profiles import CompactModel, LinearPart, constant_profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.view.view import ENDED, FIRST_TOKEN, INSTANCE_VIEW, REQUEST_VIEW

N = 3
Event = tuple[float, int, int, int]


def test_the_least_predicted_ttft_the_first_of_equals() -> None:
    router = router_for(4, "mooncake")
    columns: dict[str, Any] = {"backlog_seconds": [0.5, 0.25, 0.0, 0.0]}
    assert decide(router, one_view(4, prefill_seconds=[0.25, 0.25, 0.5, 0.5], **columns)) == 1
    assert decide(router, one_view(4, prefill_seconds=[0.25, 0.5, 0.75, 0.75], **columns)) == 0
    columns["available"] = [0, 1, 1, 1]
    assert decide(router, one_view(4, prefill_seconds=[0.25, 0.5, 0.75, 0.75], **columns)) == 1


def test_without_early_rejection_nothing_is_turned_away() -> None:
    late = one_view(2, request={"slo_ttft": 0.1}, backlog_seconds=[9.0, 8.0])
    assert decide(router_for(2, "mooncake"), late) == 1


# A decode step takes 10 ms a sequence and 1 ms a thousand tokens.
_NOTHING = LinearPart(t0=0.0, a=0.0, q=1.0, b=0.0, t_experts=0.0, nu=0.0)
_MODEL = CompactModel(_NOTHING, _NOTHING, None, (0.0, 0.0, 0.0), (0.0, 10.0, 0.001))
_PROFILE = dataclasses.replace(constant_profile(0.0, 0.0), step_model=_MODEL)


class Play:
    """Decisions of a router on three instances, one after the other."""

    def __init__(self, early_rejection: str, **parameters: Any) -> None:
        self.cluster = ClusterSpec((InstanceSpec(_PROFILE, 100),) * N, BLOCK)
        settings = {"early_rejection": early_rejection, **parameters}
        self.router: Router = make_router("mooncake", settings)
        self.router.reset(self.cluster, [0])

    def __call__(
        self,
        time: float,
        slot: int,
        events: list[Event] | None = None,
        tpot: float = 0.03,
        tokens: int = 1000,
        available: Any = 1,
        **columns: Any,
    ) -> int:
        requests, rows = np.zeros(1, REQUEST_VIEW), np.zeros((1, N), INSTANCE_VIEW)
        requests["time"], requests["slot"], requests["prompt_tokens"] = time, slot, tokens
        requests["slo_ttft"], requests["slo_tpot"] = 1.0, tpot
        rows["available"] = available
        for name, column in columns.items():
            rows[name] = column
        ids = np.full((1, 8), -1, np.int64)
        return decide(self.router, view_of(self.cluster, requests, ids, rows, [events or []]))


def to(instance: int, seconds: float = 0.5) -> dict[str, Any]:
    """Columns that make `instance` the best, with a predicted TTFT of `seconds`."""
    return {"prefill_seconds": [seconds if i == instance else 9.0 for i in range(N)]}


@pytest.mark.parametrize("rule", ["early", "predictive"])
def test_a_late_prefill_is_turned_away(rule: str) -> None:
    play = Play(rule, decode_seconds=1e-9)
    assert play(0.0, 0, **to(1, 1.0)) == 1
    assert play(0.1, 1, **to(1, 1.01)) == N


def test_early_takes_what_decodes_now() -> None:
    # Two decode on instance 0, one on 1: steps of 20 + 2, 10 + 1 and 0 ms, a mean of 11.
    play = Play("early")
    for slot, instance in enumerate([0, 0, 1]):
        assert play(0.0, slot, **to(instance)) == instance
    # They do not count before their first token.
    assert play(0.1, 3, tpot=0.001, **to(2)) == 2
    first_tokens = [(0.5, 0, 0, FIRST_TOKEN), (0.5, 1, 0, FIRST_TOKEN), (0.6, 2, 1, FIRST_TOKEN)]
    assert play(1.0, 4, first_tokens, tpot=0.0109, **to(2)) == N
    assert play(1.1, 4, tpot=0.0111, **to(2)) == 2
    # One ends: (11 + 11 + 0) / 3 = 7.33. So does one that never answered.
    ends = [(1.2, 0, 0, ENDED), (1.2, 4, 2, ENDED)]
    assert play(1.3, 4, ends, tpot=0.0073, **to(2)) == N
    assert play(1.4, 4, tpot=0.0074, **to(2)) == 2
    # The mean is over the available.
    up = [1, 1, 0]
    assert play(1.5, 5, tpot=0.0109, available=up, **to(1)) == N
    assert play(1.6, 5, tpot=0.0111, available=up, **to(1)) == 1


def test_predictive_counts_what_will_decode_when_the_prefill_ends() -> None:
    # Three requests answer at 0.5 by prediction; this one at 1.0 makes four.
    play = Play("predictive", decode_seconds=2.0)
    for slot, instance in enumerate([0, 0, 1]):
        assert play(0.0, slot, **to(instance)) == instance
    # (22 + 11 + 11) / 3 = 14.67 ms, although nothing decodes yet.
    assert play(0.5, 3, tpot=0.0146, **to(2)) == N
    assert play(0.5, 3, tpot=0.0147, **to(2)) == 2
    # At 2.49 the three are about to be forgotten, at 2.5 they are: only slots 3 and 4 are left.
    assert play(1.99, 4, tpot=0.0146, **to(2)) == N
    assert play(2.0, 4, tpot=0.0074, **to(2)) == 2  # 22 / 3


def test_predictive_hears_when_first_tokens_really_come() -> None:
    play = Play("predictive", decode_seconds=2.0)
    assert play(0.0, 0, **to(0)) == 0
    # Its first token came at 1.0 and not at 0.5, so at 2.9 it still decodes: (11 + 11) / 3.
    late = [(1.0, 0, 0, FIRST_TOKEN)]
    assert play(2.4, 1, late, tpot=0.0073, **to(1)) == N
    assert play(2.4, 1, tpot=0.0074, **to(1)) == 1
    # Prefills that end after this one do not count: at 2.6 only this one would decode.
    assert play(2.5, 2, [(2.45, 0, 0, ENDED)], tpot=0.0037, **to(2, 0.1)) == 2
    assert play(2.5, 3, tpot=0.0036, **to(1, 0.05)) == N


def test_a_slot_that_was_turned_away_is_free() -> None:
    play = Play("predictive", decode_seconds=9.0)
    for _ in range(5):
        assert play(0.0, 0, tpot=0.001, **to(0)) == N
    assert play(0.0, 0, tpot=0.0037, **to(0)) == 0  # alone: 11 / 3
