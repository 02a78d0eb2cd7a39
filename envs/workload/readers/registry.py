"""The trace formats by name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prefixgym.envs.workload.readers.mooncake import read_mooncake
from prefixgym.envs.workload.tape import Tape


@dataclass(frozen=True)
class TraceFormat:
    """One format of recorded traces.

    Attributes:
        name: as `read_trace` and `prefixgym trace` take it.
        description: where it comes from and what it holds, in a line.
        last_block: whether a partial last block has an id ("ceil") or not ("floor").
        read: reads a file.
    """

    name: str
    description: str
    last_block: Literal["ceil", "floor"]
    read: Callable[..., Tape]


TRACE_FORMATS: dict[str, TraceFormat] = {
    entry.name: entry
    for entry in (
        TraceFormat(
            "mooncake",
            "Mooncake's published traces: chained ids, roots only",
            "ceil",
            read_mooncake,
        ),
    )
}


def read_trace(
    path: str | Path, block_size: int | None = None, trace_block_size: int | None = None
) -> Tape:
    """The trace in a file."""
    return read_mooncake(path, trace_block_size=trace_block_size, block_size=block_size)
