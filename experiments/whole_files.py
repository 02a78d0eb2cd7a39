"""Files that are there whole or not at all, whenever the process that writes them is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Another path to write to; what is there in the end takes the place of `path` at once."""
    unfinished = path.with_suffix(".unfinished")
    yield unfinished
    os.replace(unfinished, path)
