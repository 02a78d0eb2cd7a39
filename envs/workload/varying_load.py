"""Load that changes with time: days, spikes and bursts, laid over any renewal process.

A process of unit rate is played in a time of its own, which runs faster where the load is high:
the k-th arrival, at u_k for unit rate, comes at the t for which rate · M(t) = u_k, where M is the
integral of a factor m(t) around 1. This is exact for any m, and what the process is like from gap
to gap (regular, Poisson, bursty) stays.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import to_seconds, to_ticks
from prefixgym.envs.jit import kernel
from prefixgym.envs.workload.arrivals import Renewal, check_reach
from prefixgym.envs.workload.bursts import burst_starts, check_bursts
from prefixgym.envs.workload.fields import check_number, check_probability

_MOST_PIECES = 2**24


@dataclass(frozen=True)
class Diurnal:
    """A day, of whatever length, with its quiet and busy hours: the factor is that of its hour.

    Its mean over a period is 1. An episode that does not last whole periods has another mean,
    which is right again on average over seeds if `start` is left open.

    Attributes:
        period: s.
        amplitude: the factor is 1 − amplitude · cos(2π time / period), at most 1: a period begins
            with the quietest moment.
        spikes: (start, duration, factor) in s from the start of each period: steps up or down by
            this factor, which do not overlap.
        start: s into the period at which the episode begins; None: drawn for each episode.
    """

    period: float
    amplitude: float = 0.0
    spikes: tuple[tuple[float, float, float], ...] = ()
    start: float | None = None

    def __post_init__(self) -> None:
        key = "arrivals.diurnal"
        check_number(f"{key}.period", self.period, 0, above=True)
        check_probability(f"{key}.amplitude", self.amplitude)
        if self.start is not None:
            check_number(f"{key}.start", self.start, 0)
        before = 0.0
        for spike in self.spikes:
            if not isinstance(spike, tuple) or len(spike) != 3:
                raise ValueError(f"{key}.spikes: found {spike!r}, must be start, duration, factor")
            start, duration, factor = spike
            check_number(f"{key}.spikes: start", start, before)
            check_number(f"{key}.spikes: duration", duration, 0, above=True)
            check_number(f"{key}.spikes: factor", factor, 0)
            before = start + duration
            if before > self.period:
                raise ValueError(
                    f"{key}.spikes: found one that ends after {before:g} s, must be within the "
                    f"period of {self.period:g} s"
                )
        if not self._mean() > 0:
            raise ValueError(f"{key}.spikes: found only factors of 0, some load must be left")

    def _mean(self) -> float:
        """The mean of amplitude and spikes over a period, by which the factor is divided."""
        edges, factors = self.pieces(0.0, self.period, normalised=False)
        wave = edges - _wave_integral(edges, self.amplitude, self.period)
        return float(np.sum(factors * np.diff(wave)) / self.period)

    def pieces(
        self, start: float, until: float, *, normalised: bool = True
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Edges [J + 1] from 0 to `until` s after `start`, and the spikes' factor between them."""
        first = math.floor(start / self.period)
        periods = math.ceil((start + until) / self.period) - first
        flat = [(0.0, 1.0)]
        for begin, duration, factor in self.spikes:
            flat += [(begin, factor), (begin + duration, 1.0)]
        offsets, values = np.array(flat).T
        edges = (first + np.arange(periods)[:, None]) * self.period + offsets - start
        edges = np.append(np.clip(edges.ravel(), 0.0, until), until)
        scale = 1.0 / self._mean() if normalised else 1.0
        return edges, scale * np.tile(values, periods)


def _wave_integral(
    time: NDArray[np.float64], amplitude: float, period: float
) -> NDArray[np.float64]:
    """∫ amplitude · cos(2π t / period) dt from 0 to each `time`."""
    angular = 2 * math.pi / period
    return amplitude / angular * np.sin(angular * time)


@dataclass(frozen=True)
class Bursts:
    """Busy stretches at random times, drawn for each episode. The mean factor is 1 in the long run.

    Attributes:
        every: s from the start of a burst to that of the next, on average.
        duration: s.
        factor: how many times as many arrivals come during a burst as between bursts.
    """

    every: float
    duration: float
    factor: float

    def __post_init__(self) -> None:
        check_bursts("arrivals.bursts.", self.every, self.duration)
        check_number("arrivals.bursts.factor", self.factor, 0)

    def pieces(
        self, generator: np.random.Generator, until: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Edges [J + 1] from 0 to `until` s, and the factor between them."""
        starts = burst_starts(generator, self.every, self.duration, until)
        edges = np.stack([starts, starts + self.duration], axis=1).ravel()
        edges = np.concatenate([[0.0], np.clip(edges, 0.0, until), [until]])
        # 1 = (1 − h) quiet + h · factor · quiet, with bursts for a share h = duration / every.
        quiet = 1.0 / (1.0 + self.duration / self.every * (self.factor - 1.0))
        factors = np.full(len(edges) - 1, quiet)
        factors[1::2] *= self.factor
        return edges, factors


@kernel
def _invert(
    work: NDArray[np.float64],
    edges: NDArray[np.float64],
    factors: NDArray[np.float64],
    start: float,
    amplitude: float,
    angular: float,
    time: NDArray[np.float64],
) -> float:
    """Write the times until which ∫ m = work[k], for ascending work, as far as the edges reach.

    m(t) = factors[j] · (1 − amplitude · cos(angular · (start + t))) between edges j and j + 1.
    Returns the integral up to the last edge.
    """
    done, k = 0.0, 0
    wave = amplitude / angular
    precision = 1e-12 + 1e-15 * edges[-1]
    for j in range(factors.size):
        begin, end, factor = edges[j], edges[j + 1], factors[j]
        base = begin - wave * math.sin(angular * (start + begin))
        whole = factor * (end - wave * math.sin(angular * (start + end)) - base)
        low = begin
        while k < work.size and work[k] < done + whole:
            wanted = (work[k] - done) / factor + base
            t, high = max(low, min(end, wanted)), end
            while True:
                miss = t - wave * math.sin(angular * (start + t)) - wanted
                if miss > 0:
                    high = t
                else:
                    low = t
                # Newton's step, unless it leaves where the solution must be.
                step = miss / (1.0 - amplitude * math.cos(angular * (start + t)))
                if abs(step) < precision or high - low < precision:
                    break
                t -= step
                if not low < t < high:
                    t = 0.5 * (low + high)
            time[k] = t
            low = min(low, t)
            k += 1
        done += whole
    return done


@dataclass(frozen=True)
class VaryingLoad:
    """A renewal process under a load that changes with time.

    Attributes:
        process: the arrivals under constant load; its rate is the mean.
        diurnal: what every day is like.
        bursts: what comes unforeseen. With `diurnal` the factors are multiplied.
    """

    process: Renewal
    diurnal: Diurnal | None = None
    bursts: Bursts | None = None

    @property
    def rate(self) -> float:
        """Arrivals per second, over whole periods and in the long run."""
        return self.process.rate

    def at_rate(self, rate: float) -> "VaryingLoad":
        """The same process at another rate: days and bursts stay as long as they are."""
        return replace(self, process=self.process.at_rate(rate))

    def ticks(
        self, generator: np.random.Generator, count: int, since: int = 0
    ) -> NDArray[np.int64]:
        """See `Arrivals.ticks`."""
        # What is decided once for an episode must not depend on how many numbers were drawn.
        root = generator.bit_generator.seed_seq
        assert isinstance(root, np.random.SeedSequence)
        once = np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, 0))
        begin = float(to_seconds(since))
        work = np.cumsum(self.process.unit_gaps(generator, count)) / self.rate
        until = 2.0 * (begin + float(work[-1]))
        while True:
            check_reach(until / 2.0, self.rate, count)
            time = self._play(np.random.default_rng(once), work, begin, until)
            if time is not None:
                return np.maximum(to_ticks(time), since)
            until *= 2.0

    def _play(
        self, generator: np.random.Generator, work: NDArray[np.float64], begin: float, until: float
    ) -> NDArray[np.float64] | None:
        """Times in s until which the factor's integral from `begin` is `work`; None: > `until`."""
        edges, factors = np.array([0.0, until]), np.ones(1)
        start, amplitude, angular = 0.0, 0.0, 1.0
        if self.diurnal is not None:
            day = self.diurnal
            start = generator.random() * day.period if day.start is None else day.start
            amplitude, angular = day.amplitude, 2 * math.pi / day.period
            if day.spikes:
                _check_count("diurnal.period", day.period, until, len(day.spikes))
                edges, factors = day.pieces(start, until)
        if self.bursts is not None:
            _check_count("bursts.every", self.bursts.every, until, 1)
            edges, factors = _product((edges, factors), self.bursts.pieces(generator, until))
        shape = (edges, factors, start, amplitude, angular)
        # ∫ from 0 to `begin`: with one more edge there, the integral up to the last edge.
        cut = np.searchsorted(edges, begin)
        head = np.append(edges[:cut], begin)
        passed = _invert(np.empty(0), head, factors[:cut], *shape[2:], np.empty(0))
        time = np.empty(len(work))
        total = _invert(passed + work, *shape, time)
        return time if passed + work[-1] < total else None


def _check_count(key: str, interval: float, until: float, each: int) -> None:
    """Raise ValueError if the pieces of a step function would not fit into memory."""
    if each * until / interval > _MOST_PIECES:
        raise ValueError(
            f"arrivals.{key}: found {interval:g} s, too short for arrivals that last {until:.3g} s"
        )


def _product(
    a: tuple[NDArray[np.float64], NDArray[np.float64]],
    b: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The product of two step functions over one stretch, as edges and factors."""
    edges = np.unique(np.concatenate([a[0], b[0]]))
    middle = 0.5 * (edges[1:] + edges[:-1])
    product = np.ones(len(middle))
    for steps, factors in (a, b):
        product *= factors[np.searchsorted(steps, middle, side="right") - 1]
    return edges, product
