"""The objective is what the outcomes say, whatever the batch and the number of threads."""

from pathlib import Path

import numpy as np
import pytest

from prefixgym.baselines.router import make_router
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.slo import Slo
from prefixgym.experiments.evaluate import played
from prefixgym.experiments.goodput_objective import GoodputObjective

SEEDS = [3, 4, 5]


def test_scores_are_those_of_the_outcomes(tiny: Path) -> None:
    scenario = load_scenario(str(tiny), {}).with_num_requests(80)
    router = make_router("prefix_hash")
    scores = GoodputObjective(scenario, 400.0, len(SEEDS))(router, SEEDS)
    simulation, _ = played(router, scenario, 400.0, SEEDS)
    slo: Slo = scenario.build(400.0).slos[0]
    assert slo.ttft_per_token == 0
    for e, score in enumerate(scores):
        outcomes = simulation.outcomes(e)
        late = np.maximum(outcomes["ttft"] / slo.ttft, outcomes["tpot"] / slo.tpot) - 1
        late = np.where(outcomes["good"], 0.0, np.clip(late, 0.0, 8.0))
        assert score == pytest.approx((outcomes["good"] - 0.25 * late).mean(), abs=1e-5)
    assert len(set(scores.tolist())) == len(SEEDS)
    assert (scores < 1).all()


def test_neither_batch_nor_threads_nor_earlier_calls_matter(tiny: Path) -> None:
    scenario = load_scenario(str(tiny), {}).with_num_requests(60)
    router = make_router("loadaware")
    batch = GoodputObjective(scenario, 400.0, len(SEEDS), threads=2)
    together = batch(router, SEEDS)
    alone = GoodputObjective(scenario, 400.0, 1)
    assert [alone(router, [seed])[0] for seed in SEEDS] == together.tolist()
    assert batch(router, SEEDS).tolist() == together.tolist()
    batch.close()
