"""Requests of several SLO classes in one workload: people who wait, agents, jobs of the night."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from prefixgym.envs.rng import stream_key, uniforms
from prefixgym.envs.workload.fields import check_number
from prefixgym.envs.workload.tape import Tape, Workload

_STREAM = 1_000_000
"""Far from the numbers of the workload's own streams."""


@dataclass(frozen=True)
class SloMix:
    """A workload whose sessions each belong to a class, drawn by the classes' shares.

    All else stays: the same requests come at the same times. A session keeps its class at every
    rate.

    Attributes:
        workload: the requests; classes that they have already are replaced.
        shares: how many of the sessions each class has, in proportion.
    """

    workload: Workload
    shares: Sequence[float]

    def __post_init__(self) -> None:
        for index, share in enumerate(self.shares):
            check_number(f"shares[{index}]", share, 0, above=True)

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.workload.block_size

    @property
    def num_sessions(self) -> int:
        """Upper bound of `session` + 1."""
        return self.workload.num_sessions

    @property
    def max_blocks(self) -> int:
        """Ids of the longest request."""
        return self.workload.max_blocks

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names."""
        tape = self.workload.tape(seed)
        requests = tape.requests.copy()
        below = np.cumsum(self.shares) / np.sum(self.shares)
        drawn = uniforms(stream_key(seed, _STREAM), requests["session"])
        requests["slo_class"] = np.searchsorted(below[:-1], drawn, side="right")
        return replace(tape, requests=requests)
