"""Reader of agent calls that Dynamo has recorded: sessions with measured service times.

JSONL, one call a line: `t_ms` start in ms, `session`, `input_tokens`, `output_tokens`,
`total_time_ms` from start to end, `block_size`, `hash_ids` of all blocks, a partial last one
included, each of which stands for everything before it too. Other keys (measured TTFT, cached
tokens, …) are ignored. Rows need not be in order.
"""

from pathlib import Path

from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.workload.lengths import MAX_LENGTH
from prefixgym.envs.workload.readers.blocks import BLOCKS, compress
from prefixgym.envs.workload.readers.calls import Call, to_tape
from prefixgym.envs.workload.readers.rows import Row, parse_lines
from prefixgym.envs.workload.tape import Tape

_BLOCKS = BLOCKS["dynamo_agent"]


def read_dynamo_agent(
    path: str | Path,
    *,
    trace_block_size: int | None = None,
    block_size: int | None = None,
    open_loop: bool = False,
) -> Tape:
    """Read Dynamo's agent calls as a tape of sessions.

    A call follows the one before in its session; its think time is what passed between the end of
    that and its own start (none if they overlapped). The rows do not say which session started
    which, so every session is taken to start by itself, at its recorded time.

    Args:
        path: a .jsonl file, or .jsonl.gz.
        trace_block_size: tokens in a block of the file; None: as its rows say.
        block_size: tokens in a block of the tape, a divisor of the file's; None: the file's.
        open_loop: all calls arrive at their recorded times, whether the one before has ended or
            not.

    Raises:
        ValueError: names file, line and key of the first malformed row, what was found and what is
            allowed; or the argument that does not fit.
        OSError: the file cannot be opened.
    """
    size = trace_block_size
    end: dict[int, int] = {}  # by line

    def parse(number: int, line: str) -> tuple[str | int, Call]:
        nonlocal size
        row = Row(line)
        found = row.whole("block_size", 1, MAX_LENGTH)
        size = found if size is None else size
        if found != size:
            raise ValueError(f"block_size: found {found}, must be {size} in all rows")
        call = Call(
            number,
            row.ticks("t_ms", TICKS_PER_MS, "ms"),
            row.whole("input_tokens", 1),
            max(1, row.whole("output_tokens", 0)),
        )
        ids = row.ids("hash_ids")
        _BLOCKS.check(call.prompt_tokens, len(ids), size)
        call.runs = compress(ids)
        end[number] = call.time + row.ticks("total_time_ms", TICKS_PER_MS, "ms")
        return row.name("session"), call

    rows = sorted(parse_lines(Path(path), parse), key=lambda row: row[1].time)
    calls = [call for _, call in rows]
    latest: dict[str | int, int] = {}
    for index, (session, call) in enumerate(rows):
        call.session = len(latest)
        if session in latest:
            call.parent = latest[session]
            call.session = calls[call.parent].session
            call.think = max(0, call.time - end[calls[call.parent].line])
        latest[session] = index
    return to_tape(Path(path), calls, _BLOCKS, size or 1, block_size, open_loop=open_loop)
