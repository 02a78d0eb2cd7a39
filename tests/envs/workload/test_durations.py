"""Durations: moments, limits, the clock's range, and what is refused."""

import numpy as np
import pytest

from prefixgym.envs.clock import NEVER
from prefixgym.envs.workload.distributions import Empirical, LogNormal, Mixture
from prefixgym.envs.workload.durations import Duration, duration, sample_ticks


@pytest.mark.parametrize(
    ("time", "quantiles"),
    [
        (2.5, (2.5, 2.5, 2.5)),
        ((1.0, 3.0), (1.2, 2.0, 2.8)),
        (LogNormal(10.0, 1.0), (10 * np.exp(-1.2816), 10.0, 10 * np.exp(1.2816))),
        (LogNormal(10.0, 1.0, high=20, low=5), (5.0, 10.0, 20.0)),
        (Empirical([0.0, 0.5, 4.0], [0, 0.5, 1]), (0.1, 0.5, 3.3)),
        # A tool in 0 … 4 s seven times out of ten, else a person after 40 s.
        (Mixture([7, 3], [(0.0, 4.0), 40.0]), (4 / 7, 20 / 7, 40.0)),
    ],
)
def test_quantiles(time: Duration, quantiles: tuple[float, float, float]) -> None:
    values = duration("think_time", time).sample(np.random.default_rng(0), 100_000)
    assert values.dtype == np.float64
    np.testing.assert_allclose(np.quantile(values, (0.1, 0.5, 0.9)), quantiles, rtol=0.03)


def test_ticks_stay_within_the_clock() -> None:
    forever = duration("think_time", LogNormal(1e9, 3.0))
    ticks = sample_ticks(forever, np.random.default_rng(0), 1000)
    assert ticks.dtype == np.int64
    assert ticks.max() == NEVER
    assert ticks.min() > 0


@pytest.mark.parametrize(
    ("time", "found"),
    [
        (-1.0, ": found -1.0, must be finite and at least 0"),
        (float("inf"), ": found inf, must be finite"),
        ((3.0, 2.0), ": found 2.0, must be finite and at least 3"),
        ("12", ": found '12', must be a number"),
        (Mixture([1, 1], [1.0, (-1.0, 4)]), ".of[1]: found -1.0, must be finite and at least 0"),
    ],
)
def test_bad_durations_are_refused_by_key(time: Duration, found: str) -> None:
    with pytest.raises(ValueError, match=r"^think_time") as error:
        duration("think_time", time)
    assert str(error.value).startswith(f"think_time{found}")
