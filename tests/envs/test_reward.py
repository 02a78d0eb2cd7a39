"""Rewards: what they add up to, whose they are, and what they refuse."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from prefixgym.envs.cluster.state import REJECTED
from prefixgym.envs.reward import Goodput, Shaped, make_reward
from prefixgym.envs.routing import PrefixRoutingEnv
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.vector import PrefixRoutingVectorEnv

REQUESTS = 40
RATE = 60.0
SCENARIO = load_scenario("shared-prompts-8").with_num_requests(REQUESTS)
REJECT = 8
GAMMA = 0.97
DISCOUNT_TIME = 0.5
PRICED: dict[str, Any] = {"tardiness": 0.25, "cap": 3.0}

Steps = list[tuple[float, dict[str, Any]]]


def make(reward: Any, **arguments: Any) -> PrefixRoutingEnv:
    return PrefixRoutingEnv(SCENARIO, RATE, reward=reward, allow_reject=True, **arguments)


ENVS = {
    "goodput": make("goodput"),
    "priced goodput": make({"mode": "goodput", **PRICED}),
    "attributed": make("attributed"),
    "priced attributed": make({"mode": "attributed", **PRICED}),
    "shaped": make("shaped"),
    "priced shaped": make({"mode": "shaped", **PRICED}),
    "shaped by gamma": make({"mode": "shaped", "gamma": GAMMA}),
    "shaped by wall time": make("shaped", discount_time=DISCOUNT_TIME),
}


def outcomes_of(seed: int, actions: list[int]) -> NDArray[np.void]:
    """What becomes of the requests of the episode that the environment plays for this seed."""
    train = SCENARIO.seeds.of("train")
    chosen = train[int(gym.utils.seeding.np_random(seed)[0].integers(len(train)))]
    simulation = Simulation(**SCENARIO.build(RATE)._asdict(), record=True)
    simulation.reset([chosen])
    for action in actions:
        simulation.step(np.array([action]))
    return simulation.outcomes(0)


def play(name: str, seed: int, actions: list[int]) -> Steps:
    """Reward and info of every step."""
    env = ENVS[name]
    env.reset(seed=seed)
    steps = [env.step(np.int64(action)) for action in actions]
    assert [step[2] for step in steps] == [False] * (REQUESTS - 1) + [True]
    return [(step[1], step[4]) for step in steps]


def rewards_of(name: str, seed: int, actions: list[int]) -> list[float]:
    return [reward for reward, _ in play(name, seed, actions)]


def tardiness_of(outcomes: NDArray[np.void], cap: float) -> NDArray[np.float64]:
    """The formula of `reward.py`, from what a request's client sees."""
    slo = SCENARIO.slos[0]
    late = np.maximum(outcomes["ttft"] / slo.ttft, outcomes["tpot"] / slo.tpot) - 1
    late[outcomes["status"] == REJECTED] = np.inf
    return np.clip(late, 0, cap)


plays = st.tuples(
    st.integers(0, 2**31),
    # Some episodes spread their requests, others heap them on few instances, so that many are late.
    st.sampled_from([1, 2, REJECT, REJECT + 1]).flatmap(
        lambda n: st.lists(st.integers(0, n - 1), min_size=REQUESTS, max_size=REQUESTS)
    ),
)
IN_TURN = [i % 8 for i in range(REQUESTS)]


@settings(max_examples=25)
@given(plays)
def test_every_request_is_rewarded_once_in_every_mode(case: tuple[int, list[int]]) -> None:
    seed, actions = case
    outcomes = outcomes_of(seed, actions)
    assert sorted(outcomes["row"].tolist()) == list(range(REQUESTS))
    met_ttft = outcomes["ttft"] <= SCENARIO.slos[0].ttft  # False where a request was rejected
    good = met_ttft & (outcomes["tpot"] <= SCENARIO.slos[0].tpot)
    assert (good == (outcomes["good"] != 0)).all()
    assert (good == (tardiness_of(outcomes, 8.0) == 0)).all()
    late = tardiness_of(outcomes, PRICED["cap"])
    priced = good.sum() - PRICED["tardiness"] * late.sum()
    plain = rewards_of("goodput", seed, actions)
    assert sum(plain) == good.sum()
    assert rewards_of("attributed", seed, actions) == plain
    assert sum(rewards_of("shaped", seed, actions)) == pytest.approx(good.sum())
    for mode in ("goodput", "attributed", "shaped"):
        assert sum(rewards_of(f"priced {mode}", seed, actions)) == pytest.approx(priced)


@settings(max_examples=25)
@given(plays)
def test_attribution_pays_every_decision_once(case: tuple[int, list[int]]) -> None:
    seed, actions = case
    outcomes = outcomes_of(seed, actions)
    rows = np.empty(REQUESTS, np.int64)  # all requests are roots, so that row k is decision k
    rows[outcomes["row"]] = np.arange(REQUESTS)
    good, late = outcomes["good"][rows], tardiness_of(outcomes, PRICED["cap"])[rows]
    expected = {
        "attributed": good,
        "priced attributed": good - PRICED["tardiness"] * late,
    }
    for name, units in expected.items():
        paid: dict[int, float] = {}
        for step, (reward, info) in enumerate(play(name, seed, actions)):
            assert math.fsum(units for _, units in info["attribution"]) == pytest.approx(reward)
            for decision, unit in info["attribution"]:
                assert decision not in paid
                assert decision <= step
                paid[decision] = unit
        np.testing.assert_allclose([paid[k] for k in range(REQUESTS)], units, atol=1e-9)


def potentials_of(rewards: list[float], plain: list[float], discounts: list[float]) -> list[float]:
    """Φ after each step, from r = plain + γ Φ(s') − Φ(s) and Φ = 0 at the start."""
    found = [0.0]
    for shaped, base, discount in zip(rewards, plain, discounts, strict=True):
        if discount > 0:
            found.append((shaped - base + found[-1]) / discount)
    return found


@settings(max_examples=25)
@given(plays)
def test_shaping_telescopes(case: tuple[int, list[int]]) -> None:
    """Discounted as the shaping is, an episode's shaped and plain rewards have the same sum."""
    seed, actions = case
    plain = rewards_of("goodput", seed, actions)
    wall = play("shaped by wall time", seed, actions)
    discounts = {
        "shaped": [1.0] * REQUESTS,
        "shaped by gamma": [GAMMA] * REQUESTS,
        "shaped by wall time": [info["discount"] for _, info in wall],
    }
    potentials = []
    for name, factors in discounts.items():
        rewards = rewards_of(name, seed, actions)
        weights = np.concatenate([[1.0], np.cumprod(factors)[:-1]])
        assert weights @ rewards == pytest.approx(weights @ plain)
        potentials.append(potentials_of(rewards[:-1], plain[:-1], factors[:-1]))
    for other in potentials[1:]:  # Φ is a function of the state, not of the discount
        np.testing.assert_allclose(other, potentials[0], rtol=1e-6, atol=1e-6)
    # So many requests were in flight, and no more can be in time.
    in_flight = np.arange(REQUESTS) - np.cumsum([0, *ended_of(seed, actions)[:-1]])
    assert (np.array(potentials[0]) <= in_flight + 1e-6).all()
    assert (np.array(potentials[0]) >= -1e-6).all()


def ended_of(seed: int, actions: list[int]) -> list[int]:
    return [len(info["attribution"]) for _, info in play("attributed", seed, actions)]


def test_shaping_tells_a_bad_decision_at_once() -> None:
    """A queue on one instance, while seven stand idle: the promise shrinks before anything ends."""
    heaped, spread = rewards_of("shaped", 7, [0] * REQUESTS), rewards_of("shaped", 7, IN_TURN)
    ends = [ended_of(7, actions) for actions in ([0] * REQUESTS, IN_TURN)]
    early = next(k for k in range(REQUESTS) if any(counts[k] for counts in ends))
    assert early > 4
    assert sum(heaped[:early]) < sum(spread[:early])
    assert spread[0] == heaped[0] == 1.0


def test_discounts_follow_the_clock_and_end_the_episode() -> None:
    env = make("goodput", discount_time=DISCOUNT_TIME)
    _, info = env.reset(seed=3)
    assert "discount" not in info
    for action in IN_TURN:
        before = info["time"]
        *_, terminated, _, info = env.step(np.int64(action))
        expected = 0.0 if terminated else math.exp(-(info["time"] - before) / DISCOUNT_TIME)
        assert info["discount"] == pytest.approx(expected)
        assert type(float(info["discount"])) is float
    assert terminated


def test_goodput_depends_on_the_decisions() -> None:
    spread = sum(rewards_of("goodput", 7, IN_TURN))
    heaped = sum(rewards_of("goodput", 7, [0] * REQUESTS))
    assert 0 < heaped < spread


def test_goodput_is_paid_when_requests_end() -> None:
    """The first decisions earn nothing yet; what is in flight at the end is paid with the last."""
    rewards = rewards_of("goodput", 7, IN_TURN)
    assert rewards[0] == 0.0
    assert rewards[-1] > 1.0


def test_the_batch_tells_whose_rewards_are_in_flat_arrays() -> None:
    """Also of episodes that have ended and made room for the next."""
    for mode in ("SameStep", "NextStep"):
        env = PrefixRoutingVectorEnv(
            3, SCENARIO, RATE, reward={"mode": "attributed", **PRICED}, autoreset_mode=mode
        )
        env.reset(seed=5)
        totals = np.zeros(3)
        for _ in range(REQUESTS + 3):
            _, rewards, ended, _, info = env.step(np.full(3, 1))
            flat = env.attribution
            assert flat is not None
            sums = np.bincount(flat.env, flat.units, 3)
            np.testing.assert_allclose(sums, rewards, atol=1e-12)
            totals += rewards
            told = info["final_info"] if ended.any() and mode == "SameStep" else info
            pairs = [pair for row in told["attribution"] for pair in row]
            assert pairs == list(zip(flat.decision.tolist(), flat.units.tolist(), strict=True))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("good", "reward: found 'good', allowed: goodput, attributed, shaped"),
        ({"tardiness": 1.0}, "reward: found None, allowed: goodput"),
        ({"mode": "goodput", "gamma": 1}, "reward.gamma: no such key of goodput, allowed: tardin"),
        ({"mode": "shaped", "tardiness": "1"}, "reward.tardiness: found '1', expected a number"),
        ({"mode": "shaped", "tardiness": -1}, "reward.tardiness: found -1, allowed: .* least 0"),
        ({"mode": "shaped", "cap": math.nan}, "reward.cap: found nan, allowed: a number above 0"),
        ({"mode": "shaped", "gamma": 1.5}, "reward.gamma: found 1.5, allowed: .* at most 1"),
    ],
)
def test_a_bad_reward_gives_one_clear_error(choice: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_reward(choice)


def test_a_reward_may_be_given_as_it_is() -> None:
    assert make_reward({"mode": "goodput", "tardiness": 1}) == Goodput(tardiness=1)
    assert make_reward(Shaped(gamma=0.9)) == Shaped(gamma=0.9)


def test_a_discount_time_must_be_positive() -> None:
    with pytest.raises(ValueError, match="discount_time: found 0, must be above 0 s"):
        make("goodput", discount_time=0)
