"""The trace formats by name, and the one function that reads a file in any of them.

A further format is a module beside this one with its reader, an entry in `TRACE_FORMATS`, and one
in `blocks.BLOCKS` if it names blocks.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefixgym.envs.workload.readers import azure, native
from prefixgym.envs.workload.readers.bailian import read_bailian
from prefixgym.envs.workload.readers.blocks import BLOCKS
from prefixgym.envs.workload.readers.claude_code import read_claude_code
from prefixgym.envs.workload.readers.dynamo_agent import read_dynamo_agent
from prefixgym.envs.workload.readers.flexlb import read_flexlb
from prefixgym.envs.workload.readers.lmcache_agent import read_lmcache_agent
from prefixgym.envs.workload.readers.mooncake import read_mooncake
from prefixgym.envs.workload.readers.rows import lines, listed
from prefixgym.envs.workload.tape import Tape

_BLOCK_SIZES = ("block_size", "trace_block_size")


@dataclass(frozen=True)
class TraceFormat:
    """One format of recorded traces.

    Attributes:
        name: as `read_trace` and `prefixgym trace` take it.
        description: where it comes from and what it holds, in a line.
        keys: those of a first row (columns of a first line) that tell the format.
        read: reads a file; its keyword arguments are the options of the format.
    """

    name: str
    description: str
    keys: frozenset[str]
    read: Callable[..., Tape]

    @property
    def block_convention(self) -> str:
        """Tokens in a block of the file, and whether a partial last one has an id (ceil)."""
        if self.name not in BLOCKS:
            return "as stated" if self.name == native.NAME else "no ids"
        blocks = BLOCKS[self.name]
        return f"{blocks.size or 'any'}, {blocks.last_block}"

    @property
    def options(self) -> dict[str, object]:
        """Options of this format besides the block sizes, with their defaults."""
        return {
            name: parameter.default
            for name, parameter in inspect.signature(self.read).parameters.items()
            if name != "path" and name not in _BLOCK_SIZES
        }


def _format(name: str, description: str, keys: str, read: Callable[..., Tape]) -> TraceFormat:
    return TraceFormat(name, description, frozenset(keys.split()), read)


TRACE_FORMATS: dict[str, TraceFormat] = {
    entry.name: entry
    for entry in (
        _format(
            native.NAME,
            "prefixgym's own, a Parquet file, docs/trace-format.md: all that a workload can say",
            "",
            native.read,
        ),
        _format(
            "mooncake",
            "Mooncake (FAST'25) and whoever took its format over: roots, no sessions",
            "timestamp input_length output_length hash_ids",
            read_mooncake,
        ),
        _format(
            "bailian",
            "Alibaba's Bailian (ATC'25): chats with their turns",
            "chat_id parent_chat_id timestamp input_length output_length hash_ids",
            read_bailian,
        ),
        _format(
            "claude_code",
            "Claude Code sessions (WEKA): tool calls, think times, parallel sub-agents",
            "session agent t input_length output_length hash_runs",
            read_claude_code,
        ),
        _format(
            "lmcache_agent",
            "LMCache's agent benchmarks: sessions, lengths estimated from characters",
            "group session t input_length output_length hash_runs",
            read_lmcache_agent,
        ),
        _format(
            "flexlb",
            "FlexLB's request logs: roots, no sessions",
            "ts il ol bh",
            read_flexlb,
        ),
        _format(
            "dynamo_agent",
            "Dynamo's recorded agent calls: sessions with measured service times",
            "t_ms session input_tokens output_tokens block_size hash_ids",
            read_dynamo_agent,
        ),
        _format(
            "azure",
            "Azure's LLM inference traces: arrivals and lengths; prefixes by a model (groups=…)",
            " ".join(azure.COLUMNS),
            azure.read_azure,
        ),
    )
}


def detect_format(path: str | Path) -> TraceFormat:
    """The format of a file, by its first row; of several that fit, the one that asks for most.

    Raises:
        ValueError: no format or several fit, or there is no row.
        OSError: the file cannot be opened.
    """
    path = Path(path)
    if native.is_native(path):
        return TRACE_FORMATS[native.NAME]
    number, found = _first_keys(path)
    fitting = [f for f in TRACE_FORMATS.values() if f.keys and f.keys <= set(found)]
    fitting = [f for f in fitting if not any(f.keys < other.keys for other in fitting)]
    if len(fitting) == 1:
        return fitting[0]
    known = "; ".join(f"{f.name} ({', '.join(sorted(f.keys))})" for f in fitting or _with_keys())
    what = "several formats fit, state which" if fitting else "no format fits, the formats are"
    raise ValueError(f"{path}:{number}: found keys {listed(found)}: {what}: {known}")


def _with_keys() -> list[TraceFormat]:
    return [f for f in TRACE_FORMATS.values() if f.keys]


def _first_keys(path: Path) -> tuple[int, list[str]]:
    """Line and keys of the first JSON object, or of a header of columns."""
    for number, line in lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if line.startswith("{"):
                raise ValueError(
                    f"{path}:{number}: not JSON, or cut off: found {line[:60]!r}"
                ) from None
            return number, [cell.strip() for cell in line.split(",")]
        return number, list(row) if isinstance(row, dict) else []
    raise ValueError(f"{path}: found 0 rows, must be at least 1")


def format_called(name: str) -> TraceFormat:
    """The format of that name; ValueError lists the names there are."""
    if name not in TRACE_FORMATS:
        raise ValueError(f"format: found {name!r}, must be one of {', '.join(TRACE_FORMATS)}")
    return TRACE_FORMATS[name]


def read_trace(
    path: str | Path,
    format: str | None = None,
    block_size: int | None = None,
    trace_block_size: int | None = None,
    **options: Any,
) -> Tape:
    """Read a trace file in any format of `TRACE_FORMATS`.

    Args:
        path: the file, in the text formats perhaps .gz.
        format: its name; None tells it by the first row, see `detect_format`.
        block_size: tokens in a block of the tape, a divisor of the file's; None: the file's.
        trace_block_size: tokens in a block of the file, where it or its format leaves that open.
        options: those of the format, see its reader; a key it lacks is an error.

    Raises:
        ValueError: names file, line and key of the first malformed row, what was found and what is
            allowed; or the argument that does not fit.
        OSError: the file cannot be opened.
    """
    chosen = detect_format(path) if format is None else format_called(format)
    given = dict(options)
    for key, value in zip(_BLOCK_SIZES, (block_size, trace_block_size), strict=True):
        if value is not None:
            given[key] = value
    allowed = [*inspect.signature(chosen.read).parameters][1:]
    for key in given:
        if key not in allowed:
            raise ValueError(
                f"{key}: no such option of the format {chosen.name}, allowed: {', '.join(allowed)}"
            )
    return chosen.read(path, **given)
