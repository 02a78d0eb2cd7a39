"""Each request that ends pays the decision that routed it, as far as that is remembered."""

from typing import Any

import numpy as np
import pytest

from prefixgym.envs.reward import Attribution
from prefixgym.experiments.training.clusters import Played
from prefixgym.experiments.training.rollout_buffer import RolloutBuffer

NUM_ENVS, LENGTH = 2, 6


def buffer(attributed: bool = True, per_request: bool = False) -> RolloutBuffer:
    return RolloutBuffer(
        LENGTH, NUM_ENVS, 1, (1, 1), attributed=attributed, per_request=per_request
    )


def add(
    to: RolloutBuffer, row: int, paid: list[tuple[int, int, float]], ended: Any = (False, False)
) -> None:
    """One step of both clusters in which these (cluster, decision, units) are paid."""
    env, decision, units = zip(*paid, strict=True) if paid else ((), (), ())
    attribution = Attribution(
        np.array(env, np.int64), np.array(decision, np.int64), np.array(units, np.float64)
    )
    seen = np.zeros((NUM_ENVS, 1), np.float32), np.zeros((NUM_ENVS, 1, 1), np.float32)
    reward = np.zeros(NUM_ENVS)
    np.add.at(reward, attribution.env, attribution.units)
    discount = np.where(ended, 0.0, 0.9)
    played = Played(*seen, reward, discount, attribution, np.array(ended))
    zeros = np.zeros(NUM_ENVS)
    to.add(row, seen, zeros.astype(np.int64), zeros.astype(np.float32), played)


def test_the_routing_decision_is_paid_while_it_is_remembered() -> None:
    made = buffer()
    made.make_room(3)
    add(made, 3, [])
    add(made, 4, [(0, 0, 1.0), (1, 1, 0.5)])
    add(made, 5, [(1, 0, -2.0)])
    assert made.reward[3:].tolist() == [[1.0, -2.0], [0.0, 0.5], [0.0, 0.0]]
    made.make_room(3)
    add(made, 3, [(0, 1, 1.0), (0, 2, 1.0), (0, 3, 1.0)])
    assert made.reward[:4, 0].tolist() == [1.0, 1.0, 1.0, 1.0]
    add(made, 4, [])
    add(made, 5, [])
    made.make_room(3)
    add(made, 3, [(0, 2, 7.0)])  # forgotten by now: paid to the decision made last
    assert made.reward[3].tolist() == [7.0, 0.0]


def test_an_episode_that_begins_is_counted_from_its_first_decision() -> None:
    made = buffer()
    made.make_room(6)
    add(made, 0, [])
    add(made, 1, [(0, 0, 1.0)], ended=(True, False))
    add(made, 2, [(0, 0, 0.25), (1, 0, 0.5)])
    assert made.reward[:3].tolist() == [[1.0, 0.5], [0.0, 0.0], [0.25, 0.0]]
    assert made.discount[:3, 0].tolist() == [0.9, 0.0, 0.9]
    made.begin(3, np.array([False, True]))  # cut off from outside
    add(made, 3, [(1, 0, 3.0)])
    assert made.reward[3].tolist() == [0.0, 3.0]
    assert made.discount[:4, 1].tolist() == [0.9, 0.9, 0.0, 0.9]


@pytest.mark.parametrize("per_request", [False, True])
def test_without_attribution_the_last_decision_is_paid(per_request: bool) -> None:
    made = buffer(attributed=False, per_request=per_request)
    made.make_room(2)
    add(made, 4, [])
    add(made, 5, [(0, 0, 1.0), (0, 1, 0.5)])
    assert made.reward[4:].tolist() == [[0.0, 0.0], [-0.5 if per_request else 1.5, 0.0]]


def test_nothing_that_is_paid_gets_lost() -> None:
    generator = np.random.default_rng(0)
    made, paid, decision = buffer(), 0.0, 0
    forgotten = 0.0
    for _ in range(20):
        forgotten += made.reward[:2].sum()
        made.make_room(2)
        for row in (4, 5):
            due = generator.integers(0, decision + 1, 3)
            units = [(int(generator.integers(2)), int(k), float(k)) for k in due]
            paid += sum(unit for _, _, unit in units)
            add(made, row, units)
            decision += 1
    assert forgotten + made.reward.sum() == pytest.approx(paid)


def test_it_can_be_resumed_and_knows_how_full_it_is() -> None:
    one, other = buffer(), buffer()
    filled = []
    for _ in range(4):
        one.make_room(2)
        add(one, 4, [(0, 0, 1.0)])
        add(one, 5, [])
        filled.append(one.filled)
    assert filled == [2, 4, 6, 6]
    other.resume({key: value.copy() for key, value in one.state().items()})
    for made in (one, other):
        made.make_room(2)
        add(made, 4, [(1, 5, 1.0)])
    assert one.reward.tolist() == other.reward.tolist()
    assert one.filled == other.filled == 5
