"""What a cell of a study is measured by, against what can be counted by hand."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.experiments.evaluate import Cell, evaluate
from prefixgym.experiments.paper.measure import measure


def _measured(tiny: Path, router: str = "round_robin", **overrides: str) -> pl.DataFrame:
    settings = {key.replace("__", "."): value for key, value in overrides.items()}
    return measure(Cell(load_scenario(str(tiny), settings), 20, router, (20, 21)))


def test_the_metrics_are_those_of_the_leaderboard(tiny: Path) -> None:
    cell = Cell(load_scenario(str(tiny)), 20, "min_ttft", (20, 21))
    found, expected = measure(cell), evaluate(cell)
    for name in ("attainment", "ttft_p99", "hit_rate", "imbalance"):
        assert found[name].to_list() == expected[name].to_list()


def test_each_instance_sends_each_router_a_snapshot_an_interval(tiny: Path) -> None:
    found = _measured(
        tiny,
        knowledge__index__source='"snapshots"',
        knowledge__index__snapshots__interval="0.05",
        knowledge__replicas__count="3",
    )
    for row in found.to_dicts():
        assert row["messages"] == pytest.approx(2 * 3 / 0.05, rel=0.02)
        assert row["bytes"] > 32 * row["messages"]  # headers alone


def test_the_truth_needs_no_messages(tiny: Path) -> None:
    found = _measured(tiny)
    assert found["messages"].to_list() == [0, 0]
    assert found["entries"].to_list() == [0, 0]


def test_load_varies_as_much_as_it_is_uneven(tiny: Path) -> None:
    """Two instances with loads a and b: the deviation is |a − b| / 2, the mean (a + b) / 2."""
    even = _measured(tiny)["load_cov"].to_numpy()
    # One instance is gone from the start: loads a and 0.
    gone = _measured(tiny, faults='[{ kind = "restart", at = 0.0, instances = [0] }]')
    np.testing.assert_allclose(gone["load_cov"].to_numpy(), 1.0)
    assert (even < 0.2).all()
