"""Routers as they are written on the command line: NAME, or NAME:KEY=VALUE,…."""

import dataclasses
from pathlib import Path

from prefixgym.experiments.paper.study import Arm
from prefixgym.experiments.training.judge import described_router

_NAMELESS = ("best", "model", "weights")
"""Stems of files that are called alike in every run's folder, so that the folder's name counts."""


def described(text: str) -> Arm:
    """The router that `text` describes, with all its parameters, under a label of its own.

    A learned router's parameters include the checksum of its weights: if the file changes while
    others play, its cells fail instead of mixing two routers.

    Raises:
        ValueError: unknown router or parameter, or a value that is not allowed.
    """
    router = described_router(text)
    return Arm(label_of(text), router.name, dataclasses.asdict(router))


def label_of(text: str) -> str:
    """The text, with the path of a weights file shortened to the name of its run."""
    for before in ("learned:", "weights="):
        start, found, path = text.rpartition(before)
        if found and path.endswith(".safetensors"):
            return f"{start.rstrip(':') or 'learned'}:{_run_of(Path(path))}"
    return text


def _run_of(path: Path) -> str:
    return path.parent.name if path.stem in _NAMELESS and path.parent.name else path.stem
