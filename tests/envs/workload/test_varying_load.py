"""Load that changes with time: the rate at each hour, its mean, and the exact change of time."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixgym.envs.clock import TICKS_PER_SECOND, to_seconds
from prefixgym.envs.workload.arrivals import Gamma, Poisson, Renewal, Weibull
from prefixgym.envs.workload.bursts import burst_starts
from prefixgym.envs.workload.varying_load import Bursts, Diurnal, VaryingLoad

SPIKES = ((10.0, 5.0, 4.0), (15.0, 20.0, 0.0), (80.0, 20.0, 0.5))
DAYS = st.builds(
    Diurnal,
    period=st.floats(100, 1000),
    amplitude=st.sampled_from([0.0, 0.7, 1.0]),
    spikes=st.sampled_from([(), SPIKES]),
    start=st.one_of(st.none(), st.floats(0, 2000)),
)
BURSTS = st.builds(
    Bursts,
    every=st.floats(20, 500),
    duration=st.floats(1, 19),
    factor=st.sampled_from([0.0, 0.5, 8.0]),
)
LOADS = st.builds(
    VaryingLoad,
    process=st.sampled_from([Poisson(3.0), Gamma(3.0, 2.0), Weibull(3.0, 0.5)]),
    diurnal=st.one_of(st.none(), DAYS),
    bursts=st.one_of(st.none(), BURSTS),
)


@settings(max_examples=50)
@given(load=LOADS, seed=st.integers(0, 2**63), cut=st.integers(1, 299))
def test_drawing_on_continues_the_process(load: VaryingLoad, seed: int, cut: int) -> None:
    whole = load.ticks(np.random.default_rng(seed), 300)
    assert np.all(np.diff(whole, prepend=0) >= 0)
    generator = np.random.default_rng(seed)
    head = load.ticks(generator, cut)
    tail = load.ticks(generator, 300 - cut, int(head[-1]))
    # Each start from a tick costs its rounding, magnified where the rate is low (amplitude 1).
    error = np.abs(np.concatenate([head, tail]) - whole)
    assert np.median(error) <= 1000
    assert error.max() < 1e-3 * TICKS_PER_SECOND


def _factor(day: Diurnal, time: np.ndarray) -> np.ndarray:
    """The day's factor before it is scaled to a mean of 1."""
    hour = time % day.period
    factor = 1.0 - day.amplitude * np.cos(2 * math.pi * hour / day.period)
    for start, duration, spike in day.spikes:
        factor = np.where((hour >= start) & (hour < start + duration), spike * factor, factor)
    return factor


@pytest.mark.parametrize("process", [Poisson(5.0), Gamma(5.0, 0.2)])
@pytest.mark.parametrize("amplitude", [0.0, 0.6, 1.0])
def test_the_change_of_time_is_exact(process: Renewal, amplitude: float) -> None:
    day = Diurnal(120.0, amplitude, SPIKES, start=7.0)
    arrivals = VaryingLoad(process, day).ticks(np.random.default_rng(4), 1000)
    times = to_seconds(arrivals)
    unit = np.cumsum(process.unit_gaps(np.random.default_rng(4), 1000)) / 5.0
    # By midpoints of 1 ms: M(t) = ∫ factor / mean factor.
    grid = 7.0 + (np.arange(int(times[-1] * 1000) + 1) + 0.5) / 1000
    mean = _factor(day, (np.arange(120_000) + 0.5) / 1000).mean()
    passed = np.concatenate([[0.0], np.cumsum(_factor(day, grid)) / 1000 / mean])
    reached = np.interp(times, np.arange(len(passed)) / 1000, passed)
    np.testing.assert_allclose(reached, unit, atol=0.01)


def test_the_mean_over_a_period_is_the_rate_and_each_hour_has_its_share() -> None:
    day = Diurnal(100.0, 0.8, ((60.0, 10.0, 3.0),))
    ticks = VaryingLoad(Poisson(50.0), day).ticks(np.random.default_rng(0), 500_000)
    assert 500_000 / to_seconds(ticks[-1]) == pytest.approx(50.0, rel=0.01)
    counts = []
    for seed in range(300):
        first = VaryingLoad(Poisson(5.0), day).ticks(np.random.default_rng(seed), 1000)
        counts.append(np.searchsorted(first, 20 * TICKS_PER_SECOND))
    # Where the day starts is drawn, so that the first 20 s have the mean rate over seeds.
    assert np.std(counts) > 3 * math.sqrt(100)
    assert abs(np.mean(counts) - 100.0) < 4 * np.std(counts) / math.sqrt(300)

    times = to_seconds(
        VaryingLoad(Poisson(50.0), Diurnal(100.0, 0.8, day.spikes, start=0.0)).ticks(
            np.random.default_rng(1), 500_000
        )
    )
    shares = np.bincount((times[times < 9900] % 100 // 10).astype(int)) / np.sum(times < 9900)
    grid = _factor(day, np.arange(100_000) / 1000 + 0.0005).reshape(10, -1).sum(axis=1)
    np.testing.assert_allclose(shares, grid / grid.sum(), atol=0.003)


def test_bursts_last_their_time_and_leave_the_mean_rate() -> None:
    starts = burst_starts(np.random.default_rng(0), 50.0, 10.0, 100_000.0)
    assert np.diff(starts).min() >= 10.0
    assert starts[-2] <= 100_000.0 < starts[-1]
    assert 100_000.0 / len(starts) == pytest.approx(50.0, rel=0.1)
    longer = burst_starts(np.random.default_rng(0), 50.0, 10.0, 200_000.0)
    np.testing.assert_array_equal(longer[: len(starts)], starts)
    # A fifth of the time is burst, at 0 as well.
    under_way = [burst_starts(np.random.default_rng(s), 50.0, 10.0, 0.0)[0] < 0 for s in range(999)]
    assert np.mean(under_way) == pytest.approx(0.2, abs=0.05)

    load = VaryingLoad(Poisson(20.0), bursts=Bursts(50.0, 10.0, 6.0))
    ticks = load.ticks(np.random.default_rng(2), 1_000_000)
    assert 1_000_000 / to_seconds(ticks[-1]) == pytest.approx(20.0, rel=0.03)
    counts = np.bincount((to_seconds(ticks) // 1).astype(int))[:-1]
    # 20 = 0.8 quiet + 0.2 · 6 quiet: 10 a second in quiet times and 60 in bursts.
    assert np.median(counts) == pytest.approx(10.0, abs=1)
    assert np.mean(counts > 35) == pytest.approx(0.2, abs=0.02)


def test_gaps_of_the_process_are_kept() -> None:
    # Over a flat day nothing changes; regular gaps stay regular where the load is even.
    flat = VaryingLoad(Gamma(5.0, 0.1), Diurnal(10.0)).ticks(np.random.default_rng(0), 100)
    plain = Gamma(5.0, 0.1).ticks(np.random.default_rng(0), 100)
    np.testing.assert_allclose(flat, plain, atol=100)


def test_bad_parameters_are_refused_by_key() -> None:
    for fields, message in (
        ((0.0,), "period: found 0"),
        ((10.0, 1.5), "amplitude: found 1.5, must be at most 1"),
        ((10.0, 0.0, ((5.0, 6.0, 2.0),)), "spikes: found one that ends after 11 s"),
        ((10.0, 0.0, ((5.0, 1.0, 2.0), (5.5, 1.0, 2.0))), "spikes: start: found 5.5"),
        ((10.0, 0.0, ((5.0, 1.0),)), "spikes: found .* must be start, duration, factor"),
        ((10.0, 0.0, ((0.0, 10.0, 0.0),)), "spikes: found only factors of 0"),
        ((10.0, 0.0, (), -1.0), "start: found -1"),
    ):
        with pytest.raises(ValueError, match=rf"^arrivals\.diurnal\.{message}"):
            Diurnal(*fields)
    with pytest.raises(ValueError, match=r"^arrivals\.bursts\.every: found 5"):
        Bursts(5.0, 6.0, 2.0)
    with pytest.raises(ValueError, match=r"^arrivals\.bursts\.factor: found -1"):
        Bursts(5.0, 1.0, -1.0)
    short = VaryingLoad(Poisson(1e-3), Diurnal(0.001, spikes=((0.0, 0.0005, 2.0),)))
    with pytest.raises(ValueError, match=r"^arrivals\.diurnal\.period: found 0.001 s, too short"):
        short.ticks(np.random.default_rng(0), 1000)
