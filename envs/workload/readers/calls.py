"""From the calls of a trace file to a tape."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER, TICKS_PER_SECOND
from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.fields import check_flag, check_number, check_whole
from prefixgym.envs.workload.lengths import MAX_LENGTH
from prefixgym.envs.workload.links import link_rows
from prefixgym.envs.workload.readers.blocks import Blocks
from prefixgym.envs.workload.segments import cut_runs
from prefixgym.envs.workload.split import split_blocks
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.tape import NO_ROW, RUN, Tape, root_requests
from prefixgym.envs.workload.validate import find_bad_chain


@dataclass(slots=True)
class Call:
    """One request of a file.

    Attributes:
        line: where it stands.
        time: ticks at which it was recorded to arrive.
        prompt_tokens, output_tokens: its lengths.
        runs: its block ids as (start, count).
        session: number of its session.
        parent: the call that it follows, as an index into the list of calls; NO_ROW for a root.
        think: ticks between the end of the last call that it waits for and its arrival.
        then: a later call that waits for the end of this one, besides its parent's; or NO_ROW.
    """

    line: int
    time: int
    prompt_tokens: int
    output_tokens: int
    runs: list[tuple[int, int]] = field(default_factory=list)
    session: int = 0
    parent: int = NO_ROW
    think: int = 0
    then: int = NO_ROW


@dataclass(frozen=True)
class Service:
    """How long a recorded call is taken to have lasted, where the file does not say.

    A gap from the start of one call to the start of the next holds the service of the first. Think
    time is what is left of it: gap - ttft - tpot × output tokens, at least 0.

    Attributes:
        ttft: seconds to the first token.
        tpot: seconds an output token.
    """

    ttft: float
    tpot: float

    def __post_init__(self) -> None:
        check_number("recorded_ttft", self.ttft, 0)
        check_number("recorded_tpot", self.tpot, 0)

    def ticks(self, output_tokens: int) -> int:
        """Of one call."""
        return round((self.ttft + self.tpot * output_tokens) * TICKS_PER_SECOND)


def follow(calls: Sequence[Call], child: int, parent: int, service: Service) -> None:
    """Make one call the follow-up of an earlier one, with the think time that `service` leaves."""
    gap = calls[child].time - calls[parent].time
    calls[child].parent = parent
    calls[child].think = max(0, gap - service.ticks(calls[parent].output_tokens))


def session_starts(count: int, session_rate: float | None, seed: int) -> NDArray[np.int64]:
    """Ticks at which sessions without absolute times start: all at 0, or as a Poisson process."""
    check_whole("seed", seed, 0, 2**63 - 1)
    if session_rate is None:
        return np.zeros(count, np.int64)
    check_number("session_rate", session_rate, 0, above=True)
    (generator,) = streams(seed, 1)
    return Poisson(session_rate).ticks(generator, count)


def check_file_block_size(trace_block_size: int | None, blocks: Blocks) -> int:
    """Tokens in a block of the file, given or the format's own."""
    size = blocks.size if trace_block_size is None else trace_block_size
    return check_whole("trace_block_size", size, 1, MAX_LENGTH)


def to_tape(
    path: Path,
    calls: Sequence[Call],
    blocks: Blocks,
    size: int,
    block_size: int | None,
    *,
    open_loop: bool = False,
    start: int = 0,
) -> Tape:
    """The tape of a file's calls, in the order of their times; its first root arrives at 0.

    Args:
        path: the file, for messages.
        calls: at least one; a parent stands before its follow-ups and is not later than they are.
        blocks: how the file names blocks.
        size: tokens in a block of the file.
        block_size: tokens in a block of the tape, a divisor of `size`; None: the same.
        open_loop: every call becomes a root that arrives at its recorded time.
        start: leave out so many of the first rows, once checked; for roots only.

    Raises:
        ValueError: an id that does not name a prefix, or a block size that does not divide.
    """
    check_flag("open_loop", open_loop)
    if not calls:
        raise ValueError(f"{path}: found 0 requests, must be at least 1")
    order = sorted(range(len(calls)), key=lambda index: calls[index].time)  # stable
    row_of = np.empty(len(calls) + 1, np.int64)
    row_of[order] = np.arange(len(calls))
    row_of[NO_ROW] = NO_ROW
    ordered = [calls[index] for index in order]
    runs, num_runs = _runs(ordered)
    _check_chains(path, ordered, blocks, runs, num_runs)
    if start > 0:
        ordered = ordered[start:]
        runs, num_runs = _runs(ordered)
    first = ordered[0].time
    last = ordered[-1]
    if last.time - first > NEVER:
        raise ValueError(
            f"{path}:{last.line}: its time is {(last.time - first) / TICKS_PER_SECOND:g} s after "
            f"the first, must be at most {NEVER / TICKS_PER_SECOND:g} s"
        )

    arrival = np.array([call.time - first for call in ordered], np.int64)
    prompt = np.array([call.prompt_tokens for call in ordered], np.int64)
    output = np.array([call.output_tokens for call in ordered], np.int64)
    requests = root_requests(arrival, prompt, output, num_runs)
    requests["num_blocks"] = blocks.count(prompt, size)
    requests["cacheable_blocks"] = prompt // size
    requests["session"] = [call.session for call in ordered]
    if not open_loop:
        requests["parent"] = row_of[[call.parent for call in ordered]]
        requests["then"] = row_of[[call.then for call in ordered]]
        follow_up = requests["parent"] != NO_ROW
        requests["arrival"][follow_up] = np.array([call.think for call in ordered])[follow_up]
        link_rows(requests, np.arange(len(requests)))
    return split_blocks(Tape(requests, runs, size), size if block_size is None else block_size)


def _runs(calls: Sequence[Call]) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The calls' RUN records one after another, and how many each has."""
    runs = np.array([run for call in calls for run in call.runs], RUN)
    return runs, np.array([len(call.runs) for call in calls], np.int64)


def _check_chains(
    path: Path,
    calls: Sequence[Call],
    blocks: Blocks,
    runs: NDArray[np.void],
    num_runs: NDArray[np.int64],
) -> None:
    """ValueError unless every id always follows the same id, so that it names a prefix."""
    lengths = np.ones(len(calls), np.int64)
    requests = root_requests(np.zeros(len(calls), np.int64), lengths, lengths, num_runs)
    sizes, first, last = cut_runs(runs)
    row, block, found, known = find_bad_chain(requests, runs, first, last, sizes)
    if row == NO_ROW:
        return
    holders = np.flatnonzero((runs["start"] <= block) & (block < runs["start"] + runs["count"]))
    earlier = int(np.searchsorted(np.cumsum(num_runs), holders[0], side="right"))
    raise ValueError(
        f"{path}:{calls[row].line}: {blocks.key}: found id {block} after {_name(found)}, but after "
        f"{_name(known)} on line {calls[earlier].line}; an id must stand for its block and "
        "everything before it"
    )


def _name(before: int) -> str:
    return "no other id" if before == -1 else f"id {before}"
