"""Routers that give every instance a score and take the best: most of the field.

A router that only says what its scores are can be combined with every way of choosing by them, see
`prefixgym.baselines.probabilistic`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, first_least, last_least, random_least
from prefixgym.baselines.router import Router, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View

Ties = Literal["first", "last", "random"]
_FIRST, _LAST, _RANDOM = range(3)
_TIES: dict[Ties, int] = {"first": _FIRST, "last": _LAST, "random": _RANDOM}


@dataclass
class ScoredRouter(Router):
    """Takes the available instance with the least score; equals as `ties` says.

    A subclass overrides `scores`, and `reset`, `hear` and `commit` if it remembers anything.
    """

    ties: ClassVar[Ties] = "random"
    """Which of several best instances is taken."""

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """One random stream for each environment."""
        self._keys = router_keys(seeds)

    def hear(self, view: View) -> None:
        """Take in `view.events`: called once at every decision, before `scores`."""

    def scores(self, view: View) -> NDArray[np.float64]:
        """What speaks against each instance, [E, N]: the least is best, inf rules it out.

        Unavailable instances may have any score. Must not change what the router remembers.
        """
        raise NotImplementedError

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Remember that the current requests go to `chosen`, [E]."""

    def route(self, view: View) -> NDArray[np.int64]:
        """The available instance with the least score."""
        self.hear(view)
        chosen = np.empty(view.num_envs, np.int64)
        _choose(
            self.scores(view), view.requests, view.instances, self._keys, _TIES[self.ties], chosen
        )
        self.commit(view, chosen)
        return chosen


@kernel
def _choose(
    scores: NDArray[np.float64],
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    keys: NDArray[np.uint64],
    ties: int,
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        count = candidates(instances[e], picks)
        if ties == _FIRST:
            chosen[e] = first_least(scores[e], picks, count)
        elif ties == _LAST:
            chosen[e] = last_least(scores[e], picks, count)
        else:
            chosen[e] = random_least(scores[e], picks, count, keys[e], requests[e]["index"])
