"""The `[workload]` table of a scenario: which generator, and that generator's own parameters.

The parameters are the fields of the generator's class, under their names, so that a scenario can
say whatever the class can. A field without a default that may be None is None if it is left out.

Lengths (whole numbers of tokens, turns, …) and times (seconds) are distributions, in one of these
forms (`workload/distributions.py` says what each means):

    output_tokens = 256                                         # always
    output_tokens = [100, 400]                                  # uniform
    output_tokens = { median = 250, sigma = 0.9, high = 2000 }  # lognormal; also low
    think_time = { median = 45.0, sigma = 1.0 }                 # times need no high
    turns = { mean = 4.0, high = 64 }                           # geometric; lengths only
    # Empirical, by quantiles; without levels these are evenly spaced.
    output_tokens = { quantiles = [1, 35, 215, 855, 4000], levels = [0, 0.1, 0.5, 0.9, 1] }
    # A mixture, of any of these forms: a typed line, or now and then a pasted document.
    user_tokens = { weights = [7, 3], of = [[1, 60], { median = 4000, sigma = 1, high = 9000 }] }

The generator `trace` replays a file in any format of `readers/registry.py`, at whatever speed gives
the wanted rate. Its keys: `path`; `format`, where the first row does not tell it;
`trace_block_size`, tokens in a block of the file, where its rows leave that open; the options of
the format's reader; `spread = false` to leave stamps that were recorded in batches as they are.
"""

import dataclasses
import functools
import os
import typing
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from prefixgym.envs.clock import to_seconds
from prefixgym.envs.scenarios.arrivals import build_arrivals
from prefixgym.envs.workload.generators.agentic import Agentic
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.generators.clients import ClientMix
from prefixgym.envs.workload.generators.documents import LongDocuments
from prefixgym.envs.workload.generators.retrieval import RetrievedPassages
from prefixgym.envs.workload.generators.servegen import ServeGenClients
from prefixgym.envs.workload.generators.shared_prompts import SharedPrompts
from prefixgym.envs.workload.generators.unique_prompts import UniquePrompts
from prefixgym.envs.workload.readers import native
from prefixgym.envs.workload.readers import registry as readers
from prefixgym.envs.workload.streamed_trace import StreamedTrace
from prefixgym.envs.workload.tape import NO_ROW, Tape, Workload
from prefixgym.envs.workload.trace import TraceWorkload

GENERATORS: dict[str, Any] = {
    "shared-prompts": SharedPrompts,
    "chat": MultiTurnChat,
    "agentic": Agentic,
    "long-documents": LongDocuments,
    "retrieval": RetrievedPassages,
    "unique-prompts": UniquePrompts,
    "clients": ClientMix,
    "servegen": ServeGenClients,
}

SET_BY_SCENARIO = ("num_requests", "arrivals", "rate", "block_size")


def build_workload(
    generator: str,
    parameters: Mapping[str, Any],
    *,
    num_requests: int | None,
    rate: float,
    arrivals: Mapping[str, Any] | None,
    block_size: int,
) -> Workload:
    """A workload as a scenario describes it.

    Args:
        generator: a key of `GENERATORS`, or "trace".
        parameters: the other keys of the generator, as TOML gives them.
        num_requests: requests of an episode; None, for a trace only, plays all of it.
        rate: requests/s.
        arrivals: how they come, see `build_arrivals`; None: Poisson, or as a trace or the clients
            of a pool have them.
        block_size: tokens in a block.

    Raises:
        ValueError: a key that the generator lacks, one it needs, or a value it refuses.
    """
    if generator == "trace":
        if arrivals is not None:
            raise ValueError("arrivals: found some, a trace has its own")
        return _build_trace(parameters, num_requests, rate, block_size)
    if num_requests is None:
        raise ValueError(f"num_requests: missing, {generator} needs it")
    cls = GENERATORS[generator]
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in SET_BY_SCENARIO}
    _refuse_others(generator, parameters, fields)
    values: dict[str, Any] = {}
    for key, field in fields.items():
        if key in parameters:
            values[key] = _from_toml(key, parameters[key], _tables(hints[key]))
        elif field.default is dataclasses.MISSING:
            if type(None) not in typing.get_args(hints[key]):
                raise ValueError(f"{key}: missing, {generator} needs it")
            values[key] = None
    if "arrivals" in hints:
        values["arrivals"] = build_arrivals(arrivals or {}, rate)
    elif arrivals is None:
        values["rate"] = rate
    else:
        raise ValueError(f"arrivals: found some, {generator} has its own")
    workload: Workload = cls(num_requests=num_requests, block_size=block_size, **values)
    return workload


def trace_rate(trace: Tape) -> float:
    """Requests/s of a trace as recorded: all requests over the time in which its roots arrive.

    Raises:
        ValueError: all roots arrive at once.
    """
    roots = trace.requests["parent"] == NO_ROW
    return _rate(len(trace.requests), int(trace.requests["arrival"][roots].max()))


def _rate(requests: int, last_arrival: int) -> float:
    span = float(to_seconds(last_arrival))
    if span == 0:
        raise ValueError(
            "path: all sessions of the trace start at once, it has no rate (where its format has "
            "the option session_rate, that sets one)"
        )
    return requests / span


def recorded_rate(path: str | Path, **options: Any) -> float:
    """`trace_rate` of a file; options as for `read_trace`, errors as for both."""
    if can_stream(path, **options):
        extent = _extent(path)
        return _rate(extent.rows, extent.last_arrival)
    return trace_rate(read_trace(path, **options))


def recorded_block_size(path: str | Path, **options: Any) -> int:
    """Tokens in a block of a file; options and errors as for `read_trace`."""
    if can_stream(path, **options):
        return native.read_block_size(path)
    return read_trace(path, **options).block_size


def can_stream(path: str | Path, **options: Any) -> bool:
    """Whether the trace can be read while it is played: it is native, and wanted as it is."""
    as_it_is = options.keys() <= {"format"} and options.get("format", native.NAME) == native.NAME
    return as_it_is and native.is_native(path)


def _extent(path: str | Path) -> native.Extent:
    status = os.stat(path)
    return _read_extent(str(path), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _read_extent(path: str, modified: int, size: int) -> native.Extent:
    return native.read_extent(path)


def read_trace(path: str | Path, block_size: int | None = None, **options: Any) -> Tape:
    """The trace in a file, in any format; read once, as long as the file does not change.

    Args:
        path: the file.
        block_size: tokens in a block of the tape; None: the file's.
        options: the other ones of `readers.registry.read_trace`.

    Raises:
        ValueError: a malformed line, or an option that does not fit the file.
        OSError: the file cannot be opened.
    """
    for key, value in options.items():
        if isinstance(value, (list, dict)):
            raise ValueError(f"{key}: found {value!r}, must be a single value")
    status = os.stat(path)
    given = tuple(sorted(options.items()))
    return _read_trace(str(path), block_size, given, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4)
def _read_trace(
    path: str,
    block_size: int | None,
    options: tuple[tuple[str, Any], ...],
    modified: int,
    size: int,
) -> Tape:
    return readers.read_trace(path, block_size=block_size, **dict(options))


def trace_of(parameters: Mapping[str, Any], block_size: int) -> Tape:
    """The recorded requests that the keys of a `trace` workload name; see `read_trace`."""
    path, options = _path_and_options(parameters)
    return read_trace(path, block_size, **options)


def _path_and_options(parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if "path" not in parameters:
        raise ValueError("path: missing, trace needs it")
    if not isinstance(parameters["path"], str):
        raise ValueError(f"path: found {parameters['path']!r}, must be a string")
    options = {key: value for key, value in parameters.items() if key not in ("path", "spread")}
    return parameters["path"], options


def _build_trace(
    parameters: Mapping[str, Any], num_requests: int | None, rate: float, block_size: int
) -> Workload:
    path, options = _path_and_options(parameters)
    whole = num_requests is None and can_stream(path, **options)
    if whole and native.read_block_size(path) == block_size:
        return StreamedTrace(
            Path(path),
            _extent(path),
            functools.partial(trace_of, parameters, block_size),
            rate / recorded_rate(path),
            parameters.get("spread", True),
        )
    trace = trace_of(parameters, block_size)
    return TraceWorkload(
        trace, num_requests, rate / trace_rate(trace), parameters.get("spread", True)
    )


def _refuse_others(generator: str, found: Iterable[str], allowed: Collection[str]) -> None:
    for key in found:
        if key not in allowed:
            raise ValueError(f"{key}: no such key of {generator}, allowed: {', '.join(allowed)}")


def _tables(hint: Any) -> tuple[Any, ...]:
    """The classes that a table may describe in a field with this type hint."""
    return tuple(part for part in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(part))


def _from_toml(key: str, value: Any, tables: tuple[Any, ...]) -> Any:
    """Lists and tables become what the generators take; everything else is left as it is."""
    if isinstance(value, list):
        return tuple(
            _from_toml(f"{key}[{index}]", item, tables) for index, item in enumerate(value)
        )
    if not isinstance(value, dict):
        return value
    for table in tables:
        names = {f.name: f for f in dataclasses.fields(table)}
        needed = {name for name, f in names.items() if f.default is dataclasses.MISSING}
        if needed <= value.keys() <= names.keys():
            # A mixture is of what the field may be itself.
            fields = {k: _from_toml(f"{key}.{k}", item, tables) for k, item in value.items()}
            try:
                return table(**fields)
            except ValueError as error:
                raise ValueError(f"{key}.{error}") from None
    allowed = " or ".join(", ".join(f.name for f in dataclasses.fields(t)) for t in tables)
    raise ValueError(
        f"{key}: found a table with {', '.join(value)}, allowed: {allowed or 'no table'}"
    )
