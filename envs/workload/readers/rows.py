"""Lines of a trace file, and checked fields of the JSON objects on them.

Every error names file, line and field, what was found and what is allowed.
"""

import gzip
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from prefixgym.envs.clock import NEVER
from prefixgym.envs.workload.lengths import MAX_LENGTH

T = TypeVar("T")

_MOST_ID = 2**53
_SHOWN = 60  # characters of what was found


def lines(path: Path) -> Iterator[tuple[int, str]]:
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


def parse_lines(path: Path, parse: Callable[[int, str], T]) -> Iterator[T]:
    """`parse(number, line)` of every line; its ValueErrors get the place in front."""
    for number, line in lines(path):
        try:
            parsed = parse(number, line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        yield parsed


class Row:
    """The JSON object on one line; each accessor raises ValueError if its field is not as asked."""

    def __init__(self, line: str) -> None:
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"not JSON, or cut off ({error.msg}, column {error.colno}): found {line[:60]!r}"
            ) from error
        except (ValueError, RecursionError) as error:  # a number or a nesting beyond the limits
            raise ValueError(f"not JSON of a request ({error}): found {line[:60]!r}") from error
        if not isinstance(fields, dict):
            raise ValueError(f"found {line[:60]!r}, must be a JSON object")
        self.fields: dict[str, object] = fields

    def __contains__(self, key: str) -> bool:
        return key in self.fields

    def __getitem__(self, key: str) -> object:
        if key not in self.fields:
            raise ValueError(f"{key}: missing, found keys {listed(self.fields)}")
        return self.fields[key]

    def whole(self, key: str, least: int, most: int = MAX_LENGTH) -> int:
        """A whole number in least … most."""
        return _whole(key, self[key], least, most)

    def name(self, key: str) -> str | int:
        """A string or a whole number that stands for something."""
        value = self[key]
        if type(value) is not int and not isinstance(value, str):
            raise ValueError(f"{key}: found {shown(value)}, must be a string or a whole number")
        return value

    def ticks(self, key: str, unit: int, symbol: str, most: int = NEVER) -> int:
        """A time ≥ 0, in the file a number of `unit` ticks each, called `symbol`; as ticks."""
        return to_whole_ticks(key, self[key], unit, symbol, most)

    def ids(self, key: str) -> list[int]:
        """A list of block ids."""
        found = self[key]
        if not isinstance(found, list):
            raise ValueError(f"{key}: found {shown(found)}, must be a list of ids")
        for place, block in enumerate(found):
            if type(block) is not int or not 0 <= block <= _MOST_ID:
                _whole(f"{key}[{place}]", block, 0, _MOST_ID)
        return found

    def runs(self, key: str) -> list[tuple[int, int]]:
        """A list of pairs [start, count]: the block ids start … start + count - 1."""
        found = self[key]
        if not isinstance(found, list):
            raise ValueError(f"{key}: found {shown(found)}, must be a list of [start, count]")
        runs = []
        for place, run in enumerate(found):
            if not isinstance(run, list) or len(run) != 2:
                raise ValueError(f"{key}[{place}]: found {shown(run)}, must be [start, count]")
            start, count = run
            good = type(start) is int and type(count) is int
            if not (good and 0 <= start <= _MOST_ID and 1 <= count <= MAX_LENGTH):
                _whole(f"{key}[{place}]: start", start, 0, _MOST_ID)
                _whole(f"{key}[{place}]: count", count, 1, MAX_LENGTH)
            runs.append((start, count))
        return runs


def _whole(key: str, value: object, least: int, most: int) -> int:
    if type(value) is not int:
        raise ValueError(f"{key}: found {shown(value)}, must be a whole number")
    if not least <= value <= most:
        raise ValueError(f"{key}: found {shown(value)}, must be between {least} and {most}")
    return value


def to_whole_ticks(key: str, value: object, unit: int, symbol: str, most: int = NEVER) -> int:
    """A time ≥ 0 of `unit` ticks each as the nearest whole ticks; ValueError if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key}: found {shown(value)}, must be a number ({symbol})")
    if not 0 <= value <= most // unit:  # neither is nan
        raise ValueError(
            f"{key}: found {shown(value)}, must be between 0 and {most // unit} {symbol}"
        )
    # A float of the size of a Unix time times `unit` would be off by many ticks.
    numerator, denominator = value.as_integer_ratio()
    return (2 * numerator * unit + denominator) // (2 * denominator)


def shown(value: object) -> str:
    """`value` for a message, cut off where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def listed(names: Iterable[str]) -> str:
    """Keys or columns for a message, the first twenty."""
    first = [name if name.isprintable() else shown(name) for name in itertools.islice(names, 20)]
    return ", ".join(name[:_SHOWN] for name in first) or "none"
