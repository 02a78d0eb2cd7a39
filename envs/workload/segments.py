"""Block ids cut into segments: the longest stretches that every run holds whole or not at all.

What is true of one id of a segment is true of all, so that questions about which ids return are
answered without a table of all ids, which may be sparse and many.
"""

import numpy as np
from numpy.typing import NDArray


def cut_runs(
    runs: NDArray[np.void],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The segments of RUN records [U].

    Returns:
        sizes: ids in each segment, [S]; segments are numbered by ascending id. Ids between runs
            make segments too, which no run holds.
        first: the segment at each run's start, [U].
        last: one past the segment at each run's end, [U].
    """
    end = runs["start"] + runs["count"]
    cuts = np.unique(np.concatenate([runs["start"], end]))
    return np.diff(cuts), np.searchsorted(cuts, runs["start"]), np.searchsorted(cuts, end)
