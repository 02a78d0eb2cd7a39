"""Reader of Mooncake's trace format, the one most published traces of prefix reuse come in.

JSONL, one request a line (Qin et al., FAST'25; `traces.md` §2): `timestamp` in ms from the start,
`input_length` and `output_length` in tokens, `hash_ids`: an id for each block of the prompt, 512
tokens in the published files, which stands for the block and all before it. The partial last block
has an id too, so it can only match an identical prompt. Other keys are ignored.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER, TICKS_PER_MS
from prefixgym.envs.workload.chains import ceil_div
from prefixgym.envs.workload.fields import check_whole
from prefixgym.envs.workload.lengths import MAX_LENGTH
from prefixgym.envs.workload.tape import RUN, Tape, root_requests

_MOST_ID = 2**53


class _Row(NamedTuple):
    line: int
    arrival: int
    prompt_tokens: int
    output_tokens: int
    ids: list[int]


def _present(row: dict[str, object], key: str) -> object:
    if key not in row:
        raise ValueError(f"{key}: missing, found keys {', '.join(row) or 'none'}")
    return row[key]


def _parse(number: int, line: str) -> _Row:
    """The request of one line; ValueError says what is wrong with it."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"not JSON, or cut off ({error.msg}, column {error.colno}): found {line[:60]!r}"
        ) from error
    except (ValueError, RecursionError) as error:  # a number or a nesting beyond Python's limits
        raise ValueError(f"not JSON of a request ({error}): found {line[:60]!r}") from error
    if not isinstance(row, dict):
        raise ValueError(f"found {line[:60]!r}, must be a JSON object")
    stamp = _present(row, "timestamp")
    if isinstance(stamp, bool) or not isinstance(stamp, (int, float)):
        raise ValueError(f"timestamp: found {stamp!r}, must be a number (ms)")
    if not math.isfinite(stamp) or not 0 <= stamp <= NEVER // TICKS_PER_MS:
        raise ValueError(
            f"timestamp: found {stamp}, must be between 0 and {NEVER // TICKS_PER_MS} ms"
        )
    ids = _present(row, "hash_ids")
    if not isinstance(ids, list):
        raise ValueError(f"hash_ids: found {ids!r}, must be a list of ids")
    for place, block in enumerate(ids):
        if type(block) is not int or not 0 <= block <= _MOST_ID:
            check_whole(f"hash_ids[{place}]", block, 0, _MOST_ID)
    return _Row(
        number,
        round(stamp * TICKS_PER_MS),
        check_whole("input_length", _present(row, "input_length"), 1, MAX_LENGTH),
        check_whole("output_length", _present(row, "output_length"), 1, MAX_LENGTH),
        ids,
    )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank; ValueError if the file cannot be decoded."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for raw in file:
                number += 1
                line = raw.decode().strip()
                if line:
                    yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}:{number + 1}: gzip: damaged or cut off ({error})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}:{number}: not UTF-8 ({error})") from error


class _BlockSize:
    """The block sizes that all rows so far allow: ceil(input_length / size) = number of ids."""

    def __init__(self, given: int | None) -> None:
        self.given = given
        self.low, self.high = (given, given) if given is not None else (1, MAX_LENGTH)

    def narrow(self, row: _Row) -> None:
        """Take in one row; ValueError if it allows none of the sizes left."""
        tokens, ids = row.prompt_tokens, len(row.ids)
        if ids == 0:
            raise ValueError(f"hash_ids: found none, must cover input_length {tokens}")
        low = -(-tokens // ids)
        high = -(-tokens // (ids - 1)) - 1 if ids > 1 else MAX_LENGTH
        if max(low, self.low) <= min(high, self.high):
            self.low, self.high = max(low, self.low), min(high, self.high)
        elif self.given is not None:
            raise ValueError(
                f"hash_ids: found {ids} ids for input_length {tokens}, must be "
                f"{-(-tokens // self.given)} of {self.given} tokens each, the last perhaps partial"
            )
        else:
            raise ValueError(
                f"hash_ids: found {ids} ids for input_length {tokens}, must be one for each block, "
                f"the last perhaps partial; the lines before allow {self} tokens a block"
            )

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


class _Chains:
    """Checks that an id always follows the same id, so that it names a prefix."""

    def __init__(self) -> None:
        self.first_use: dict[int, tuple[int, int]] = {}  # id -> (id before it or -1, line)

    def follow(self, row: _Row) -> None:
        """Take in one row; ValueError if an id has another predecessor than before."""
        before = -1
        for place, block in enumerate(row.ids):
            known, line = self.first_use.setdefault(block, (before, row.line))
            if known != before:
                raise ValueError(
                    f"hash_ids[{place}]: found {block} after {_name(before)}, but after "
                    f"{_name(known)} on line {line}; an id must stand for its block and everything "
                    "before it"
                )
            before = block


def _name(before: int) -> str:
    return "no other id" if before == -1 else f"id {before}"


def _read_rows(
    path: Path, trace_block_size: int | None, start: int, stop: int | None
) -> tuple[list[_Row], int]:
    """The rows start … stop − 1, and the trace's block size."""
    size = _BlockSize(trace_block_size)
    chains = _Chains()
    rows: list[_Row] = []
    for number, line in _lines(path):
        if stop is not None and len(rows) >= stop:
            break
        try:
            row = _parse(number, line)
            size.narrow(row)
            chains.follow(row)
            if rows and row.arrival < rows[-1].arrival:
                raise ValueError(
                    f"timestamp: found {row.arrival / TICKS_PER_MS:g} ms after "
                    f"{rows[-1].arrival / TICKS_PER_MS:g} ms, rows must be sorted by time"
                )
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        rows.append(row)
    if start >= len(rows) or (stop is not None and stop > len(rows)):
        raise ValueError(
            f"{path}: found {len(rows)} rows, too few for start = {start}, stop = {stop}"
        )
    if size.low != size.high:
        raise ValueError(
            f"{path}: trace_block_size: not given, and its {len(rows)} rows allow {size} tokens a "
            "block; state it (512 in the published traces)"
        )
    return rows[start:], size.low


def _compress(ids: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.intp]:
    """Where runs of consecutive ids begin; one begins at each of `begins`."""
    new = np.ones(len(ids), np.bool_)
    new[1:] = np.diff(ids) != 1
    new[begins] = True
    return np.flatnonzero(new)


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
    rows, coarse = _read_rows(Path(path), trace_block_size, start, stop)
    fine = coarse if block_size is None else block_size
    check_whole("block_size", fine, 1, coarse)
    if coarse % fine != 0:
        raise ValueError(f"block_size: found {fine}, must divide the trace's {coarse}")

    arrival, prompt, output = np.array([row[1:4] for row in rows], np.int64).T
    ids = np.concatenate([np.array(row.ids, np.int64) for row in rows])
    row_end = np.cumsum([len(row.ids) for row in rows])
    run_start = _compress(ids, row_end[:-1])
    runs = np.empty(len(run_start), RUN)
    ratio = coarse // fine
    runs["start"] = ids[run_start] * ratio
    runs["count"] = np.diff(run_start, append=len(ids)) * ratio

    num_runs = np.diff(np.searchsorted(run_start, row_end), prepend=0)
    requests = root_requests(arrival - arrival[0], prompt, output, num_runs)
    requests["num_blocks"] = ceil_div(prompt, fine)
    requests["cacheable_blocks"] = prompt // fine
    # A partial block of the file splits into fewer blocks than a full one.
    last_run = requests["first_run"] + requests["num_runs"] - 1
    runs["count"][last_run] -= np.diff(row_end, prepend=0) * ratio - requests["num_blocks"]
    return Tape(requests, runs, fine)
