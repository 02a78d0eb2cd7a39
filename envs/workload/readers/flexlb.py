"""Reader of FlexLB's request logs: production requests of one service, without sessions.

JSONL, one request a line (`traces.md` §2): `ts` arrival in ms, `il` and `ol` input and output
tokens, `bh` ids of the full 1,024-token blocks, each of which stands for everything before it too,
`pep` the prefill endpoint ("prefill-1" if none was found). Other keys are ignored.
"""

from pathlib import Path

from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.workload.fields import check_flag
from prefixgym.envs.workload.readers.blocks import BLOCKS, compress
from prefixgym.envs.workload.readers.calls import Call, check_file_block_size, to_tape
from prefixgym.envs.workload.readers.rows import Row, parse_lines
from prefixgym.envs.workload.tape import Tape

_BLOCKS = BLOCKS["flexlb"]
_NO_ENDPOINT = "prefill-1"
_MOST_TIME = 10**15 * TICKS_PER_MS  # stamps may count from 1970; only differences matter


def read_flexlb(
    path: str | Path,
    *,
    trace_block_size: int | None = None,
    block_size: int | None = None,
    keep_failed: bool = False,
) -> Tape:
    """Read a FlexLB log as a tape of roots, each a session of its own.

    Args:
        path: a .jsonl file, or .jsonl.gz.
        trace_block_size: tokens in a block of the file; None: 1,024.
        block_size: tokens in a block of the tape, a divisor of the file's; None: the file's. Full
            finer blocks in what the file leaves unnamed, less than one of its blocks at the end of
            a prompt, get ids of their own.
        keep_failed: keep the requests that failed or were cancelled (no output, or no endpoint),
            2,290 of the 8,332 in the published log; they ask for one token then. Without this they
            are left out: what they would have asked for is not known.

    Raises:
        ValueError: names file, line and key of the first malformed row, what was found and what is
            allowed; or the argument that does not fit.
        OSError: the file cannot be opened.
    """
    check_flag("keep_failed", keep_failed)
    size = check_file_block_size(trace_block_size, _BLOCKS)

    def parse(number: int, line: str) -> Call | None:
        row = Row(line)
        output = row.whole("ol", 0)
        call = Call(
            number,
            row.ticks("ts", TICKS_PER_MS, "ms", _MOST_TIME),
            row.whole("il", 1),
            max(1, output),
        )
        ids = row.ids("bh")
        _BLOCKS.check(call.prompt_tokens, len(ids), size)
        call.runs = compress(ids)
        failed = output == 0 or ("pep" in row and row["pep"] == _NO_ENDPOINT)
        return call if keep_failed or not failed else None

    calls = [call for call in parse_lines(Path(path), parse) if call is not None]
    for session, call in enumerate(calls):
        call.session = session
    return to_tape(Path(path), calls, _BLOCKS, size, block_size)
