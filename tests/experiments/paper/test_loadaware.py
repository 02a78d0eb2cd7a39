"""The published effect of loadaware routing."""

import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from prefixgym.envs.episode_state import OUTCOME
from prefixgym.experiments.paper.loadaware import RESULT
from prefixgym.experiments.paper.loadaware_replays import (
    HARDWARE,
    MEASURED_PACE,
    PUBLISHED,
    _measure,
    paired_change,
    reproduce,
    run_arm,
    summarize,
)
from prefixgym.experiments.paper.loadaware_sensitivity import sensitivity
from prefixgym.experiments.paper.loadaware_testbed import Deployment
from prefixgym.experiments.paper.published import Effort


@pytest.fixture(scope="module")
def replays() -> pl.DataFrame:
    return reproduce(MEASURED_PACE, [arm for arm in PUBLISHED if arm != "loadaware 0"])


@pytest.fixture(scope="module")
def arms(replays: pl.DataFrame) -> dict[str, dict[str, float]]:
    return {str(row["arm"]): row for row in summarize(replays).to_dicts()}


def test_a_moderate_beta_balances_and_costs_hardly_any_hits(
    arms: dict[str, dict[str, float]],
) -> None:
    found, kvaware = arms["loadaware 0.5"], arms["kvaware"]
    # Published: -48.1 % (95 % interval 37.7 to 56.3), 18 of 20 replays, 0.5 points of hits.
    assert found["high"] < -0.3
    assert found["change"] == pytest.approx(found["published_change"], abs=0.05)
    assert found["fewer"] >= 18
    assert 0 <= kvaware["hit_rate"] - found["hit_rate"] < 0.01


def test_without_enough_beta_loadaware_is_kvaware(replays: pl.DataFrame) -> None:
    # Published: β = 0 and 0.25 are no different. A hit's share, 0.973, must be outweighed by 2β.
    first, second = (
        replays.filter(pl.col("arm") == arm).drop("arm") for arm in ("kvaware", "loadaware 0.25")
    )
    assert first.equals(second)


def test_more_beta_buys_balance_with_hits(arms: dict[str, dict[str, float]]) -> None:
    betas = [arms[f"loadaware {beta}"] for beta in ("0.25", "0.5", "1", "2")]
    for less, more in itertools.pairwise(betas):
        assert more["imbalance"] < less["imbalance"]
        assert more["hit_rate"] < less["hit_rate"]
    # Round robin is as balanced, but loses locality.
    assert arms["round robin"]["imbalance"] < 1.5
    assert arms["round robin"]["hit_rate"] < min(arm["hit_rate"] for arm in betas) - 0.1


def test_hit_rates_are_the_published_ones(arms: dict[str, dict[str, float]]) -> None:
    for name, arm in arms.items():
        tolerance = 0.05 if name == "round robin" else 0.015
        assert arm["hit_rate"] == pytest.approx(arm["published_hit_rate"], abs=tolerance), name


def test_the_pace_was_fitted_to_the_published_one(arms: dict[str, dict[str, float]]) -> None:
    assert arms["kvaware"]["e2e_mean"] == pytest.approx(4.05, rel=0.03)
    assert arms["kvaware"]["throughput"] == pytest.approx(14.3, rel=0.01)


def test_the_effect_does_not_hang_on_the_pace_but_on_the_placement() -> None:
    kinds = {"fast": HARDWARE, "even": Deployment(slowdown=2.4, crowded=0)}
    rows = {row["variant"]: row for row in sensitivity(kinds).to_dicts()}
    assert rows["fast"]["in_flight"] < 25  # a third of the published load
    assert rows["fast"]["high"] < -0.2
    assert rows["even"]["kvaware"] < 1.6
    assert rows["even"]["low"] > -0.25


def test_changes_are_medians_of_paired_replays(replays: pl.DataFrame) -> None:
    assert paired_change(replays, "kvaware") == (0.0, 0.0, 0.0)
    ours, reference = (
        replays.filter(pl.col("arm") == arm).sort("replay")["ttft_p95"].to_numpy()
        for arm in ("loadaware 1", "kvaware")
    )
    found = paired_change(replays.sample(fraction=1, shuffle=True), "loadaware 1", "ttft_p95")
    assert found.value == pytest.approx(np.median(ours / reference - 1))
    assert found.low <= found.value <= found.high


def test_a_replay_is_measured_while_it_sends() -> None:
    # Sent from 0 to 12 s, so looked at after 2.5 and 7.5 s.
    requests = np.zeros(4, OUTCOME)
    requests["instance"] = [0, 0, 0, 1]
    requests["arrival"] = [0.0, 2.0, 7.0, 0.0]
    requests["end"] = [2.5, 8.0, 16.0, 11.0]
    requests["ttft"] = [0.1, 0.2, 0.3, 0.4]
    requests["prompt_tokens"] = 100
    requests["hit_tokens"] = [0, 50, 100, 50]
    found = _measure(requests, 0.0, 12.0)
    assert found["imbalance"] == 1.5  # (1 + 2) / 2 against (1 + 1) / 2
    assert found["in_flight"] == 2.5
    assert found["hit_rate"] == 0.5
    assert found["throughput"] == 0.25
    assert found["ttft_p50"] == pytest.approx(0.25)
    assert found["e2e_mean"] == pytest.approx((2.5 + 6 + 9 + 11) / 4)
    assert found["busiest_share"] == 0.75


def test_unknown_arms_are_refused() -> None:
    with pytest.raises(ValueError, match="arm: found 'random', allowed: kvaware, loadaware 0,"):
        run_arm("random", HARDWARE)


def test_the_sweep_over_beta_is_within_its_tolerances(tmp_path: Path) -> None:
    outcome = RESULT.run(tmp_path, Effort())
    verdicts = {figure.what: figure.verdict for figure in outcome.figures}
    for beta in ("0", "0.25", "0.5", "1", "2"):
        assert verdicts[f"imbalance against kvaware, β = {beta}"] == "met"
        assert verdicts[f"prefix hits, β = {beta}"] == "met"
    assert verdicts["TTFT p95 under round robin"] == "known miss"
    assert "missed" not in verdicts.values()
    outcome.draw(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.width > 800
