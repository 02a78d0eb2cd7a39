"""A long tape in pieces."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.tape import Tape


@dataclass(frozen=True)
class Chunk(Tape):
    """A piece of a longer tape: a tape of its own, of which the next piece is not known yet.

    Trees are whole, and so are joins: links count the chunk's own rows. Roots go on, in arrival and
    in row, where those of the chunk before ended. Sessions and block ids mean the same in all.

    Attributes:
        rows: of the longer tape, ascending, int64 [R].
    """

    rows: NDArray[np.int64]
