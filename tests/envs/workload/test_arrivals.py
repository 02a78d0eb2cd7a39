"""Arrival processes: rate, burstiness, and independence of time's unit."""

import numpy as np
import pytest
from scipy import stats

from prefixgym.envs.clock import TICKS_PER_SECOND, to_seconds
from prefixgym.envs.workload.arrivals import Arrivals, Gamma, Poisson, Weibull

COUNT = 200_000
RENEWAL = [Poisson(4.0), Gamma(4.0, 2.0), Weibull(4.0, 2.0)]


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        (Poisson(20.0), 1.0),
        (Gamma(20.0, 3.0), 3.0),
        (Gamma(20.0, 0.25), 0.25),
        (Weibull(20.0, 2.0), 2.0),
        (Weibull(20.0, 0.25), 0.25),
    ],
)
def test_rate_and_burstiness(arrivals: Arrivals, cv: float) -> None:
    ticks = arrivals.ticks(np.random.default_rng(0), COUNT)
    gaps = to_seconds(np.diff(ticks, prepend=0))

    assert ticks.dtype == np.int64
    assert gaps.min() >= 0
    # Standard error of the mean gap is cv / √200,000, so 4 of them are 0.009 cv.
    assert gaps.mean() * 20.0 == pytest.approx(1.0, abs=0.009 * cv)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_weibull_gaps_have_weibulls_distribution() -> None:
    # Shape ½ has P(gap > x) = exp(−√(2 x rate)) and a cv of √5.
    ticks = Weibull(10.0, 5**0.5).ticks(np.random.default_rng(0), 20_000)
    gaps = to_seconds(np.diff(ticks, prepend=0))
    assert stats.kstest(gaps, lambda x: 1 - np.exp(-np.sqrt(20.0 * x))).pvalue > 0.01


@pytest.mark.parametrize("arrivals", RENEWAL)
def test_another_rate_only_stretches_time(arrivals: Arrivals) -> None:
    slow = arrivals.ticks(np.random.default_rng(3), 1000)
    fast = arrivals.at_rate(8.0).ticks(np.random.default_rng(3), 1000)
    assert arrivals.at_rate(8.0).rate == 8.0
    np.testing.assert_allclose(fast * 2, slow, atol=2000)  # a tick of rounding for each gap


@pytest.mark.parametrize("arrivals", RENEWAL)
def test_drawing_on_continues_the_process(arrivals: Arrivals) -> None:
    whole = arrivals.ticks(np.random.default_rng(3), 100)
    generator = np.random.default_rng(3)
    head = arrivals.ticks(generator, 40)
    tail = arrivals.ticks(generator, 60, int(head[-1]))
    np.testing.assert_array_equal(np.concatenate([head, tail]), whole)


def test_bad_parameters_are_refused_by_key() -> None:
    for rate in (0.0, -1.0, float("inf"), float("nan"), "3", True):
        with pytest.raises(ValueError, match=r"^arrivals\.rate: found"):
            Poisson(rate)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"^arrivals\.rate: found"):
            Gamma(rate, 1.0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"^arrivals\.rate: found"):
            Weibull(rate, 1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^arrivals\.cv: found 0"):
        Gamma(1.0, 0.0)
    with pytest.raises(ValueError, match=r"^arrivals\.cv: found 0.02, must be between 0.025 and"):
        Weibull(1.0, 0.02)


def test_arrivals_beyond_the_clock_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^arrivals\.rate: found 1e-07, too low"):
        Poisson(1e-7).ticks(np.random.default_rng(0), 100)
    ticks = Poisson(1e12).ticks(np.random.default_rng(0), 100)
    assert ticks[-1] < TICKS_PER_SECOND
