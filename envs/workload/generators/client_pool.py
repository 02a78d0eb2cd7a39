"""Many clients behind one service: each with its own share of the load, bursts, lengths and prefix.

The model of ServeGen (Xiang et al., arXiv 2505.09999): a client's requests in a window of time are
a renewal process of Gamma or Weibull gaps at that window's rate. All clients live on one clock, so
that the load adds up as it did: each at its own peak, they would ask for many times what they ever
did together. ServeGen tells no prefixes; here a client's prompts begin alike, as a service's
template would have them.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import to_ticks
from prefixgym.envs.rng import uniforms
from prefixgym.envs.workload.arrivals import check_reach
from prefixgym.envs.workload.chains import ceil_div, exclusive_sum, two_part_tape
from prefixgym.envs.workload.popularity import choose
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.tape import Tape

LEVELS = np.array([0.0, 0.01, *np.arange(1, 20) / 20, 0.99, 1.0])
"""Of the quantiles that describe a client's lengths."""

_SHORT = 1  # index of the 1 % quantile


@dataclass(frozen=True, eq=False)
class ClientPool:
    """What C clients do in each of W windows of one clock, which then begins anew.

    Attributes:
        window: s that a window lasts.
        rates: requests/s, [C, W].
        shapes: of the gaps' distribution, [C, W].
        weibull: True: it is Weibull's, False: Gamma's; [C, W].
        length_windows: consecutive windows that have one table of lengths.
        prompt_tokens, output_tokens: quantiles at `LEVELS` with straight lines between them,
            [C, P, 23], for P times `length_windows` windows.
    """

    window: float
    rates: NDArray[np.float64]
    shapes: NDArray[np.float64]
    weibull: NDArray[np.bool_]
    length_windows: int
    prompt_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]

    @property
    def num_clients(self) -> int:
        """C."""
        return len(self.rates)

    def max_blocks(self, block_size: int) -> int:
        """Blocks of the longest prompt."""
        return -(-int(np.rint(self.prompt_tokens.max())) // block_size)

    def tape(
        self, seed: int, num_requests: int, rate: float, block_size: int, prefix_share: float
    ) -> Tape:
        """The first `num_requests` requests from a random moment of the clock on.

        The moment is one at which a random request comes. All rates are scaled by one factor, so
        that the episode's mean is `rate`; within it the load rises and falls as the clients' does.
        The k-th request of a client has the same lengths at every rate.

        Args:
            seed: names the episode.
            num_requests: rows of the tape.
            rate: requests/s.
            block_size: tokens in a block.
            prefix_share: a client's common prefix, in parts of its short (1 % quantile) prompts.
        """
        start, gaps, lengths = streams(seed, 3)
        count = self.rates.shape[1]
        begin = (choose(self.rates.sum(axis=0), start, 1)[0] + start.random()) * self.window
        check_reach(num_requests / rate, rate, num_requests)
        time, client, window = self._arrivals(gaps, float(begin), num_requests, rate)

        # The number of each request among its client's.
        order = np.argsort(client, kind="stable")
        per_client = np.bincount(client, minlength=self.num_clients)
        number = np.empty(num_requests, np.int64)
        number[order] = np.arange(num_requests) - np.repeat(exclusive_sum(per_client), per_client)
        keys = lengths.integers(2**64, size=(2, self.num_clients), dtype=np.uint64)
        period = window % count // self.length_windows
        prompt, output = (
            _interpolate(table, client, period, uniforms(key[client], number))
            for table, key in zip((self.prompt_tokens, self.output_tokens), keys, strict=True)
        )

        prefix = (prefix_share * self.prompt_tokens[:, 0, _SHORT]).astype(np.int64)
        head_start = exclusive_sum(prefix // block_size)
        head_blocks = np.minimum(prefix[client], prompt - 1) // block_size
        tail_blocks = ceil_div(prompt, block_size) - head_blocks
        tape = two_part_tape(
            block_size=block_size,
            arrival=to_ticks(time),
            prompt_tokens=prompt,
            output_tokens=output,
            cacheable_blocks=prompt // block_size,
            head_start=head_start[client],
            head_blocks=head_blocks,
            tail_start=int(np.sum(prefix // block_size)) + exclusive_sum(tail_blocks),
        )
        tape.requests["session"] = client
        return tape

    def _passed(self, time: float) -> float:
        """Requests of all clients from 0 to `time` on the clock, on average."""
        total = self.rates.sum(axis=0) * self.window
        rounds, rest = divmod(time / self.window, len(total))
        window = min(int(rest), len(total) - 1)
        return float(rounds * total.sum() + total[:window].sum() + (rest - window) * total[window])

    def _arrivals(
        self, generator: np.random.Generator, begin: float, num_requests: int, rate: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Times in s after `begin`, clients and windows of the first requests, in order, [R].

        Each client is a unit renewal process, played at a speed of factor · its rate: a gap has the
        shape of the window in which it begins, and a window's end only changes the speed.
        """
        duration = num_requests / rate
        factor = num_requests / (self._passed(begin + duration) - self._passed(begin))
        window = int(begin // self.window)
        until = self._equilibrium(generator, window % self.rates.shape[1])
        now, stop, enough = 0.0, duration, 0
        parts: list[tuple[NDArray[np.float64], int, int]] = []
        while enough < num_requests:
            if now >= stop:  # a few are missing
                stop += max(duration / 16, stop - duration)
            end = min(stop, (window + 1) * self.window - begin)
            column = window % self.rates.shape[1]
            speed = factor * self.rates[:, column]
            passed = speed * (end - now)
            due = np.flatnonzero(until <= passed)
            for c in due.tolist():
                ticks, until[c] = self._play(generator, c, column, until[c], passed[c])
                parts.append((now + ticks / speed[c], c, window))
                enough += len(ticks)
            waiting = until > passed
            waiting[due] = False
            until[waiting] -= passed[waiting]
            now = end
            if now >= (window + 1) * self.window - begin:
                window += 1
        sizes = [len(times) for times, _, _ in parts]
        time = np.concatenate([times for times, _, _ in parts])
        order = np.argsort(time, kind="stable")[:num_requests]
        client = np.repeat([c for _, c, _ in parts], sizes)[order]
        return time[order], client, np.repeat([w for _, _, w in parts], sizes)[order]

    def _unit_gaps(
        self, generator: np.random.Generator, c: int, column: int, count: int
    ) -> NDArray[np.float64]:
        shape = self.shapes[c, column]
        if self.weibull[c, column]:
            return generator.weibull(shape, count) / math.gamma(1 + 1 / shape)
        return generator.standard_gamma(shape, count) / shape

    def _play(
        self, generator: np.random.Generator, c: int, column: int, first: float, passed: float
    ) -> tuple[NDArray[np.float64], float]:
        """Arrivals of a unit process from `first` to `passed`, and how far off the next one is."""
        times = np.array([first])
        while times[-1] <= passed:
            count = int(1.2 * (passed - times[-1])) + 8
            gaps = self._unit_gaps(generator, c, column, count)
            times = np.concatenate([times, times[-1] + np.cumsum(gaps)])
        end = int(np.searchsorted(times, passed, side="right"))
        return times[:end], float(times[end] - passed)

    def _equilibrium(self, generator: np.random.Generator, column: int) -> NDArray[np.float64]:
        """What is left of the unit gap under way at a random moment, for each client, [C].

        A gap met at random is drawn in proportion to its length, and the moment lies anywhere in
        it. Times its length, Gamma's density of shape k is that of shape k + 1, and Weibull's is
        that of y^(1/k) for y of Gamma's shape 1 + 1/k.
        """
        shape = self.shapes[:, column]
        gamma = generator.standard_gamma(shape + 1) / shape
        log_mean = np.array([math.lgamma(1 + 1 / k) for k in shape])
        weibull = np.exp(np.log(generator.standard_gamma(1 + 1 / shape)) / shape - log_mean)
        return generator.random(len(shape)) * np.where(self.weibull[:, column], weibull, gamma)


def _interpolate(
    table: NDArray[np.float64],
    client: NDArray[np.int64],
    period: NDArray[np.int64],
    level: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Lengths (≥ 1) at these levels of their clients' quantiles, [R]."""
    below = np.searchsorted(LEVELS, level, side="right") - 1
    low, high = table[client, period, below], table[client, period, below + 1]
    part = (level - LEVELS[below]) / (LEVELS[below + 1] - LEVELS[below])
    return np.maximum(1, np.rint(low + part * (high - low))).astype(np.int64)
