"""Reader of Alibaba's Bailian traces: chat sessions with their turns named.

JSONL, one request a line (Wang et al., ATC'25; `traces.md` §2): `chat_id` names the request,
`parent_chat_id` the one that it continues (-1: none), `timestamp` in seconds from the start,
`input_length` and `output_length` in tokens, `hash_ids` of 16-token blocks, a partial last one
included. The publishers do not say whether an id stands for its block alone or for everything
before it too; here ids are chained, which changes nothing if they are chained already.
"""

from pathlib import Path

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.workload.readers.blocks import BLOCKS, compress
from prefixgym.envs.workload.readers.calls import (
    Call,
    Service,
    check_file_block_size,
    follow,
    to_tape,
)
from prefixgym.envs.workload.readers.rows import Row, parse_lines
from prefixgym.envs.workload.tape import Tape

_BLOCKS = BLOCKS["bailian"]
_NO_PARENT = -1


def read_bailian(
    path: str | Path,
    *,
    trace_block_size: int | None = None,
    block_size: int | None = None,
    open_loop: bool = False,
    recorded_ttft: float = 1.0,
    recorded_tpot: float = 0.02,
) -> Tape:
    """Read a Bailian trace as a tape of chat sessions.

    A request whose parent is not in the file before it is a root. Only arrivals are recorded; how
    long a call lasted, and so what of a gap is think time, is assumed, see `Service`. An output of
    0 tokens counts as one.

    Args:
        path: a .jsonl file, or .jsonl.gz.
        trace_block_size: tokens in a block of the file; None: 16.
        block_size: tokens in a block of the tape, a divisor of the file's; None: the file's.
        open_loop: all requests arrive at their recorded times, whether the parent has ended or not.
        recorded_ttft, recorded_tpot: speed of the recorded service, in seconds.

    Raises:
        ValueError: names file, line and key of the first malformed row, what was found and what is
            allowed; or the argument that does not fit.
        OSError: the file cannot be opened.
    """
    size = check_file_block_size(trace_block_size, _BLOCKS)
    service = Service(recorded_ttft, recorded_tpot)
    calls: list[Call] = []
    call_of: dict[int, int] = {}
    chain: dict[tuple[int, int], int] = {}  # (chained id before, id) -> chained id

    def chained(ids: list[int]) -> list[int]:
        before = -1
        found = []
        for block in ids:
            before = chain.setdefault((before, block), len(chain))
            found.append(before)
        return found

    def parse(number: int, line: str) -> None:
        row = Row(line)
        chat = row.whole("chat_id", 0, 2**63)
        if chat in call_of:
            earlier = calls[call_of[chat]].line
            raise ValueError(f"chat_id: found {chat} again, line {earlier} has it; must be unique")
        call = Call(
            number,
            row.ticks("timestamp", TICKS_PER_SECOND, "s"),
            row.whole("input_length", 1),
            max(1, row.whole("output_length", 0)),
            session=len(calls),
        )
        ids = row.ids("hash_ids")
        _BLOCKS.check(call.prompt_tokens, len(ids), size)
        call.runs = compress(chained(ids))
        parent = row.whole("parent_chat_id", _NO_PARENT, 2**63)
        calls.append(call)
        if parent in call_of:
            earlier = call_of[parent]
            if call.time < calls[earlier].time:
                raise ValueError(
                    f"timestamp: found {row['timestamp']}, earlier than that of its parent on line "
                    f"{calls[earlier].line}"
                )
            call.session = calls[earlier].session
            follow(calls, len(calls) - 1, earlier, service)
        call_of[chat] = len(calls) - 1

    for _ in parse_lines(Path(path), parse):
        pass
    return to_tape(Path(path), calls, _BLOCKS, size, block_size, open_loop=open_loop)
