"""Lengths: what is sampled follows the stated probabilities, and stays within the limits."""

import numpy as np
import pytest

from prefixgym.envs.workload.lengths import (
    Geometric,
    Length,
    LogNormal,
    Uniform,
    distribution,
)

LENGTHS: list[Length] = [
    7,
    (2, 5),
    LogNormal(median=6.0, sigma=0.8, high=20),
    LogNormal(median=6.0, sigma=0.8, low=4, high=9),
    Geometric(mean=3.0, high=12),
    Geometric(mean=1.0, high=5),
]


@pytest.mark.parametrize("length", LENGTHS)
def test_samples_follow_the_probabilities(length: Length) -> None:
    size = 200_000
    found = distribution("length", length)
    values = found.sample(np.random.default_rng(0), size)
    probabilities = found.probabilities()

    assert values.dtype == np.int64
    assert len(probabilities) == found.high - found.low + 1
    assert probabilities.sum() == pytest.approx(1.0)
    shares = np.bincount(values - found.low, minlength=len(probabilities)) / size
    # Standard error of a share is at most 0.5 / √200,000 = 0.0011.
    np.testing.assert_allclose(shares, probabilities, atol=0.006)


def test_moments() -> None:
    generator = np.random.default_rng(0)
    long = LogNormal(median=100.0, sigma=1.0, high=10**6).sample(generator, 400_000)
    assert np.median(long) == pytest.approx(100, rel=0.02)
    assert long.mean() == pytest.approx(100 * np.exp(0.5), rel=0.02)
    assert Geometric(mean=4.0, high=100).sample(generator, 400_000).mean() == pytest.approx(4, 0.01)


@pytest.mark.parametrize(
    ("length", "found"),
    [
        (0, "found 0, must be between 1"),
        ((3, 2), "found 2, must be between 3"),
        ((0, 2), "found 0, must be between 1"),
        (True, "found True, must be a whole number"),
        (1.5, "found 1.5, must be a whole number"),
        ("12", "found '12', must be a whole number"),
        ((1, 2, 3), "must be a whole number"),
        (2**30, "must be between 1 and 1073741823"),
        (LogNormal(2.0, 1.0, high=5, low=0), "must be at least 1"),
        (Uniform(3, 4), "must be a whole number"),
    ],
)
def test_bad_lengths_are_refused_by_key(length: Length, found: str) -> None:
    with pytest.raises(ValueError, match=r"^question_tokens: ") as error:
        distribution("question_tokens", length)
    assert found in str(error.value)


def test_bad_parameters_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"median: found 0\.0, must be finite and above 0"):
        LogNormal(0.0, 1.0, high=5)
    with pytest.raises(ValueError, match="sigma: found nan"):
        LogNormal(1.0, float("nan"), high=5)
    with pytest.raises(ValueError, match="high: found 1, must be between 2"):
        LogNormal(1.0, 1.0, high=1, low=2)
    with pytest.raises(ValueError, match=r"mean: found 0\.5, must be finite and at least 1"):
        Geometric(0.5, high=3)
