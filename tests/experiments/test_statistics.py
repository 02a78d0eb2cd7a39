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
    paired_difference,
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
