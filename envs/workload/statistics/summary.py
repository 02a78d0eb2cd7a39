"""All statistics of a tape at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import to_seconds
from prefixgym.envs.workload.reuse import Reuse, reuse
from prefixgym.envs.workload.statistics.lru_curve import LruCurve, lru_curve
from prefixgym.envs.workload.statistics.prompt_segments import PromptSegments, prompt_segments
from prefixgym.envs.workload.statistics.quantiles import (
    GAP_LEVELS,
    LENGTH_LEVELS,
    Quantiles,
    quantiles,
)
from prefixgym.envs.workload.statistics.sessions import Lineage, Sessions, lineage, sessions
from prefixgym.envs.workload.statistics.sharing import Sharing, sharing
from prefixgym.envs.workload.statistics.timeline import Timeline, timeline
from prefixgym.envs.workload.statistics.traffic import Traffic, traffic
from prefixgym.envs.workload.tape import Tape


@dataclass(frozen=True)
class Statistics:
    """The figures of `traces.md` §3 for one tape; blocks that decoding fills are left out.

    Attributes:
        block_size: tokens in a block.
        traffic: arrivals.
        prompt_tokens, output_tokens: lengths, also their "mean".
        reuse: hits of an infinite cache, None if the tape has no blocks at all.
        lru: hits by capacity, None likewise.
        sharing: popular prefixes, None likewise.
        sessions: turns, gaps and growth.
        reuse_gap: s since the last use of a block that is used again, hot blocks left out.
    """

    block_size: int
    traffic: Traffic
    prompt_tokens: Quantiles
    output_tokens: Quantiles
    reuse: Reuse | None
    lru: LruCurve | None
    sharing: Sharing | None
    sessions: Sessions
    reuse_gap: Quantiles


@dataclass(frozen=True)
class Study:
    """A tape taken apart once, for the statistics and for plots of them.

    Attributes:
        line: its requests in order of time.
        parts: their prompts.
        lineage: which continues which.
    """

    line: Timeline
    parts: PromptSegments
    lineage: Lineage

    @classmethod
    def of(cls, tape: Tape, derive: bool = False) -> "Study":
        """Take `tape` apart; `derive` as for `lineage`. ValueError if it has no requests."""
        if len(tape.requests) == 0:
            raise ValueError("tape: found no requests, statistics need one at least")
        line = timeline(tape)
        parts = prompt_segments(line.tape)
        return cls(line, parts, lineage(line, parts, derive))

    def reuse_gaps(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Seconds since the last use at each place that hits beyond hot blocks; blocks there."""
        again = self.parts.hit & ~self.lineage.hot[self.parts.segment]
        arrival = self.line.tape.requests["arrival"]
        since = arrival[self.parts.row[self.parts.before[again]]]
        return to_seconds(arrival[self.parts.row[again]] - since), self.parts.size[again]

    def statistics(self) -> Statistics:
        """All figures."""
        requests = self.line.tape.requests
        lengths = {}
        for key in ("prompt_tokens", "output_tokens"):
            lengths[key] = {"mean": float(requests[key].mean())} | quantiles(
                requests[key], LENGTH_LEVELS
            )
        gaps, blocks = self.reuse_gaps()
        has_blocks = len(self.parts.segment) > 0
        return Statistics(
            block_size=self.line.tape.block_size,
            traffic=traffic(self.line),
            prompt_tokens=lengths["prompt_tokens"],
            output_tokens=lengths["output_tokens"],
            reuse=reuse(self.line.tape) if has_blocks else None,
            lru=lru_curve(self.line, self.parts) if has_blocks else None,
            sharing=sharing(self.parts, self.lineage) if has_blocks else None,
            sessions=sessions(self.line, self.lineage),
            reuse_gap=quantiles(gaps, GAP_LEVELS, blocks),
        )


def statistics(tape: Tape, derive: bool = False) -> Statistics:
    """All figures of `tape`; `derive` as for `lineage`."""
    return Study.of(tape, derive).statistics()
