"""The files of a training: what was asked for, where it stands, what it has found.

`config.toml` says what is trained, `checkpoint.safetensors` all that is needed to go on,
`curve.jsonl` an object for each update, `best.safetensors` the best weights so far. Each is
replaced as a whole, so that a kill at any moment leaves a folder that can be gone on with.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prefixgym.agents.weights import Card, Scorer, save_weights
from prefixgym.experiments.checkpoint_file import read_checkpoint, write_checkpoint
from prefixgym.experiments.training.config import Training
from prefixgym.experiments.whole_files import replaced


class RunFolder:
    """One training's folder, made if it does not exist.

    Args:
        path: the folder.
        training: what is trained.
        algorithm: by what.

    Raises:
        ValueError: the folder holds another training.
    """

    def __init__(self, path: Path, training: Training, algorithm: str) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        text = f'algorithm = "{algorithm}"\n{training.toml()}'
        config = path / "config.toml"
        if config.exists():
            there, here = tomllib.loads(config.read_text("utf-8")), tomllib.loads(text)
            differing = sorted(k for k in there | here if there.get(k) != here.get(k))
            if differing:
                raise ValueError(
                    f"{config}: holds another training, with other {', '.join(differing)}: choose "
                    "another --name, or start afresh with --fresh"
                )
        config.write_text(text, encoding="utf-8")

    @property
    def best(self) -> Path:
        """Where the best weights are."""
        return self.path / "best.safetensors"

    @property
    def checkpoint(self) -> Path:
        """Where what is needed to go on is."""
        return self.path / "checkpoint.safetensors"

    def save_best(self, scorer: Scorer, card: Card) -> None:
        """Replace the best weights."""
        with replaced(self.best) as partial:
            save_weights(partial, scorer, card)

    def save_checkpoint(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the checkpoint; `facts` is JSON."""
        write_checkpoint(self.checkpoint, tensors, facts)

    def load_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What was saved last, None if nothing was.

        Raises:
            ValueError: the file is damaged.
        """
        return read_checkpoint(self.checkpoint)

    def curve(self) -> list[dict[str, Any]]:
        """What was noted of each update so far."""
        path = self.path / "curve.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]

    def cut_curve(self, updates: int) -> None:
        """Forget what was noted after so many updates: it will be done again."""
        kept = [json.dumps(row) + "\n" for row in self.curve()[:updates]]
        (self.path / "curve.jsonl").write_text("".join(kept), encoding="utf-8")

    def note(self, row: Mapping[str, Any]) -> None:
        """Add one update to the curve."""
        with (self.path / "curve.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def prefixed(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors, or arrays, under names that start with `prefix.`."""
    return {f"{prefix}.{name}": torch.as_tensor(value) for name, value in tensors.items()}


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that `prefixed` named so, by their own names."""
    start = f"{prefix}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
