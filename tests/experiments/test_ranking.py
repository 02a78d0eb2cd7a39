import math

import numpy as np
import polars as pl
import pytest

from prefixgym.experiments.ranking import knee, ladder_capacity, rank, summarise


def episodes(attainment: dict[str, float], noise: float = 0.01, seeds: int = 8) -> pl.DataFrame:
    """Two scenarios, two rates; all routers share what the seeds bring."""
    generator = np.random.default_rng(0)
    rows = []
    for scenario in ("a", "b"):
        for rate in (1.0, 2.0):
            for seed in range(seeds):
                shared = generator.normal(scale=noise)
                rows += [
                    {
                        "scenario": scenario,
                        "rate": rate,
                        "router": router,
                        "seed": seed,
                        "attainment": level + shared,
                    }
                    for router, level in attainment.items()
                ]
    return pl.DataFrame(rows)


def test_clear_differences_give_ranks() -> None:
    found = rank(episodes({"round_robin": 0.5, "good": 0.8, "bad": 0.2}))
    assert [s.router for s in found] == ["good", "round_robin", "bad"]
    assert [(s.best_rank, s.worst_rank) for s in found] == [(1, 1), (2, 2), (3, 3)]


def test_no_rank_is_claimed_where_intervals_overlap() -> None:
    found = rank(episodes({"round_robin": 0.5, "x": 0.80, "y": 0.801}, noise=0.05))
    assert [(s.best_rank, s.worst_rank) for s in found] == [(1, 2), (1, 2), (3, 3)]
    # The difference is paired: it shows what overlapping intervals hide.
    assert found[0].gain is not None
    assert found[0].gain.low == pytest.approx(0.301)


def test_one_seed_gives_no_ranks() -> None:
    found = rank(episodes({"round_robin": 0.5, "good": 0.8}, seeds=1))
    assert [(s.best_rank, s.worst_rank) for s in found] == [(1, 2), (1, 2)]


def test_routers_that_lack_cells_are_not_ranked() -> None:
    complete = episodes({"round_robin": 0.5, "good": 0.8})
    lacking = complete.filter((pl.col("router") != "good") | (pl.col("scenario") == "a"))
    assert [s.router for s in rank(lacking)] == ["round_robin"]


def test_without_the_reference_there_is_no_gain() -> None:
    assert rank(episodes({"x": 0.5}))[0].gain is None


def test_summary_has_an_interval_for_each_metric() -> None:
    row = summarise(episodes({"x": 0.5})).row(0, named=True)
    assert row["attainment_low"] < row["attainment"] < row["attainment_high"]
    assert row["seeds"] == 8


def test_summary_survives_infinite_imbalance() -> None:
    table = episodes({"x": 0.5}).with_columns(pl.lit(math.inf).alias("imbalance"))
    assert summarise(table)["imbalance"].to_list() == [math.inf] * 4


def ladder(*attainment: float) -> pl.DataFrame:
    return pl.DataFrame({"rate": [10.0, 20.0, 30.0][: len(attainment)], "attainment": attainment})


def test_knee_is_the_last_rate_that_someone_sustains() -> None:
    assert knee(ladder(0.99, 0.91, 0.5)) == 20.0
    assert knee(ladder(0.8, 0.7, 0.5)) == 10.0


def test_capacity_lies_between_the_rungs() -> None:
    rates = [10.0, 20.0, 30.0]
    assert ladder_capacity(rates, [1.0, 0.95, 0.85]) == pytest.approx(25.0)
    assert math.isnan(ladder_capacity(rates, [0.8, 0.7, 0.6]))
    assert ladder_capacity(rates, [1.0, 1.0, 1.0]) == math.inf
