"""Trace files made in a test."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Write = Callable[[Sequence[Any]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes rows as JSON lines (a string is a line as it stands); returns the file."""

    def write_rows(rows: Sequence[Any]) -> Path:
        path = tmp_path / "trace.jsonl"
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    return write_rows
