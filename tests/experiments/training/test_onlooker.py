"""Decisions are compared with those of others at the same moment, who remember what was done."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from prefixgym.agents.linear_score import LinearScore
from prefixgym.baselines.router import make_router
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.view.view import View
from prefixgym.experiments.evaluate import played
from prefixgym.experiments.training.onlooker import COMPARED, Behaviour, Onlooker

SEEDS = [10, 11, 12]


def look_at(router: str, tiny: Path, every: int = 1, scenario: str = "") -> Behaviour:
    onlooker = Onlooker(SEEDS, every)
    chosen = load_scenario(scenario or str(tiny), {}).with_num_requests(150)
    played(make_router(router), chosen, 80.0, SEEDS, onlooker)
    return onlooker.behaviour()


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("name", COMPARED)
def test_a_router_decides_as_it_decides(name: str, every: int, tiny: Path) -> None:
    """Also one that remembers its choices, and is asked at every moment or at some only."""
    seen = look_at(name, tiny, every)
    assert seen.shares[f"differs_from_{name}"] == 0.0
    others = [seen.shares[f"differs_from_{other}"] for other in COMPARED if other != name]
    assert all(0.0 < share < 1.0 for share in others)


def test_nothing_changes_for_who_is_looked_at(tiny: Path) -> None:
    scenario = load_scenario(str(tiny), {})
    _, alone = played(LinearScore(), scenario, 80.0, SEEDS)
    _, watched = played(LinearScore(), scenario, 80.0, SEEDS, Onlooker(SEEDS))
    assert alone == watched


def test_ranks_and_copies_are_counted(tiny: Path) -> None:
    held: list[float] = []
    sooner: list[int] = []

    def count(view: View, chosen: NDArray[np.int64], going: NDArray[np.bool_]) -> None:
        for e in np.flatnonzero(going):
            rows, prompt = view.instances[e], view.requests[e]["prompt_tokens"]
            held.append(sum(row["hit_tokens"] >= prompt / 2 for row in rows))
            ttft = [row["backlog_seconds"] + row["prefill_seconds"] for row in rows]
            sooner.append(sum(other < ttft[chosen[e]] for other in ttft))

    played(make_router("round_robin"), load_scenario(str(tiny), {}), 80.0, SEEDS, count)
    seen = look_at("round_robin", tiny)
    assert seen.shares["copies"] == pytest.approx(np.mean(held))
    assert 0.0 < seen.shares["copies"] < 2.0
    assert seen.ranks.tolist() == sooner
    assert {0, 1} == set(sooner)


def test_members_of_a_batch_are_told_apart(tiny: Path) -> None:
    onlooker = Onlooker([*SEEDS, *SEEDS], 1)
    scenario = load_scenario(str(tiny), {})
    played(make_router("min_ttft"), scenario, 80.0, [*SEEDS, *SEEDS], onlooker)
    halves = [onlooker.behaviour(half) for half in (slice(0, 3), slice(3, 6))]
    assert halves[0].shares == halves[1].shares == look_at("min_ttft", tiny).shares


def test_routers_side_by_side_can_be_looked_at(tiny: Path) -> None:
    seen = look_at("loadaware", tiny, scenario="replicas-8")
    assert seen.shares["differs_from_loadaware"] == 0.0
