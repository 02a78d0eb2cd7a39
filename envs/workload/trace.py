"""A recorded trace as a workload: episodes cut from one tape, at a chosen speed."""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.fields import check_flag, check_number, check_whole
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.tape import NO_ROW, Tape

_BATCHED_SHARE = 0.5
_EVEN_WITHIN = 0.05


def batch_interval(arrival: NDArray[np.int64]) -> int:
    """Ticks between the stamps of a trace that was recorded in batches, 0 if it was not.

    Mooncake's real traces stamp all requests of about 3 s alike (`traces.md` §3.1). A trace counts
    as batched if more than half of its rows carry the stamp of the row before, and nine in ten of
    the steps from stamp to stamp are within 5 % of the median step.

    Args:
        arrival: sorted ticks [R].
    """
    steps = np.diff(arrival)
    ties = int(np.count_nonzero(steps == 0))
    steps = steps[steps > 0]
    if len(steps) == 0 or not may_be_batched(ties, len(arrival)):
        return 0
    median = float(np.median(steps))
    low, high = np.quantile(steps, [0.05, 0.95])
    even = (1 - _EVEN_WITHIN) * median <= low and high <= (1 + _EVEN_WITHIN) * median
    return int(median) if even else 0


def may_be_batched(ties: int, rows: int) -> bool:
    """Whether so many of `rows` stamps equal the one before that they may come from batches."""
    return ties > _BATCHED_SHARE * rows


def spread_batches(
    arrival: NDArray[np.int64], interval: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Move each of the sorted arrivals to a random time before the next batch, keeping their order.

    A batch lasts `interval` ticks, or until the next one if that comes sooner.
    """
    stamps, batch = np.unique(arrival, return_inverse=True)
    width = np.minimum(np.diff(stamps, append=stamps[-1] + interval), interval)
    spread = arrival + (generator.random(len(arrival)) * width[batch]).astype(np.int64)
    # Batches do not overlap, so sorting all of them sorts within each.
    return np.sort(spread)


def at_speed(arrival: NDArray[np.int64], speedup: float) -> NDArray[np.int64]:
    """Arrivals after time 0 (ticks) when all comes `speedup` times as fast."""
    played: NDArray[np.int64] = np.rint(arrival / speedup).astype(np.int64)
    return played


@dataclass(frozen=True, eq=False)
class TraceWorkload:
    """Episodes of a trace, which starts at time 0.

    Attributes:
        trace: the whole trace, as a reader returns it.
        num_requests: rows of an episode: the seed picks a window of consecutive rows. None plays
            the whole trace, and the seed spreads its batches. Windows need a trace of roots only.
        speedup: factor by which roots come faster than recorded (think times stay). Changing the
            load this way keeps sessions whole, dropping rows would not.
        spread: spread batched stamps evenly at random, see `batch_interval`; without this,
            batches arrive as bursts that never were.
    """

    trace: Tape
    num_requests: int | None = None
    speedup: float = 1.0
    spread: bool = True

    def __post_init__(self) -> None:
        check_number("speedup", self.speedup, 0, above=True)
        check_flag("spread", self.spread)
        if self.num_requests is not None:
            check_whole("num_requests", self.num_requests, 1, len(self.trace.requests))
            follow_ups = np.count_nonzero(self.trace.requests["parent"] != NO_ROW)
            if follow_ups > 0:
                raise ValueError(
                    f"num_requests: found {self.num_requests}, must be None for a trace with "
                    f"follow-ups (this has {follow_ups}): a window would cut their sessions"
                )

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.trace.block_size

    @property
    def num_sessions(self) -> int:
        """Upper bound of `session` + 1."""
        return int(self.trace.requests["session"].max()) + 1

    @property
    def max_blocks(self) -> int:
        """Ids of the longest request."""
        requests = self.trace.requests
        return int(max(requests["num_blocks"].max(), requests["cacheable_blocks"].max()))

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names. Its runs are the trace's own array."""
        window, spread = streams(seed, 2)
        requests = self.trace.requests
        if self.num_requests is not None:
            start = int(window.integers(len(requests) - self.num_requests, endpoint=True))
            requests = requests[start : start + self.num_requests]
        requests = requests.copy()
        root = requests["parent"] == NO_ROW
        arrival = requests["arrival"][root]
        arrival -= arrival[0]
        if self._batch_interval > 0:
            arrival = spread_batches(arrival, self._batch_interval, spread)
        requests["arrival"][root] = at_speed(arrival, self.speedup)
        return Tape(requests, self.trace.runs, self.trace.block_size)

    @functools.cached_property
    def _batch_interval(self) -> int:
        requests = self.trace.requests
        if not self.spread:
            return 0
        return batch_interval(requests["arrival"][requests["parent"] == NO_ROW])
