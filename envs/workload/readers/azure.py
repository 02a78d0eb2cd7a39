"""Reader of Azure's LLM inference traces: arrivals and lengths, to which prefixes are attached.

CSV with the columns `TIMESTAMP` (YYYY-MM-DD hh:mm:ss.fffffff), `ContextTokens`, `GeneratedTokens`
(Patel et al., ISCA'24; `traces.md` §2). The format says nothing about what prompts share, so a
model of that is an argument here: whatever hits a replay shows come from it.
"""

import re
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER, TICKS_PER_SECOND
from prefixgym.envs.workload.chains import ceil_div, exclusive_sum, two_part_tape
from prefixgym.envs.workload.fields import check_number, check_whole
from prefixgym.envs.workload.lengths import MAX_LENGTH
from prefixgym.envs.workload.popularity import choose, zipf_weights
from prefixgym.envs.workload.readers.rows import parse_lines, shown
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.tape import Tape

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,12}))?(?:\+00:00)?", re.ASCII)
_START = datetime(1970, 1, 1)


def read_azure(
    path: str | Path,
    *,
    block_size: int | None = None,
    groups: int = 0,
    system_tokens: int = 0,
    zipf: float = 0.0,
    seed: int = 0,
) -> Tape:
    """Read an Azure trace as a tape of roots, each a session of its own; the first arrives at 0.

    The prefix model: every request belongs to one of `groups` groups, the k-th most popular with
    weight k^-zipf, and begins with its group's system prompt of `system_tokens` tokens, or as much
    of it as is shorter than the request's recorded prompt. Nothing else is shared. With no groups
    nothing is at all. Recorded lengths stay as they are.

    Args:
        path: a .csv file, or .csv.gz.
        block_size: tokens in a block of the tape; None: 16.
        groups: groups of requests with a system prompt in common; 1: all share one.
        system_tokens: length of each system prompt.
        zipf: exponent of the groups' popularity; 0 is uniform.
        seed: names the draw of groups, ≥ 0.

    Raises:
        ValueError: names file, line and column of the first malformed row, what was found and what
            is allowed; or the argument that does not fit.
        OSError: the file cannot be opened.
    """
    size = check_whole("block_size", 16 if block_size is None else block_size, 1, MAX_LENGTH)
    check_whole("groups", groups, 0, MAX_LENGTH)
    check_whole("system_tokens", system_tokens, 0, MAX_LENGTH)
    check_number("zipf", zipf, 0)
    check_whole("seed", seed, 0, 2**63 - 1)
    if (groups == 0) != (system_tokens == 0):
        raise ValueError(
            f"groups: found {groups} with system_tokens {system_tokens}, must be both 0 or neither"
        )
    time, prompt, output = _read_columns(Path(path))
    order = np.argsort(time, kind="stable")
    prompt, output = prompt[order], output[order]

    (draws,) = streams(seed, 1)
    head_blocks = np.zeros(len(prompt), np.int64)
    head_start = np.zeros(len(prompt), np.int64)
    if groups > 0:
        # The tail is never empty: at least the last token is the request's own.
        head_blocks = np.minimum(system_tokens, prompt - 1) // size
        head_start = choose(zipf_weights(groups, zipf), draws, len(prompt)) * (
            system_tokens // size
        )
    tail_start = groups * (system_tokens // size) + exclusive_sum(
        ceil_div(prompt, size) - head_blocks
    )
    return two_part_tape(
        block_size=size,
        arrival=time[order] - time.min(),
        prompt_tokens=prompt,
        output_tokens=output,
        cacheable_blocks=prompt // size,
        head_start=head_start,
        head_blocks=head_blocks,
        tail_start=tail_start,
    )


def _read_columns(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Ticks since the first stamp, prompt tokens and output tokens, [R] each, in file order."""
    header: list[str] = []

    def parse(number: int, line: str) -> tuple[int, int, int, int] | None:
        cells = [cell.strip() for cell in line.split(",")]
        if not header:
            header.extend(cells)
            for column in COLUMNS:
                if header.count(column) != 1:
                    raise ValueError(f"{column}: found columns {shown(line)}, must be there once")
            return None
        if len(cells) != len(header):
            raise ValueError(f"found {len(cells)} cells, must be {len(header)}, one a column")
        stamp, prompt, output = (cells[header.index(column)] for column in COLUMNS)
        return (
            number,
            _ticks(stamp),
            _tokens("ContextTokens", prompt, 1),
            max(1, _tokens("GeneratedTokens", output, 0)),
        )

    rows = [row for row in parse_lines(path, parse) if row is not None]
    if not rows:
        raise ValueError(f"{path}: found 0 requests, must be at least 1")
    first = min(time for _, time, _, _ in rows)
    for number, time, _, _ in rows:
        if time - first > NEVER:
            raise ValueError(
                f"{path}:{number}: TIMESTAMP: found {(time - first) / TICKS_PER_SECOND:g} s after "
                f"the earliest, must be at most {NEVER / TICKS_PER_SECOND:g} s"
            )
    table = np.array([(time - first, *lengths) for _, time, *lengths in rows], np.int64)
    return table[:, 0], table[:, 1], table[:, 2]


def _ticks(stamp: str) -> int:
    """Ticks since 1970."""
    match = _STAMP.fullmatch(stamp)
    try:
        if match is None:
            raise ValueError
        since = datetime.fromisoformat(match[1]) - _START
    except ValueError:
        raise ValueError(
            f"TIMESTAMP: found {shown(stamp)}, must be a time YYYY-MM-DD hh:mm:ss.fffffff"
        ) from None
    seconds = since.days * 86400 + since.seconds
    return seconds * TICKS_PER_SECOND + int((match[2] or "").ljust(12, "0"))


def _tokens(column: str, cell: str, least: int) -> int:
    if not (cell.isascii() and cell.lstrip("-").isdigit() and len(cell) < 20):
        raise ValueError(f"{column}: found {shown(cell)}, must be a whole number")
    return check_whole(column, int(cell), least, MAX_LENGTH)
