"""The native trace format: all that a tape can say, losslessly, in one Parquet file.

`docs/trace-format.md` describes it. Rows stand tree by tree, a tree being a root with all that
follows it, in the order of the roots' arrivals; so a file of any length is written and read in
pieces of whole trees, each a tape of its own.
"""

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

from prefixgym.envs.workload.chunk import Chunk
from prefixgym.envs.workload.fields import check_whole
from prefixgym.envs.workload.lengths import MAX_LENGTH
from prefixgym.envs.workload.links import link_rows, walk_trees
from prefixgym.envs.workload.split import runs_of, split_blocks
from prefixgym.envs.workload.tape import NO_ROW, RUN, Tape, root_requests
from prefixgym.envs.workload.validate import validate

NAME = "native"
VERSION = 1

_METADATA = "prefixgym.trace"
_ROW_GROUP = 50_000
_COPIED = ("prompt_tokens", "output_tokens", "num_blocks", "cacheable_blocks", "session")
SCHEMA: dict[str, Any] = {
    "row": pl.Int64,
    "arrival_ps": pl.Int64,
    "think_ps": pl.Int64,
    **dict.fromkeys(_COPIED, pl.Int32),
    "parent": pl.Int64,
    "then": pl.Int64,
    "slo_class": pl.Int32,
    "runs": pl.List(pl.Struct({"start": pl.Int64, "count": pl.Int64})),
}
"""Columns and their types, in order."""

_MAY_BE_NULL = ("arrival_ps", "think_ps", "parent", "then")


def is_native(path: str | Path) -> bool:
    """Whether the file is a Parquet file; OSError if it cannot be opened."""
    with Path(path).open("rb") as file:
        return file.read(4) == b"PAR1"


def write(chunks: Iterable[Tape], path: str | Path) -> int:
    """Write tapes one after another as one trace; return how many requests that are.

    Memory is bounded by the largest chunk. An existing file is replaced once all is written.

    Args:
        chunks: tapes of one block size, each complete in itself: links count its own rows, and
            sessions and block ids mean the same in all. No root arrives before the roots of the
            chunks before.
        path: the file, .parquet by convention.

    Raises:
        ValueError: a chunk that breaks this or the contract of `Tape`.
        OSError: the file cannot be written.
    """
    path = Path(path)
    remaining = iter(chunks)
    first = next(remaining, None)
    if first is None:
        raise ValueError(f"{path}: no chunk to write, must be at least one")
    written = 0

    def frames(*_: object) -> Iterator[pl.DataFrame]:
        nonlocal written
        latest = 0
        for number, tape in enumerate(itertools.chain([first], remaining)):
            try:
                latest = _check_chunk(tape, first.block_size, latest)
                frame = _to_frame(tape, written)
            except ValueError as error:
                raise ValueError(f"{path}: chunk {number}: {error}") from error
            written += len(frame)
            yield frame

    part = path.with_name(path.name + ".part")
    metadata = {_METADATA: json.dumps({"version": VERSION, "block_size": first.block_size})}
    source = register_io_source(frames, schema=SCHEMA)
    try:
        source.sink_parquet(part, metadata=metadata, row_group_size=_ROW_GROUP, maintain_order=True)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return written


def read(path: str | Path, *, block_size: int | None = None) -> Tape:
    """Read a whole trace as one tape, equal to the one that was written.

    Args:
        path: the file.
        block_size: tokens in a block of the tape, a divisor of the file's, see `split_blocks`;
            None: the file's.

    Raises:
        ValueError: names the file, and the row and column that break the format; or a block size
            that does not fit.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    found = read_block_size(path)
    tape = _to_tape(path, _collect(path, _scan(path)), found)
    return split_blocks(tape, found if block_size is None else block_size)


def read_chunks(path: str | Path, rows: int) -> Iterator[Chunk]:
    """Read a trace as tapes of about `rows` requests, each of whole trees, one after another.

    Links count the rows of a chunk, whose `rows` say which of the trace these are; sessions and
    block ids mean the same in all. Roots arrive in order over all chunks, and at their times in the
    whole trace. A chunk is larger than twice
    `rows` only if a tree is larger than `rows`.

    Raises:
        ValueError: names the file, and the row and column that break the format.
        OSError: the file cannot be opened.
    """
    check_whole("rows", rows, 1, MAX_LENGTH)
    path = Path(path)
    block_size = read_block_size(path)
    scan = _scan(path)
    held = pl.DataFrame(schema=SCHEMA)
    latest = 0
    for offset in itertools.count(0, rows):
        piece = _collect(path, scan.slice(offset, rows))
        held = pl.concat([held, piece])
        root = held["parent"].is_null().arg_true()
        # The last tree may go on in the next piece.
        cut = len(held) if len(piece) < rows else int(root.max() or 0)  # type: ignore[arg-type]
        if cut > 0:
            tape = _to_tape(path, held[:cut], block_size)
            number = held["row"][:cut].sort().to_numpy()
            held = held[cut:]
            arrival = tape.requests["arrival"][tape.requests["parent"] == NO_ROW]
            if arrival[0] < latest:
                raise ValueError(f"{path}: arrival_ps: roots must be sorted by arrival")
            latest = int(arrival[-1])
            yield Chunk(tape.requests, tape.runs, block_size, number)
        if len(piece) < rows:
            return


def read_block_size(path: str | Path) -> int:
    """Tokens in a block, as the file's metadata tell; see `read` for errors."""
    path = Path(path)
    if not is_native(path):
        raise ValueError(f"{path}: not a Parquet file, must begin with PAR1")
    try:
        found = pl.read_parquet_metadata(path).get(_METADATA)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: Parquet: damaged or cut off ({_one_line(error)})") from None
    if found is None:
        raise ValueError(f"{path}: metadata: no {_METADATA}, this is not a trace of prefixgym")
    try:
        about = json.loads(found)
        version, block_size = about["version"], about["block_size"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(
            f"{path}: metadata: {_METADATA}: found {found[:60]!r}, must be JSON with version and "
            "block_size"
        ) from None
    if version != VERSION:
        raise ValueError(f"{path}: metadata: version: found {version!r}, must be {VERSION}")
    try:
        return check_whole("metadata: block_size", block_size, 1, MAX_LENGTH)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


@dataclass(frozen=True)
class Extent:
    """How large a trace is.

    Attributes:
        rows: requests.
        last_arrival: ticks, of the last root.
        num_sessions: highest session + 1.
        max_blocks: ids of the request that has most.
    """

    rows: int
    last_arrival: int
    num_sessions: int
    max_blocks: int


def read_extent(path: str | Path) -> Extent:
    """Look through some columns of a trace, in bounded memory; see `read_chunks` for errors."""
    path = Path(path)
    read_block_size(path)
    found = _scan(path).select(
        rows=pl.len(),
        last_arrival=pl.max("arrival_ps"),
        num_sessions=pl.max("session") + 1,
        max_blocks=pl.max_horizontal("num_blocks", "cacheable_blocks").max(),
    )
    numbers = _decode(path, found, engine="streaming").row(0, named=True)
    if None in numbers.values():
        raise ValueError(f"{path}: found no root, must be at least 1")
    return Extent(**numbers)


def read_arrivals(path: str | Path, rows: int) -> Iterator[NDArray[np.int64]]:
    """The roots' arrivals in ticks, `rows` rows of the file at a time."""
    path = Path(path)
    scan = _scan(path).select("arrival_ps")
    for offset in itertools.count(0, rows):
        piece = _decode(path, scan.slice(offset, rows))["arrival_ps"]
        yield piece.drop_nulls().to_numpy()
        if len(piece) < rows:
            return


def _check_chunk(tape: Tape, block_size: int, latest: int) -> int:
    """The arrival of the chunk's last root; ValueError if it may not be written."""
    if tape.block_size != block_size:
        raise ValueError(f"block_size: found {tape.block_size}, must be {block_size} as before")
    validate(tape)
    arrival = tape.requests["arrival"][tape.requests["parent"] == NO_ROW]
    if len(arrival) == 0:
        raise ValueError("found no request, must be at least one")
    if arrival[0] < latest:
        raise ValueError(
            f"requests[0].arrival: found {arrival[0]}, must not be before {latest}, the last root "
            "of the chunks before"
        )
    return int(arrival[-1])


def _to_frame(tape: Tape, row: int) -> pl.DataFrame:
    """The rows of a tape whose first is number `row` of the file."""
    order = np.empty(len(tape.requests), np.int64)
    root_of = np.empty(len(tape.requests), np.int64)
    walk_trees(tape.requests, order, root_of)
    then = tape.requests["then"]
    waits = np.flatnonzero(then != NO_ROW)
    stray = waits[root_of[waits] != root_of[then[waits]]]
    if len(stray) > 0:
        raise ValueError(
            f"requests[{stray[0]}].then: found {then[stray[0]]}, must stem from the same root"
        )
    requests = tape.requests[order]
    frame = pl.DataFrame(
        {
            "row": order + row,
            "time": requests["arrival"],
            "parent": requests["parent"].astype(np.int64),
            "then": requests["then"].astype(np.int64),
            **{name: requests[name] for name in (*_COPIED, "slo_class")},
            "runs": _to_lists(tape.runs, requests),
        }
    )
    is_root = pl.col("parent") == NO_ROW
    links = [
        pl.when(pl.col(name) != NO_ROW).then(pl.col(name) + row) for name in ("parent", "then")
    ]
    return frame.with_columns(
        *links,
        arrival_ps=pl.when(is_root).then("time"),
        think_ps=pl.when(~is_root).then("time"),
    ).select(*SCHEMA)


def _to_lists(runs: NDArray[np.void], requests: NDArray[np.void]) -> pl.Series:
    """The runs of each request as a list."""
    place, num_runs = runs_of(requests)
    flat = pl.DataFrame(
        {
            "request": np.repeat(np.arange(len(requests)), num_runs),
            "start": runs["start"][place],
            "count": runs["count"][place],
        }
    )
    lists = flat.group_by("request", maintain_order=True).agg(pl.struct("start", "count"))
    every = pl.DataFrame({"request": np.arange(len(requests))})
    joined = every.join(lists, "request", "left", maintain_order="left")
    return joined["start"].fill_null([])


def _scan(path: Path) -> pl.LazyFrame:
    """The file's columns in their types; ValueError if one is missing or of another kind."""
    try:
        scan = pl.scan_parquet(path)
        found = scan.collect_schema()
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: Parquet: damaged or cut off ({_one_line(error)})") from None
    for name, wanted in SCHEMA.items():
        if name not in found:
            raise ValueError(f"{path}: {name}: missing, found columns {', '.join(found) or 'none'}")
        if found[name] != wanted:
            raise ValueError(f"{path}: {name}: found {found[name]}, must be {wanted}")
    return scan.select(*SCHEMA)


def _collect(path: Path, scan: pl.LazyFrame) -> pl.DataFrame:
    frame = _decode(path, scan)
    for name in SCHEMA:
        if name not in _MAY_BE_NULL and frame[name].null_count() > 0:
            place = int(frame[name].is_null().arg_max() or 0)
            raise ValueError(f"{path}: {name}: found null where row is {frame['row'][place]}")
    return frame


def _decode(
    path: Path, scan: pl.LazyFrame, engine: Literal["auto", "streaming"] = "auto"
) -> pl.DataFrame:
    try:
        return scan.collect(engine=engine)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: Parquet: damaged or cut off ({_one_line(error)})") from None


def _to_tape(path: Path, frame: pl.DataFrame, block_size: int) -> Tape:
    """The tape of rows that are complete in themselves."""
    frame = frame.with_row_index("position").sort("row")
    row = frame["row"].to_numpy()

    def fail(name: str, bad: NDArray[np.bool_], rule: str) -> None:
        if bad.any():
            place = int(np.argmax(bad))
            found = frame[name][place]
            raise ValueError(f"{path}: {name}: found {found} where row is {row[place]}, {rule}")

    def rows_of(name: str) -> NDArray[np.int64]:
        """The column's rows as rows of the tape."""
        linked = frame[name].is_not_null().to_numpy()
        wanted = frame[name].fill_null(0).to_numpy()
        place = np.minimum(np.searchsorted(row, wanted), len(row) - 1)
        fail(name, linked & (row[place] != wanted), "must be a row of the same tree, or null")
        return np.where(linked, place, NO_ROW)

    if len(row) == 0:
        raise ValueError(f"{path}: found 0 requests, must be at least 1")
    fail("row", np.diff(row, prepend=row[0] - 1) == 0, "must be there once")
    parent, then = rows_of("parent"), rows_of("then")
    for name, allowed in (("arrival_ps", parent == NO_ROW), ("think_ps", parent != NO_ROW)):
        rule = "roots have arrival_ps, follow-ups have think_ps, none has both"
        fail(name, frame[name].is_not_null().to_numpy() != allowed, rule)
    time = frame["arrival_ps"].fill_null(frame["think_ps"]).to_numpy()
    runs = frame["runs"].explode(empty_as_null=False).struct.unnest()
    runs_of = frame["runs"].list.len().to_numpy().astype(np.int64)
    records = np.empty(len(runs), RUN)
    for name in ("start", "count"):
        if runs[name].null_count() > 0:
            raise ValueError(f"{path}: runs: found a null {name}, must be a whole number")
        records[name] = runs[name].to_numpy()

    prompt, output = (frame[name].to_numpy() for name in ("prompt_tokens", "output_tokens"))
    requests = root_requests(time, prompt, output, runs_of)
    for name in (*_COPIED, "slo_class"):
        requests[name] = frame[name].to_numpy()
    requests["parent"], requests["then"] = parent, then
    link_rows(requests, np.argsort(frame["position"].to_numpy()))
    tape = Tape(requests, records, block_size)
    try:
        validate(tape)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return tape


def _one_line(error: Exception) -> str:
    return str(error).split("\n")[0]
