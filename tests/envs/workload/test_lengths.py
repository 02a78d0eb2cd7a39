"""Lengths: what is sampled follows the stated probabilities, and stays within the limits."""

import numpy as np
import pytest

from prefixgym.envs.workload.distributions import Empirical, Geometric, LogNormal, Mixture
from prefixgym.envs.workload.lengths import Length, distribution

LENGTHS: list[Length] = [
    7,
    (2, 5),
    LogNormal(median=6.0, sigma=0.8, high=20),
    LogNormal(median=6.0, sigma=0.8, low=4, high=9),
    Geometric(mean=3.0, high=12),
    Geometric(mean=1.0, high=5),
    Empirical([2, 4, 4, 9]),
    Empirical([1, 3, 20], levels=[0, 0.9, 1]),
    Mixture([3, 1], [4, 9]),
    Mixture([1, 1, 2], [(8, 12), LogNormal(3.0, 1.0, high=6), Mixture([1, 1], [5, (1, 2)])]),
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
    def sample(length: Length) -> "np.typing.NDArray[np.int64]":
        return distribution("length", length).sample(np.random.default_rng(0), 400_000)

    long = sample(LogNormal(median=100.0, sigma=1.0, high=10**6))
    assert np.median(long) == pytest.approx(100, rel=0.02)
    assert long.mean() == pytest.approx(100 * np.exp(0.5), rel=0.02)
    assert sample(Geometric(mean=4.0, high=100)).mean() == pytest.approx(4, 0.01)
    levels = [0, 0.1, 0.5, 0.9, 1]
    quantiles = [1, 35, 215, 855, 4000]
    measured = sample(Empirical(quantiles, levels))
    np.testing.assert_allclose(np.quantile(measured, levels[1:4]), quantiles[1:4], rtol=0.02)


@pytest.mark.parametrize(
    ("length", "found"),
    [
        (0, ": found 0, must be between 1"),
        ((3, 2), ": found 2, must be between 3"),
        ((0, 2), ": found 0, must be between 1"),
        (True, ": found True, must be a whole number"),
        (1.5, ": found 1.5, must be a whole number"),
        ("12", ": found '12', must be a whole number"),
        ((1, 2, 3), ": found (1, 2, 3), must be a whole number"),
        (2**30, ": found 1073741824, must be between 1 and 1073741823"),
        (LogNormal(2.0, 1.0, high=5, low=0), ".low: found 0, must be between 1"),
        (LogNormal(2.0, 1.0), ".high: missing"),
        (LogNormal(2.0, 1.0, high=4.5), ".high: found 4.5, must be a whole number"),
        (Geometric(2.0, high=2**30), ".high: found 1073741824, must be between 1"),
        (Empirical([1, 2.5, 3]), ".quantiles: found 2.5, must be a whole number"),
        (Empirical([0, 3]), ".quantiles: found 0, must be between 1"),
        (Mixture([1, 1], [2, (0, 4)]), ".of[1]: found 0, must be between 1"),
        (Mixture([1], [LogNormal(2.0, 1.0)]), ".of[0].high: missing"),
    ],
)
def test_bad_lengths_are_refused_by_key(length: Length, found: str) -> None:
    with pytest.raises(ValueError, match=r"^question_tokens") as error:
        distribution("question_tokens", length)
    assert str(error.value).startswith(f"question_tokens{found}")


def test_bad_parameters_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"median: found 0\.0, must be finite and above 0"):
        LogNormal(0.0, 1.0, high=5)
    with pytest.raises(ValueError, match="sigma: found nan"):
        LogNormal(1.0, float("nan"), high=5)
    with pytest.raises(ValueError, match="high: found 1, must be finite and at least 2"):
        LogNormal(1.0, 1.0, high=1, low=2)
    with pytest.raises(ValueError, match=r"mean: found 0\.5, must be finite and at least 1"):
        Geometric(0.5, high=3)
    with pytest.raises(ValueError, match=r"quantiles: found 2 after 3, must ascend"):
        Empirical([3, 2])
    with pytest.raises(ValueError, match=r"quantiles: found \(3,\), must be a list of at least"):
        Empirical((3,))
    with pytest.raises(ValueError, match=r"levels: found 0\.5 after 0\.5, must ascend"):
        Empirical([1, 2, 3, 4], [0, 0.5, 0.5, 1])
    with pytest.raises(ValueError, match=r"levels: found 0 … 0\.9, must run from 0 to 1"):
        Empirical([1, 2], [0, 0.9])
    with pytest.raises(ValueError, match="levels: found 3 numbers, must be as many as quantiles"):
        Empirical([1, 2], [0, 0.5, 1])
    with pytest.raises(ValueError, match=r"weights\[1\]: found 0, must be finite and above 0"):
        Mixture([1, 0], [1, 2])
    with pytest.raises(ValueError, match="weights: found 1 numbers, must be as many as of, 2"):
        Mixture([1], [1, 2])
    with pytest.raises(ValueError, match=r"of: found 3, must be a list"):
        Mixture([1], 3)  # type: ignore[arg-type]
