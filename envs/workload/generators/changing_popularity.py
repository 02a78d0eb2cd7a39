"""Popularity that changes: prefixes that come and go, and prefixes that run hot for a while.

Both are counted in requests, not seconds, so that another rate only stretches time: a ladder of
loads compares the same requests.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.bursts import burst_starts, check_bursts
from prefixgym.envs.workload.fields import check_probability


def replaced(
    rank: NDArray[np.int64], half_life: float, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Who holds each rank when a request picks it, if holders are replaced by new ones at random.

    At any moment the ranks keep their popularity, but whoever holds one loses it, never to return,
    with the same probability in each moment: after `half_life` requests every second one is gone.

    Args:
        rank: what the requests pick, one after another, [R].
        half_life: requests.
        generator: decides about replacements.

    Returns:
        holder: numbers 0 … H − 1, [R]; those of a rank follow each other.
        rank_of: the rank that each held, [H].
    """
    order = np.argsort(rank, kind="stable")
    picked = rank[order]
    age = np.diff(order, prepend=0).astype(np.float64)  # requests since the rank's last pick
    first = np.diff(picked, prepend=-1) != 0
    # Still there with probability 2^(−age / half_life): one draw for each pick tells.
    new = first | (generator.random(len(rank)) >= np.exp2(-age / half_life))
    holder = np.empty(len(rank), np.int64)
    holder[order] = np.cumsum(new) - 1
    return holder, picked[new]


@dataclass(frozen=True)
class HotPrefixes:
    """Now and then one prefix is in great demand: a breaking story, a job over one code base.

    Attributes:
        every: requests from the start of a burst to that of the next, on average.
        duration: requests that a burst lasts.
        share: of the requests during a burst that want its prefix; each burst draws one, and
            popular and unpopular ones are equally likely.
    """

    every: float
    duration: float
    share: float

    def __post_init__(self) -> None:
        check_bursts("", self.every, self.duration)
        check_probability("share", self.share)

    def redirect(
        self, prefix: NDArray[np.int64], num_prefixes: int, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        """What the requests pick, [R], if they would pick `prefix` [R] without the bursts."""
        times, targets, wishes = generator.spawn(3)
        starts = burst_starts(times, self.every, self.duration, float(len(prefix)))
        target = targets.integers(num_prefixes, size=len(starts))
        index = np.arange(len(prefix))
        burst = np.searchsorted(starts, index, side="right") - 1
        hot = (burst >= 0) & (index < starts[burst] + self.duration)
        hot &= wishes.random(len(prefix)) < self.share
        return np.where(hot, target[burst], prefix)
