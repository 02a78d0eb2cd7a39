"""A trace of any length as a workload: a file in the native format, read while it is played."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.chunk import Chunk
from prefixgym.envs.workload.fields import check_flag, check_number
from prefixgym.envs.workload.readers import native
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.tape import NO_ROW, Tape
from prefixgym.envs.workload.trace import (
    TraceWorkload,
    at_speed,
    batch_interval,
    may_be_batched,
    spread_batches,
)

CHUNK_ROWS = 50_000


@dataclass(frozen=True, eq=False)
class StreamedTrace:
    """The episodes that `TraceWorkload` makes of the whole file, in chunks as well.

    Attributes:
        path: a file in the native format.
        extent: how large it is.
        read_whole: returns all of it, where that is asked for.
        speedup: factor by which roots come faster than recorded.
        spread: spread stamps that were recorded in batches, see `batch_interval`. Where there are
            batches, and only there, this takes memory for all roots' arrivals, 8 bytes each.
    """

    path: Path
    extent: native.Extent
    read_whole: Callable[[], Tape]
    speedup: float = 1.0
    spread: bool = True

    def __post_init__(self) -> None:
        check_number("speedup", self.speedup, 0, above=True)
        check_flag("spread", self.spread)

    @functools.cached_property
    def block_size(self) -> int:
        """Tokens in a block."""
        return native.read_block_size(self.path)

    @property
    def num_sessions(self) -> int:
        """Upper bound of `session` + 1."""
        return self.extent.num_sessions

    @property
    def max_blocks(self) -> int:
        """Ids of the longest request."""
        return self.extent.max_blocks

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names."""
        return self._whole.tape(seed)

    @functools.cached_property
    def _whole(self) -> TraceWorkload:
        return TraceWorkload(self.read_whole(), None, self.speedup, self.spread)

    def chunks(self, seed: int) -> Iterator[Chunk]:
        """The same in chunks of about `CHUNK_ROWS` requests."""
        spread = self._spread_arrivals(seed) if self.spread else None
        first, passed = None, 0
        for chunk in native.read_chunks(self.path, CHUNK_ROWS):
            root = chunk.requests["parent"] == NO_ROW
            arrival = chunk.requests["arrival"][root]
            first = arrival[0] if first is None else first
            if spread is None:
                arrival -= first
            else:
                arrival = spread[passed : passed + len(arrival)]
            passed += len(arrival)
            chunk.requests["arrival"][root] = at_speed(arrival, self.speedup)
            yield chunk

    def _spread_arrivals(self, seed: int) -> NDArray[np.int64] | None:
        """The roots' arrivals after the first, spread; None if they were not recorded in batches.

        It looks twice: what is not batched need not be in memory as a whole.
        """
        ties = roots = 0
        last = np.empty(0, np.int64)
        for arrival in native.read_arrivals(self.path, CHUNK_ROWS):
            ties += int(np.count_nonzero(np.diff(np.concatenate([last, arrival])) == 0))
            roots += len(arrival)
            last = arrival[-1:] if len(arrival) > 0 else last
        if not may_be_batched(ties, roots):
            return None
        arrival = np.concatenate(list(native.read_arrivals(self.path, CHUNK_ROWS)))
        interval = batch_interval(arrival)
        if interval == 0:
            return None
        return spread_batches(arrival - arrival[0], interval, streams(seed, 2)[1])
