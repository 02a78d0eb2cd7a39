"""Ten thousand malformed rows over all text formats: an error names file, line and field, always.

A row is spoilt at random: keys dropped, renamed, added; values of another kind or size; lists cut,
repeated, filled with junk; the line cut off, or bytes of it replaced.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixgym.envs.workload.readers.registry import TRACE_FORMATS, read_trace

ROWS = 10_000
SESSION = {"session": "s", "agent": "main", "model": "m", "in_types": ["text"]}

GOOD: dict[str, list[Any]] = {
    "mooncake": [
        {"timestamp": 0, "input_length": 10, "output_length": 3, "hash_ids": [0, 1, 2]},
        {"timestamp": 5, "input_length": 10, "output_length": 1, "hash_ids": [0, 1, 2]},
        {"timestamp": 9.5, "input_length": 9, "output_length": 7, "hash_ids": [0, 1, 7]},
    ],
    "bailian": [
        {"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "turn": 1}
        | {"output_length": 3, "type": "text", "hash_ids": [5, 6, 7]},
        {"chat_id": 9, "parent_chat_id": 7, "timestamp": 31.5, "input_length": 64, "turn": 2}
        | {"output_length": 10, "type": "text", "hash_ids": [5, 6, 8, 9]},
    ],
    "claude_code": [
        SESSION
        | {"t": 0, "input_length": 130, "output_length": 3, "hash_runs": [[0, 2]]}
        | {"api_time": 2.5, "think_time": 0},
        SESSION
        | {"agent": "sub", "t": 9, "input_length": 64, "output_length": 3, "hash_runs": [[7, 1]]}
        | {"api_time": 2.5},
        SESSION
        | {"t": 20, "input_length": 192, "output_length": 3, "hash_runs": [[0, 2], [4, 1]]}
        | {"api_time": 2.5, "think_time": 17},
        {"session": "s", "meta": 1, "spawns": [{"marker": "sub", "t": 9, "duration_ms": 4000}]},
    ],
    "lmcache_agent": [
        {"group": "a", "session": 0, "t": 0.0, "input_length": 130, "output_length": 3}
        | {"hash_runs": [[0, 2]]},
        {"group": "a", "session": 0, "t": 4.5, "input_length": 200, "output_length": 0}
        | {"hash_runs": [[0, 2], [5, 1]]},
    ],
    "flexlb": [
        {"ts": 1_760_000_000_000, "il": 2100, "ol": 10, "pep": "p0", "bh": [0, 1]},
        {"ts": 1_760_000_000_005, "il": 700, "ol": 0, "pep": "prefill-1", "bh": []},
        {"ts": 1_760_000_000_009, "il": 3072, "ol": 10, "pep": "p0", "bh": [0, 1, 4]},
    ],
    "dynamo_agent": [
        {"t_ms": 0, "session": 1, "input_tokens": 40, "output_tokens": 3, "total_time_ms": 9.5}
        | {"block_size": 16, "hash_ids": [0, 1, 2]},
        {"t_ms": 50, "session": 1, "input_tokens": 50, "output_tokens": 3, "total_time_ms": 9.5}
        | {"block_size": 16, "hash_ids": [0, 1, 3, 4]},
    ],
    "azure": [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
    ],
}

NAN, INFINITY = float("nan"), float("inf")
JUNK: list[Any] = [
    *(None, True, False, -1, 0, 1, 3, 1.5, -0.0, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, 1e308),
    *(NAN, INFINITY, -INFINITY, "", "x", "7", "\ud800", "\0", [], [None], {}, {"a": 1}, [0]),
    *([1.0], [[0]], [[0, 0]], [[0, -1]], [[-1, 1]], [[0, 2**62]], [[2**62, 1]], [["0", 1]], [True]),
]
BYTES = [b"\xff", b"\xed\xa0\x80", b"\x00", b"{", b"}", b"[", b'"', b",", b"9", b"-", b"\\", b"e9"]


def _pick(rng: np.random.Generator, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _spoil_value(rng: np.random.Generator, value: Any) -> Any:
    """`value`, or something in it, replaced by what does not belong there."""
    if isinstance(value, (list, dict)) and value and rng.random() < 0.7:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        spoilt = value.copy()
        key = _pick(rng, keys)
        what = rng.integers(4)
        if what == 0:
            del spoilt[key]
        elif what == 1 and isinstance(spoilt, list):
            spoilt.insert(key, value[key])
        else:
            spoilt[key] = _spoil_value(rng, value[key])
        return spoilt
    if type(value) in (int, float) and rng.random() < 0.3:
        return value * _pick(rng, [-1, 0, 1.5, 2, 10**6, 10**30])
    return _pick(rng, JUNK)


def _spoil(rng: np.random.Generator, row: Any) -> bytes:
    """The line of `row`, spoilt."""
    what = rng.random()
    if isinstance(row, dict) and what < 0.7:
        row = _spoil_value(rng, row) if rng.random() < 0.8 else dict(row)
        if isinstance(row, dict) and row and rng.random() < 0.2:
            key = _pick(rng, list(row))
            row = {k + "s" if k == key else k: v for k, v in row.items()}
        if isinstance(row, dict) and rng.random() < 0.2:
            row = {"extra": _pick(rng, JUNK)} | row
    elif isinstance(row, str) and what < 0.7:
        cells = row.split(",")
        cells[int(rng.integers(len(cells)))] = str(_pick(rng, JUNK))
        row = ",".join(cells[: int(rng.integers(1, 5))])
    text = row if isinstance(row, str) else json.dumps(row)
    line = text.encode("utf-8", "surrogatepass")
    if what >= 0.7:
        place = int(rng.integers(len(line)))
        if what < 0.8:
            return line[:place]
        if what < 0.97:
            return line[:place] + _pick(rng, BYTES) + line[place + 1 :]
        return _pick(rng, [b"[" * 5000, b"{}", b"[]", b"3", b"null", b"9" * 5000, line + line])
    return line


@pytest.mark.parametrize("name", GOOD)
def test_malformed_rows_are_named(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(len(name))
    path = tmp_path / "trace.txt"
    good = [
        (row if isinstance(row, str) else json.dumps(row)).encode("utf-8") for row in GOOD[name]
    ]
    place = re.compile(rf"{re.escape(str(path))}:[1-{len(good)}]: ")
    keys = {key for row in GOOD[name] if isinstance(row, dict) for key in row}
    fields = re.compile(
        "|".join(
            [
                *map(re.escape, keys | TRACE_FORMATS[name].keys),
                *("duration_ms", "its time is"),
                "not JSON, or cut off|not JSON of a request|must be a JSON object|not UTF-8",
                r"found \d+ cells, must be 3",
            ]
        )
    )
    count = -(-ROWS // len(GOOD))
    refused = 0
    for trial in range(count):
        lines = good.copy()
        target = int(rng.integers(len(lines)))
        lines[target] = _spoil(rng, GOOD[name][target])
        path.unlink(missing_ok=True)  # some file systems write truncated files out at once
        path.write_bytes(b"\n".join(lines) + b"\n")
        try:
            read_trace(path, None if target > 0 and trial % 5 == 0 else name)
        except ValueError as error:
            message = str(error)
            assert place.match(message), (lines[target], message)
            assert fields.search(message), (lines[target], message)
            assert "\n" not in message
            assert len(message) < 1_500
            refused += 1
    assert refused > 0.6 * count


def test_all_text_formats_are_tried() -> None:
    assert [name for name, entry in TRACE_FORMATS.items() if entry.keys] == list(GOOD)
