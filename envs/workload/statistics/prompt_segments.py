"""Prompts as chains of segments: stretches of ids that every prompt holds whole or not at all.

A prompt of a hundred blocks is a few segments, so that what concerns single blocks is counted in
the time that the segments take.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.segments import cut_runs
from prefixgym.envs.workload.statistics.previous import previous
from prefixgym.envs.workload.tape import NO_ROW, RUN, Tape

NO_PLACE = NO_ROW


@dataclass(frozen=True)
class PromptSegments:
    """The segments of all prompts, prompt after prompt, each from block 0 on.

    A *place* is a position in these arrays, [P] long. Segments [S] include some that no prompt
    holds: the ids between those of the tape.

    Attributes:
        first: the place at which each row's prompt begins, and P, [R + 1].
        segment: the segment at each place.
        row: the row to which each place belongs.
        size: ids in the segment at each place.
        before: the last earlier place of the same segment, NO_PLACE if it is new.
        full_end: for each row, the place with which the prompt's full blocks end, NO_PLACE if it
            has none, [R]. A segment never goes on past it.
        num_segments: S.
    """

    first: NDArray[np.int64]
    segment: NDArray[np.int64]
    row: NDArray[np.int64]
    size: NDArray[np.int64]
    before: NDArray[np.int64]
    full_end: NDArray[np.int64]
    num_segments: int

    @property
    def hit(self) -> NDArray[np.bool_]:
        """Which places an infinite cache finds; in a prompt, none comes after one that is new."""
        return self.before != NO_PLACE


def prompt_segments(tape: Tape) -> PromptSegments:
    """The segments of a timeline's tape: its runs stand row by row and hold ids of prompts only."""
    requests, runs = tape.requests, tape.runs
    num_runs = requests["num_runs"].astype(np.int64)
    run_row = np.repeat(np.arange(len(requests)), num_runs)
    # Split the run in which a prompt's full blocks end, so that a segment ends there too.
    passed = np.cumsum(runs["count"])
    row_passed = np.concatenate([[0], passed])[np.cumsum(num_runs) - num_runs]
    full = row_passed + requests["prompt_tokens"] // tape.block_size
    inside = full[run_row] - (passed - runs["count"])
    split = np.flatnonzero((inside > 0) & (inside < runs["count"]))
    tails = np.empty(len(split), RUN)
    tails["start"] = runs["start"][split] + inside[split]
    tails["count"] = runs["count"][split] - inside[split]
    runs = runs.copy()
    runs["count"][split] = inside[split]
    runs = np.insert(runs, split + 1, tails)
    run_row = np.insert(run_row, split + 1, run_row[split])

    sizes, begin, end = cut_runs(runs)
    count = end - begin
    start = np.cumsum(count) - count
    segment = np.repeat(begin - start, count) + np.arange(count.sum())
    row = np.repeat(run_row, count)
    size = sizes[segment]

    full_end = np.full(len(requests), NO_PLACE, np.int64)
    ends = np.flatnonzero(np.cumsum(size) == full[row])
    full_end[row[ends]] = ends
    first = np.searchsorted(row, np.arange(len(requests) + 1))
    return PromptSegments(first, segment, row, size, previous(segment), full_end, len(sizes))
