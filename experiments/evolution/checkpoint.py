"""Where a search stands, on disk: a process that is killed loses one generation at most.

CMA-ES is deterministic but for its random numbers, which `search` draws from the seed and the
generation, so a search that goes on from its checkpoint finds what it would have found. It also
goes on from what the file says where it is not interrupted: `cmaes` rounds its covariance to a
symmetric one when it gives its state away.

That state is what `cmaes` hands to pickle and takes back from it: arrays and numbers, of which the
arrays are kept as tensors and the numbers as JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cmaes import CMA, SepCMA
from numpy.typing import NDArray
from torch import Tensor

from prefixgym.experiments.checkpoint_file import read_checkpoint, write_checkpoint
from prefixgym.experiments.training.judge import Verdict

Row = dict[str, float]
"""Figures by name, as TensorBoard shows them."""

_METHODS = {"CMA": CMA, "SepCMA": SepCMA}


@dataclass
class Candidate:
    """Members that were judged on validation episodes.

    Attributes:
        member: parameters [P].
        generation: when it was found.
        verdict: how it was judged.
    """

    member: NDArray[np.float64]
    generation: int
    verdict: Verdict


@dataclass
class Progress:
    """Everything that a search goes on from.

    Attributes:
        identity: what is searched, as JSON; only the same search may go on.
        optimizer: CMA-ES after `generation` generations.
        handcrafted: verdicts on handcrafted routers.
        best: the best candidate so far.
        generation: how many are done.
        seconds: what they took.
        history: figures of the start and of each generation.
    """

    identity: Mapping[str, Any]
    optimizer: CMA | SepCMA
    handcrafted: dict[str, Verdict]
    best: Candidate
    generation: int = 0
    seconds: float = 0.0
    history: list[Row] = field(default_factory=list)


def write(path: Path, progress: Progress) -> Progress:
    """Replace the file at once; returns what it says."""
    tensors, facts = _parts(progress)
    write_checkpoint(path, tensors, facts)
    return _whole(tensors, facts)


def read(path: Path, identity: Mapping[str, Any]) -> Progress | None:
    """What the file says, None if there is none.

    Raises:
        ValueError: it is damaged, or of another search.
    """
    found = read_checkpoint(path)
    if found is None:
        return None
    progress = _whole(*found)
    for key, value in json.loads(json.dumps(identity)).items():
        if progress.identity.get(key) != value:
            raise ValueError(
                f"{path}: its search has {key} = {progress.identity.get(key)!r}, found {value!r}; "
                "choose another folder, or the same to go on"
            )
    return progress


def _parts(progress: Progress) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Arrays, and what JSON can say."""
    arrays, numbers = {}, {}
    for name, value in progress.optimizer.__getstate__().items():
        if isinstance(value, np.ndarray):
            arrays[f"optimizer.{name}"] = torch.tensor(value)
        else:
            numbers[name] = value.item() if isinstance(value, np.generic) else value
    best = progress.best
    facts = {
        "identity": progress.identity,
        "method": type(progress.optimizer).__name__,
        "optimizer": numbers,
        "handcrafted": {name: dict(v.metrics) for name, v in progress.handcrafted.items()},
        "best": {"generation": best.generation, "metrics": dict(best.verdict.metrics)},
        "generation": progress.generation,
        "seconds": progress.seconds,
        "history": progress.history,
    }
    return arrays | {"best": torch.tensor(best.member)}, facts


def _whole(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Progress:
    method = _METHODS[facts["method"]]
    optimizer = method.__new__(method)
    arrays = {
        name.removeprefix("optimizer."): tensor.numpy().copy()
        for name, tensor in tensors.items()
        if name.startswith("optimizer.")
    }
    optimizer.__setstate__(facts["optimizer"] | arrays)
    best = facts["best"]
    return Progress(
        facts["identity"],
        optimizer,
        {name: Verdict(metrics) for name, metrics in facts["handcrafted"].items()},
        Candidate(tensors["best"].numpy().copy(), best["generation"], Verdict(best["metrics"])),
        facts["generation"],
        facts["seconds"],
        facts["history"],
    )
