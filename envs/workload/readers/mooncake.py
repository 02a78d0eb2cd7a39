"""Reader of Mooncake's trace format, the one most published traces of prefix reuse come in.

JSONL, one request a line (Qin et al., FAST'25; `traces.md` §2): `timestamp` in ms from the start,
`input_length` and `output_length` in tokens, `hash_ids`: an id for each block of the prompt, 512
tokens in the published files, which stands for the block and all before it. The partial last block
has an id too, so it can only match an identical prompt. Other keys are ignored.
"""

import itertools
from pathlib import Path

from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.workload.fields import check_whole
from prefixgym.envs.workload.lengths import MAX_LENGTH
from prefixgym.envs.workload.readers.blocks import BLOCKS, compress
from prefixgym.envs.workload.readers.calls import Call, to_tape
from prefixgym.envs.workload.readers.rows import Row, parse_lines
from prefixgym.envs.workload.tape import Tape

_BLOCKS = BLOCKS["mooncake"]


class _BlockSize:
    """The block sizes that all rows so far allow: ceil(input_length / size) = number of ids."""

    def __init__(self, given: int | None) -> None:
        self.given = given
        self.low, self.high = (given, given) if given is not None else (1, MAX_LENGTH)

    def narrow(self, tokens: int, ids: int) -> None:
        """Take in one row; ValueError if it allows none of the sizes left."""
        if ids == 0:
            raise ValueError(f"hash_ids: found none, must cover input_length {tokens}")
        if self.given is not None:
            _BLOCKS.check(tokens, ids, self.given)
            return
        low = max(self.low, -(-tokens // ids))
        high = min(self.high, -(-tokens // (ids - 1)) - 1 if ids > 1 else MAX_LENGTH)
        if low > high:
            raise ValueError(
                f"hash_ids: found {ids} ids for input_length {tokens}, must be one for each block, "
                f"the last perhaps partial; the lines before allow {self} tokens a block"
            )
        self.low, self.high = low, high

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


def read_mooncake(
    path: str | Path,
    *,
    trace_block_size: int | None = None,
    block_size: int | None = None,
    start: int = 0,
    stop: int | None = None,
) -> Tape:
    """Read a trace in Mooncake's format as a tape of roots, the first of which arrives at 0.

    Arrivals are as recorded; `TraceWorkload` spreads batched ones. A row's session is its own: the
    format has none. Routers see an id for every block of the prompt, a partial last one included
    (`num_blocks` = ceiling); engines keep full blocks (`cacheable_blocks` = floor), and none that
    decoding fills, as the format does not say what the next turn calls them.

    Args:
        path: a .jsonl file, or .jsonl.gz.
        trace_block_size: tokens in a block of the file; None infers it from the rows.
        block_size: tokens in a block of the tape, a divisor of the file's; None takes the file's.
            Every id becomes several, so prompts share what they shared. Where two prompts really
            part inside a block of the file, what they share of it stays lost: hits are a lower
            bound, by less than one of the file's blocks a request.
        start, stop: rows to keep, as in a slice; None: to the end. Rows before `start` are checked
            too, those from `stop` on are not read.

    Raises:
        ValueError: names file, line and key of the first malformed row, what was found and what is
            allowed; or the argument that does not fit the file.
        OSError: the file cannot be opened.
    """
    if trace_block_size is not None:
        check_whole("trace_block_size", trace_block_size, 1, MAX_LENGTH)
    check_whole("start", start, 0, MAX_LENGTH)
    if stop is not None:
        check_whole("stop", stop, start + 1, MAX_LENGTH)
    path = Path(path)
    size = _BlockSize(trace_block_size)
    before = 0

    def parse(number: int, line: str) -> Call:
        nonlocal before
        row = Row(line)
        call = Call(
            number,
            row.ticks("timestamp", TICKS_PER_MS, "ms"),
            row.whole("input_length", 1),
            row.whole("output_length", 1),
        )
        ids = row.ids("hash_ids")
        size.narrow(call.prompt_tokens, len(ids))
        call.runs = compress(ids)
        if call.time < before:
            raise ValueError(
                f"timestamp: found {call.time / TICKS_PER_MS:g} ms after "
                f"{before / TICKS_PER_MS:g} ms, rows must be sorted by time"
            )
        before = call.time
        return call

    calls = list(itertools.islice(parse_lines(path, parse), stop))
    if start >= len(calls) or (stop is not None and stop > len(calls)):
        raise ValueError(
            f"{path}: found {len(calls)} rows, too few for start = {start}, stop = {stop}"
        )
    if size.low != size.high:
        raise ValueError(
            f"{path}: trace_block_size: not given, and its {len(calls)} rows allow {size} tokens a "
            "block; state it (512 in the published traces)"
        )
    for session, call in enumerate(calls):
        call.session = session - start
    return to_tape(path, calls, _BLOCKS, size.low, block_size, start=start)
