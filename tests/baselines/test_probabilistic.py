"""Probabilities worked by hand, their properties, and how much traffic moves when they change."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_views import decide, one_view, router_for
from numpy.typing import NDArray

from prefixgym.baselines.probabilistic import Probabilistic, rendezvous, softmax
from prefixgym.baselines.router import make_router
from prefixgym.envs.rng import mix64

KEYS = 4000


def shares_of(
    scores: list[float], top_k: int = 0, tolerance: float = 1.0, temperature: float = 0.1
) -> list[float]:
    shares = np.empty(len(scores))
    picks = np.arange(len(scores))
    softmax(np.array(scores), picks, len(scores), top_k, tolerance, temperature, shares)
    return shares.tolist()


def hashed(key: int) -> np.uint64:
    return np.uint64(mix64(np.uint64(key)))


def placed(shares: list[float] | NDArray[np.float64]) -> NDArray[np.int64]:
    """Where each of KEYS keys goes."""
    weights = np.array(shares, np.float64)
    return np.array([rendezvous(hashed(key), weights) for key in range(KEYS)])


# --- probabilities by hand ---------------------------------------------------------------------


def test_softmax_of_normalised_scores() -> None:
    # z = 0, 1/2, 1 whatever the unit. exp: 1, e^-1, e^-2 at temperature 1/2; sum 1.5032.
    expected = pytest.approx([0.6652, 0.2447, 0.0900], abs=1e-4)
    assert shares_of([10, 11, 12], temperature=0.5) == expected
    assert shares_of([-7, -2, 3], temperature=0.5) == expected


def test_equal_scores_are_equally_likely() -> None:
    assert shares_of([4, 4, 4, 4]) == [0.25] * 4


def test_tolerance_and_top_k_cut_off() -> None:
    scores = [0.0, 4.0, 5.0, 10.0]  # z = 0, 0.4, 0.5, 1
    assert [s > 0 for s in shares_of(scores, tolerance=0.5)] == [True, True, True, False]
    assert [s > 0 for s in shares_of(scores, tolerance=0.49)] == [True, True, False, False]
    assert shares_of(scores, tolerance=0.0) == [1, 0, 0, 0]
    assert [s > 0 for s in shares_of(scores, top_k=3)] == [True, True, True, False]
    assert shares_of([2, 1, 1, 1], top_k=2) == [0, 0.5, 0.5, 0]
    # What is kept shares as before: 1 : e^-4.
    assert shares_of(scores, top_k=2)[1] == pytest.approx(1 / (1 + math.exp(4)))


def test_infinite_scores_are_ruled_out_and_do_not_stretch_the_scale() -> None:
    finite = shares_of([1, 2, 3], temperature=0.5)
    assert shares_of([1, math.inf, 2, 3], temperature=0.5) == [finite[0], 0, finite[1], finite[2]]
    assert shares_of([math.inf, 5]) == [0, 1]
    assert shares_of([math.inf, math.inf]) == [0.5, 0.5]


# --- their properties --------------------------------------------------------------------------

SCORES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)
TEMPERATURE = st.floats(0.01, 10) | st.just(0.0)


@given(SCORES, st.integers(0, 5), st.floats(0, 1), TEMPERATURE)
def test_shares_add_up_keep_the_best_and_fall_with_the_score(
    scores: list[float], top_k: int, tolerance: float, temperature: float
) -> None:
    shares = shares_of(scores, top_k, tolerance, temperature)
    assert sum(shares) == pytest.approx(1.0)
    assert all(share >= 0 for share in shares)
    assert shares[scores.index(min(scores))] == max(shares) > 0
    if top_k:
        assert sum(share > 0 for share in shares) <= top_k
    spread = max(scores) - min(scores)
    for score, share in zip(scores, shares, strict=True):
        if share > 0 and spread > 0:
            assert (score - min(scores)) / spread <= tolerance
    kept = sorted((score, -share) for score, share in zip(scores, shares, strict=True) if share)
    assert [-negative for _, negative in kept] == sorted((s for s in shares if s), reverse=True)


@given(SCORES)
def test_zero_temperature_is_the_least_score(scores: list[float]) -> None:
    best = min(scores)
    shares = shares_of(scores, temperature=0.0)
    assert {score for score, share in zip(scores, shares, strict=True) if share > 0} == {best}
    assert len({share for share in shares if share > 0}) == 1


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.data())
def test_a_leaving_instance_takes_only_its_own_keys(weights: list[float], data: Any) -> None:
    gone = data.draw(st.integers(0, len(weights) - 1))
    word = hashed(data.draw(st.integers(0, 2**62)))
    before = np.array(weights) / sum(weights)
    after = before.copy()
    after[gone] = 0.0
    after /= after.sum()
    home = rendezvous(word, before)
    assert home == gone or rendezvous(word, after) == home
    # And it gets them back when it returns.
    assert rendezvous(word, before) == home


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.floats(1, 3), st.data())
def test_a_growing_weight_only_attracts(weights: list[float], factor: float, data: Any) -> None:
    grows = data.draw(st.integers(0, len(weights) - 1))
    word = hashed(data.draw(st.integers(0, 2**62)))
    before = np.array(weights) / sum(weights)
    weights[grows] *= factor
    home, new_home = rendezvous(word, before), rendezvous(word, np.array(weights) / sum(weights))
    assert new_home in (home, grows)


def test_keys_are_shared_out_as_the_probabilities_say() -> None:
    shares = [0.5, 0.3, 0.0, 0.2]
    counts = np.bincount(placed(shares), minlength=4) / KEYS
    np.testing.assert_allclose(counts, shares, atol=3 * 0.5 / math.sqrt(KEYS))


def test_a_small_change_moves_little_traffic() -> None:
    # One of four equal shares grows from 25 to 30 %: 5 % of the keys move, all to it. Draws that
    # know no key would have moved 1 - Σ p_i p_i' = 75 %.
    before, after = placed([0.25] * 4), placed([0.30, *[0.7 / 3] * 3])
    moved = before != after
    assert abs(moved.mean() - 0.05) < 0.015
    assert (after[moved] == 0).all()
    # One of eight instances leaves: an eighth of the keys move, and none of the others'.
    eighth = placed([0.125] * 8)
    without = placed([*[1 / 7] * 7, 0.0])
    assert (without[eighth != 7] == eighth[eighth != 7]).all()
    assert abs((eighth == 7).mean() - 0.125) < 0.02
    assert np.ptp(np.bincount(without[eighth == 7], minlength=7)) < 60  # spread over all others


# --- the router --------------------------------------------------------------------------------

COLUMNS: dict[str, Any] = {
    "backlog_seconds": [0.0, 0.1, 0.2, 9.0],
    "prefill_seconds": [0.1] * 4,
    "available": [1, 1, 1, 0],
}


def many(router: Any, sessions: int = 1, **columns: Any) -> NDArray[np.int64]:
    choices = [
        decide(
            router,
            one_view(4, request={"index": k, "session": k % sessions}, **{**COLUMNS, **columns}),
        )
        for k in range(2000)
    ]
    return np.array(choices)


def test_probabilities_of_a_router() -> None:
    # z = 0, 1/2, 1; the instance that is down does not count.
    router = router_for(4, "probabilistic", router="min_ttft", temperature=0.5)
    assert isinstance(router, Probabilistic)
    shares = router.probabilities(one_view(4, **COLUMNS))
    assert shares[0].tolist() == pytest.approx([0.6652, 0.2447, 0.0900, 0.0], abs=1e-4)
    drawn = many(
        router_for(4, "probabilistic", router="min_ttft", temperature=0.5, affinity="none")
    )
    counts = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(counts, shares[0], atol=0.04)


def test_sessions_and_prefixes_have_one_home_each() -> None:
    for affinity, key in [("session", {"session": 5}), ("prefix", {})]:
        router = router_for(
            4, "probabilistic", router="min_ttft", temperature=0.5, affinity=affinity
        )
        choices = {
            decide(router, one_view(4, [1, 2, 3, 4, k], {"index": k, **key}, **COLUMNS))
            for k in range(50)
        }
        assert len(choices) == 1
    # Many keys share out like draws.
    drawn = many(router_for(4, "probabilistic", router="min_ttft", temperature=0.5), sessions=2000)
    assert abs((drawn == 0).mean() - 0.665) < 0.04
    # The seed decides which goes where.
    other = many(
        router_for(4, "probabilistic", router="min_ttft", temperature=0.5, seed=1), sessions=2000
    )
    assert (drawn != other).mean() > 0.3


def test_zero_temperature_is_the_router_itself() -> None:
    ties: dict[str, Any] = {"backlog_seconds": [0.1, 0.2, 0.1, 0.0]}
    plain = many(router_for(4, "min_ttft"), **ties)
    cold = router_for(4, "probabilistic", router="min_ttft", temperature=0.0, affinity="none")
    assert (many(cold, **ties) == plain).all()
    assert set(plain) == {0, 2}


def test_the_other_router_may_have_parameters_and_remembers_what_was_chosen() -> None:
    router = make_router("probabilistic", {"router": "lmetric:window_requests=7"})
    assert isinstance(router, Probabilistic)
    guard = "lmetric:class_prefix_blocks=2,window_requests=4"
    router = router_for(4, "probabilistic", router=guard, temperature=0.0, affinity="session")
    plain = router_for(4, "lmetric", class_prefix_blocks=2, window_requests=4)
    for _ in range(4):
        view = one_view(4, hit_tokens=[1024, 0, 0, 0], requests=[2, 1, 3, 3])
        assert decide(router, view) == decide(plain, view)


def test_nothing_is_turned_away() -> None:
    def arrive_twice(router: Any) -> list[int]:
        return [decide(router, one_view(4, request={"slot": k}, **COLUMNS)) for k in range(2)]

    # Dynamo takes an instance with any prefill in flight for busy: three are, one by one.
    busy: dict[str, Any] = {"active_prefill_tokens_threshold": 0.0}
    alone = router_for(4, "dynamo", **busy)
    assert 4 in arrive_twice(alone) + arrive_twice(alone)
    setting = "dynamo:active_prefill_tokens_threshold=0"
    for affinity in ("none", "session"):
        router = router_for(4, "probabilistic", router=setting, temperature=0.0, affinity=affinity)
        assert max(arrive_twice(router) + arrive_twice(router)) < 3


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"router": "round_robin"}, "probabilistic.router: found 'round_robin', allowed: .*min_tt"),
        ({"router": "min_ttft:x=1"}, "min_ttft.x: no such parameter, allowed: none"),
        ({"tolerance": "1.5"}, "tolerance: found 1.5, allowed: 0 to 1"),
        ({"affinity": "user"}, "affinity: found 'user', allowed: none, session, prefix"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_router("probabilistic", parameters)
