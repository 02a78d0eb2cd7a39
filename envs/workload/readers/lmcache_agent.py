"""Reader of LMCache's agent traces, cut into blocks of characters.

JSONL, one call a line (`traces.md` §2): `group` (the benchmark that ran the agent), `session`
within it, `t` in seconds from the group's first call, `input_length` and `output_length` estimated
as a token for four characters, rounded up, and `hash_runs`, the ids of the prompt's full
256-character pieces as [start, count]. A piece counts as a block of 64 tokens.
"""

from pathlib import Path

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.workload.readers.blocks import BLOCKS
from prefixgym.envs.workload.readers.calls import (
    Call,
    Service,
    check_file_block_size,
    follow,
    session_starts,
    to_tape,
)
from prefixgym.envs.workload.readers.rows import Row, parse_lines
from prefixgym.envs.workload.tape import NO_ROW, Tape

_BLOCKS = BLOCKS["lmcache_agent"]


def read_lmcache_agent(
    path: str | Path,
    *,
    trace_block_size: int | None = None,
    block_size: int | None = None,
    group: str | None = None,
    session_rate: float | None = None,
    seed: int = 0,
    open_loop: bool = False,
    recorded_ttft: float = 0.3,
    recorded_tpot: float = 0.005,
) -> Tape:
    """Read LMCache's agent calls as a tape of sessions.

    A call follows the one before in its session. Only starts are recorded; how long a call lasted,
    and so what of a gap is think time, is assumed, see `Service`. Calls with an empty prompt are
    left out, an output of 0 tokens counts as one.

    Args:
        path: a .jsonl file, or .jsonl.gz.
        trace_block_size: tokens in a block of the file; None: 64.
        block_size: tokens in a block of the tape, a divisor of the file's; None: the file's. Full
            finer blocks in the unnamed end of a prompt get ids of their own.
        group: keep this group alone; None: all, their first calls together at 0.
        session_rate: sessions start as a Poisson process of so many a second, drawn from `seed`;
            None: as recorded, when each of a group started after the one before had ended.
        seed: names the starts, ≥ 0.
        open_loop: all calls arrive at their recorded times after the start of their session,
            whether the one before has ended or not.
        recorded_ttft, recorded_tpot: speed of the recorded service, in seconds.

    Raises:
        ValueError: names file, line and key of the first malformed row, what was found and what is
            allowed; or the argument that does not fit.
        OSError: the file cannot be opened.
    """
    size = check_file_block_size(trace_block_size, _BLOCKS)
    service = Service(recorded_ttft, recorded_tpot)
    calls: list[Call] = []
    latest: dict[tuple[str | int, str | int], int] = {}
    groups: dict[str | int, None] = {}  # in order of appearance

    def parse(number: int, line: str) -> None:
        row = Row(line)
        groups[row.name("group")] = None
        key = (row.name("group"), row.name("session"))
        time = row.ticks("t", TICKS_PER_SECOND, "s")
        tokens = row.whole("input_length", 0)
        output = max(1, row.whole("output_length", 0))
        runs = row.runs("hash_runs")
        pieces = sum(count for _, count in runs)
        if pieces == (tokens - 1) // size:  # tokens may have been rounded up to a full block
            tokens = min(tokens, pieces * size + size - 1)
        _BLOCKS.check(tokens, pieces, size)
        if tokens == 0 or (group is not None and key[0] != group):
            return
        calls.append(Call(number, time, tokens, output, runs, session=len(latest)))
        if key in latest:
            parent = latest[key]
            if time < calls[parent].time:
                raise ValueError(
                    f"t: found {row['t']}, earlier than that of the session's call before, on line "
                    f"{calls[parent].line}"
                )
            calls[-1].session = calls[parent].session
            follow(calls, len(calls) - 1, parent, service)
        latest[key] = len(calls) - 1

    for _ in parse_lines(Path(path), parse):
        pass
    if group is not None and group not in groups:
        raise ValueError(f"group: found {group!r}, must be one of {', '.join(map(str, groups))}")
    if session_rate is not None:
        starts = session_starts(len(latest), session_rate, seed)
        recorded = {call.session: call.time for call in calls if call.parent == NO_ROW}
        for call in calls:
            call.time += int(starts[call.session]) - recorded[call.session]
    return to_tape(Path(path), calls, _BLOCKS, size, block_size, open_loop=open_loop)
