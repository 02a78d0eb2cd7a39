import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from prefixgym.experiments.statistics import (
    Estimate,
    estimate,
    interquartile_mean,
    mean_estimate,
    paired_difference,
    probability_of_improvement,
    ratio_of_means,
)


@given(arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e3, 1e3)))
def test_interquartile_mean_is_scipys_trimmed_mean(values: np.ndarray) -> None:
    assert interquartile_mean(values) == pytest.approx(scipy.stats.trim_mean(values, 0.25))


def test_interval_of_one_stratum_agrees_with_scipys_bootstrap() -> None:
    values = np.random.default_rng(1).gamma(2.0, size=20)
    ours = estimate([values])
    theirs = scipy.stats.bootstrap(
        (values,),
        lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis=axis),
        n_resamples=20_000,
        method="percentile",
        rng=2,
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.08 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.08 * width)


def test_strata_are_resampled_apart() -> None:
    # Were seeds drawn across scenarios, the mean of this mixture would vary.
    constant = [np.zeros((5, 2)), np.ones((5, 2))]
    found = estimate(constant)
    assert found.low == found.value == found.high == 0.5


def test_pairing_removes_what_seeds_share() -> None:
    generator = np.random.default_rng(3)
    shared = generator.normal(size=(12, 3))
    better = shared + 0.05 + generator.normal(scale=0.01, size=shared.shape)
    difference = paired_difference([better], [shared])
    assert difference.low > 0
    assert estimate([better]).overlaps(estimate([shared]))


def test_pairing_refuses_different_seeds() -> None:
    with pytest.raises(ValueError, match="same seeds"):
        paired_difference([np.zeros(4)], [np.zeros(5)])


def test_one_seed_gives_no_interval_and_no_rank() -> None:
    single = estimate([np.array([[0.4, 0.6]])])
    assert single.value == pytest.approx(0.5)
    assert np.isnan(single.low)
    assert single.overlaps(Estimate(0.9, 0.89, 0.91))


def _violations(seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Of two routers on the same seeds: hard seeds are hard for both."""
    generator = np.random.default_rng(5)
    shared = generator.gamma(2.0, size=seeds)
    return 0.6 * shared + 0.1 * generator.gamma(2.0, size=seeds), shared


def test_intervals_of_means_and_ratios_agree_with_scipys_bootstrap() -> None:
    ours, other = _violations(20)
    cases = [
        (mean_estimate(ours), (ours,), lambda x, axis: x.mean(axis)),
        (
            ratio_of_means(ours, other),
            (ours, other),
            lambda x, y, axis: x.mean(axis) / y.mean(axis),
        ),
        (
            probability_of_improvement([ours], [other]),
            (ours, other),
            lambda x, y, axis: (x > y).mean(axis),
        ),
    ]
    for found, samples, statistic in cases:
        theirs = scipy.stats.bootstrap(
            samples, statistic, paired=True, n_resamples=20_000, method="percentile", rng=2
        ).confidence_interval
        width = theirs.high - theirs.low
        assert found.low == pytest.approx(theirs.low, abs=0.08 * width)
        assert found.high == pytest.approx(theirs.high, abs=0.08 * width)


def test_a_ratio_is_paired() -> None:
    ours, other = _violations(12)
    paired = ratio_of_means(ours, other)
    apart = ratio_of_means(ours, other[::-1])
    assert paired.value == pytest.approx(apart.value) == ours.mean() / other.mean()
    assert paired.high - paired.low < 0.5 * (apart.high - apart.low)


def test_a_ratio_to_nothing() -> None:
    assert ratio_of_means(np.zeros(4), np.zeros(4)) == Estimate(1.0, 1.0, 1.0)
    assert ratio_of_means(np.ones(4), np.zeros(4)).value == np.inf


def test_probability_of_improvement_counts_seeds_and_halves_ties() -> None:
    x, y = np.array([0.9, 0.8, 0.7, 0.6]), np.array([0.8, 0.8, 0.8, 0.1])
    # Two wins, a tie and a loss; in the other stratum all are wins.
    assert probability_of_improvement([x], [y]).value == pytest.approx(2.5 / 4)
    both = probability_of_improvement([x, y + 1], [y, y])
    assert both.value == pytest.approx((2.5 / 4 + 1) / 2)
    # Strata are drawn apart, and the second says nothing new: its half of the mean is fixed.
    alone = probability_of_improvement([x], [y])
    assert both.low == pytest.approx(0.5 + 0.5 * alone.low)
    assert both.high == pytest.approx(0.5 + 0.5 * alone.high)
    assert probability_of_improvement([x, y], [y, x]).value == pytest.approx(0.5)
    # Loads of a seed are drawn together: as many seeds as there are, not as many loads.
    loads = probability_of_improvement([np.stack([x] * 9, 1)], [np.stack([y] * 9, 1)])
    assert loads == pytest.approx(alone)


def test_one_seed_gives_no_interval_of_a_ratio() -> None:
    for found in (
        mean_estimate([0.5]),
        ratio_of_means([0.5], [0.25]),
        probability_of_improvement([[0.5]], [[0.25]]),
    ):
        assert np.isnan(found.low)
        assert np.isnan(found.high)


def test_ratios_and_improvement_refuse_different_seeds() -> None:
    with pytest.raises(ValueError, match="same seeds"):
        ratio_of_means(np.zeros(4), np.zeros(5))
    with pytest.raises(ValueError, match="same seeds"):
        probability_of_improvement([np.zeros(4)], [np.zeros(5)])
