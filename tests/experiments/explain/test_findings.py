"""Findings from decisions that are made up, and from rules that are known."""

import math
from pathlib import Path

import numpy as np
import pytest

from prefixgym.baselines.router import make_router
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.experiments.evaluate import played
from prefixgym.experiments.explain.findings import FEWEST, Findings, findings
from prefixgym.experiments.explain.popularity import CLASSES
from prefixgym.experiments.explain.watcher import Decisions, Watcher
from prefixgym.experiments.paper.study import Arm


def _decisions(excess: list[float], left: list[bool], hit: float = 0.75) -> Decisions:
    """Each ten times, on three instances with 6, 2 and 1 requests in flight."""
    excess, left = 10 * excess, 10 * left
    count = len(excess)
    copies, looks = np.zeros(CLASSES), np.zeros(CLASSES, np.int64)
    copies[5], looks[5] = 5 * FEWEST, 2 * FEWEST
    return Decisions(
        np.full(count, hit),
        np.array(excess),
        np.array(left),
        np.zeros(count, np.int64),
        np.ones(count, np.int64),
        np.tile([6.0, 2.0, 1.0], (count, 1)),
        copies,
        looks,
    )


def _found(decisions: Decisions) -> Findings:
    return findings(Arm.of("min_ttft"), {}, decisions)


def test_the_map_and_where_it_is_left() -> None:
    found = _found(_decisions([0.0, 0.15, 0.7], [False, False, True]))
    column = found.leaves[:, 7]  # 70 to 80 % of the prompt
    assert column[0] == 0  # it is the soonest too
    assert column[3] == 0  # 0.1 to 0.2
    assert column[5] == 1  # 0.5 to 1
    assert np.isfinite(found.leaves).sum() == 3
    assert found.left == pytest.approx(1 / 3)
    assert found.left_from == 0.5
    assert "more often than not from 0.5 of the TTFT objective on" in found.sentence()


@pytest.mark.parametrize(
    ("left", "where"),
    [
        ([False, False, False], math.inf),
        ([False, True, True], 0.1),
        ([False, True, False], math.inf),  # a single row does not count
    ],
)
def test_it_is_left_from_where_all_above_are(left: list[bool], where: float) -> None:
    assert _found(_decisions([0.0, 0.15, 0.7], left)).left_from == where


def test_shares_spread_and_copies() -> None:
    found = _found(_decisions([0.0], [False]))
    assert found.by_ttft[0] == found.by_requests[1] == 1
    assert found.peak == 2
    assert found.load.tolist() == [[6, 2, 1]] * 3
    assert found.popular_copies == 2.5
    assert found.copies[5] == 2.5
    assert np.isnan(found.copies[4])


def _watched(tiny: Path, router: str, **overrides: str) -> tuple[Decisions, int]:
    scenario = load_scenario(str(tiny), {k.replace("__", "."): v for k, v in overrides.items()})
    watcher = Watcher()
    simulation, _ = played(make_router(router), scenario, 60.0, (10, 11), watcher)
    hits = sum(int((simulation.outcomes(e)["hit_tokens"] > 0).sum()) for e in range(2))
    return watcher.decisions(), hits


def test_rules_that_are_known_are_recognised(tiny: Path) -> None:
    greedy, hits = _watched(tiny, "min_ttft")
    assert len(greedy.hit) == 300
    assert (greedy.rank_ttft == 0).all()
    # Left where another one is sooner, and nowhere else.
    assert (greedy.left <= (greedy.excess >= 0)).all()
    assert greedy.left[greedy.excess > 0].all()
    assert not greedy.left[(greedy.excess == 0) & (greedy.hit > 0.5)].any()
    assert hits > 0
    assert (greedy.hit > 0).sum() >= hits
    balanced, _ = _watched(tiny, "least_load")
    assert (balanced.rank_requests == 0).all()
    assert (greedy.load[:, 0] >= greedy.load[:, 1]).all()


def test_an_instance_that_is_never_there_is_left_out(tiny: Path) -> None:
    gone, _ = _watched(tiny, "min_ttft", faults='[{ kind = "restart", at = 0.0, instances = [0] }]')
    assert np.isnan(gone.load[:, 1]).any()
    found = _found(gone)
    assert found.load.shape[1] in (1, 2)
    assert np.isfinite(found.peak)
