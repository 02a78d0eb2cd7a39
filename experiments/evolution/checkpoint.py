"""Where a search stands, on disk: a process that is killed loses one generation at most.

CMA-ES is deterministic but for its random numbers, which `search` draws from the seed and the
generation, so a search that goes on from its checkpoint finds what it would have found. It also
goes on from what the file says where it is not interrupted: `cmaes` rounds its covariance to a
symmetric one when it is pickled.
"""

import os
import pickle
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from cmaes import CMA, SepCMA
from numpy.typing import NDArray

from prefixgym.experiments.whole_files import replaced

Row = dict[str, float]
"""Figures by name, as TensorBoard shows them."""


@dataclass
class Candidate:
    """Members that were judged on validation episodes.

    Attributes:
        member: parameters [P].
        generation: when it was found.
        attainment: mean over the episodes.
        ttft_p99: s, mean over the episodes.
    """

    member: NDArray[np.float64]
    generation: int
    attainment: float
    ttft_p99: float


@dataclass
class Progress:
    """Everything that a search goes on from.

    Attributes:
        identity: what is searched; only the same search may go on.
        optimizer: CMA-ES after `generation` generations.
        references: attainment and p99 TTFT of handcrafted routers on the validation episodes.
        limit: s, the highest p99 TTFT that a candidate may have.
        best: the best candidate so far.
        generation: how many are done.
        seconds: what they took.
        history: figures of each generation.
    """

    identity: dict[str, object]
    optimizer: CMA | SepCMA
    references: dict[str, tuple[float, float]]
    limit: float
    best: Candidate
    generation: int = 0
    seconds: float = 0.0
    history: list[Row] = field(default_factory=list)


def write(path: Path, progress: Progress) -> Progress:
    """Replace the file at once; returns what it says."""
    data = pickle.dumps(progress)
    with replaced(path) as partial, partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    found: Progress = pickle.loads(data)
    return found


def read(path: Path, identity: dict[str, object]) -> Progress | None:
    """What the file says, None if there is none. Only read files that you wrote: it is a pickle.

    Raises:
        ValueError: it is of another search.
    """
    if not path.exists():
        return None
    found: Progress = pickle.loads(path.read_bytes())
    for key, value in identity.items():
        if found.identity.get(key) != value:
            raise ValueError(
                f"{path}: its search has {key} = {found.identity.get(key)!r}, found {value!r}; "
                "choose another folder, or the same to go on"
            )
    return found
