"""Tensors and facts in one file, which can run no code: safetensors with JSON in its metadata."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prefixgym.experiments.whole_files import replaced

_FACTS = "facts"


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Replace the file; `facts` is JSON, NaN and infinities allowed."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with replaced(path) as partial:
        save_file(whole, partial, {_FACTS: json.dumps(facts)})


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What was written, None if there is no file.

    Raises:
        ValueError: the file is damaged, or another kind of file.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            return {n: file.get_tensor(n) for n in names}, json.loads(file.metadata()[_FACTS])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a checkpoint of a training: {error}") from None
