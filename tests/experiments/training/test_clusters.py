"""Groups of clusters meet the same requests, and go on exactly where they were left."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.experiments.training.clusters import Clusters, Played

MANY = {"seeds.train.first": "1000", "seeds.train.count": "1000000"}
"""Training seeds, so that no two groups draw the same by chance."""


def clusters(scenario: Path, **changes: Any) -> Clusters:
    arguments: dict[str, Any] = {
        "scenario": load_scenario(str(scenario), MANY),
        "rate": 60.0,
        "num_requests": 30,
        "reward": {"mode": "attributed", "tardiness": 0.25},
        "discount_time": 5.0,
        "threads": 1,
    }
    return Clusters(3, 6, 3, **arguments | changes)


def steps(played: Clusters, number: int, seed: int) -> list[Played]:
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(number):
        masks = played.env.action_masks()
        found.append(played.step((generator.random(masks.shape) * masks).argmax(1)))
    return found


def test_members_of_a_group_meet_the_same_requests_whatever_they_decide(tiny: Path) -> None:
    differ = 0
    for played in steps(clusters(tiny), 70, seed=0):
        first, second = played.request[:3], played.request[3:]
        # prompt_tokens, gap, slo_ttft, slo_tpot; `best_hit` depends on what was decided
        assert (first[:, :4] == first[:1, :4]).all()
        assert (second[:, :4] == second[:1, :4]).all()
        differ += int((first[0, :2] != second[0, :2]).any())
    assert differ > 60


def test_members_decide_for_themselves_and_episodes_differ(tiny: Path) -> None:
    found = steps(clusters(tiny), 60, seed=0)
    assert found[20].instances.std(0).max() > 0
    ends = [row for row, played in enumerate(found) if played.ended.any()]
    assert ends == [29, 59]
    assert all(played.ended.all() == (row in ends) for row, played in enumerate(found))
    assert (found[29].discount == 0).all()
    assert (found[28].discount > 0).all()
    gaps = np.array([played.request[0, 1] for played in found])
    assert (gaps[:29] != gaps[30:59]).any()


@pytest.mark.parametrize("before", [0, 1, 29, 30, 47])
@pytest.mark.parametrize(
    "changes",
    [{}, {"randomise": {"instances": 1, "load": [0.5, 2.0]}}],
)
def test_a_resumed_one_goes_on_as_the_other(
    tiny: Path, before: int, changes: dict[str, Any]
) -> None:
    one, other = clusters(tiny, **changes), clusters(tiny, **changes)
    steps(one, before, seed=0)
    one.restart(one.members(range(1, 2)))  # groups are at different decisions from here on
    steps(one, 8, seed=1)
    other.resume({key: value.copy() for key, value in one.state().items()})
    for mine_seen, its_seen in zip(one.seen, other.seen, strict=True):
        assert np.array_equal(mine_seen, its_seen)
    for mine, its in zip(steps(one, 40, 2), steps(other, 40, 2), strict=True):
        assert arrays_of(mine).keys() == arrays_of(its).keys()
        for name, array in arrays_of(mine).items():
            assert np.array_equal(array, arrays_of(its)[name]), name


def arrays_of(played: Played) -> dict[str, Any]:
    assert played.attribution is not None
    return played._asdict() | played.attribution._asdict() | {"attribution": 0}
