"""Rollout look-ahead: tries actions out in forks of the simulation before it takes one.

At each decision the simulation is forked for a few instances; in each fork the request goes to that
instance, and a base router takes the next decisions; then nothing more arrives and the cluster
drains. The instance whose future loses least is taken (rollout, or one-step policy improvement:
Bertsekas, *Rollout, Policy Iteration, and Distributed Reinforcement Learning*, 2020).

The forks meet the requests that will really come, with their real lengths: the router is
clairvoyant about arrivals for the length of its horizon, which no real router is. It is a teacher,
and a lower bound on what is possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.references.min_ttft import MinTtft
from prefixgym.baselines.references.reference import Reference
from prefixgym.baselines.router import make_router, register
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.credit import Credit
from prefixgym.envs.forks import Forks
from prefixgym.envs.view.view import View

BASES = ("greedy_dump", "least_load", "loadaware", "loadaware_tokens", "min_ttft")
"""Routers that remember nothing: what they decide depends on the view alone."""

_TARDINESS_CAP = 8.0


@register
@dataclass
class Lookahead(Reference):
    """The instance with the least loss in a rollout; among equals what a base router would take.

        loss = Σ over the requests that end in the fork of (missed an objective) + tardiness · late

    with late = min(8, max(0, TTFT / objective − 1, TPOT / objective − 1)). The forks of a decision
    have the same requests, so that their losses compare. With several base routers an instance
    counts with its best future. A plan without loss is taken at once, and a fork is given up as
    soon as it has lost as much as the best one.

    Attributes:
        base: base routers, joined by `+`, of those in `BASES`; the first goes first among equals.
        horizon: decisions in a fork, this one included; then it drains.
        candidates: instances to try: those that the base routers would take, then those with the
            least predicted TTFT.
        tardiness: requests that one unit of lateness weighs. With 0, requests that are lost anyway
            may be sacrificed, as `greedy_dump` does.
        threads: how many threads share the forks.
    """

    name = "lookahead"
    source = "rollout with forks of the simulation (Bertsekas 2020)"
    family = "references"

    base: str = "loadaware+greedy_dump"
    horizon: int = 40
    candidates: int = 4
    tardiness: float = 0.0
    threads: int = 1

    def __post_init__(self) -> None:
        names = self.base.split("+")
        known = set(names) <= set(BASES) and len(set(names)) == len(names)
        self.require("base", known, f"different ones of {', '.join(BASES)}, joined by +")
        self.require("horizon", self.horizon >= 1, "at least 1")
        self.require(
            "candidates", self.candidates >= len(names), "at least as many as base routers"
        )
        self.require("tardiness", self.tardiness >= 0, "at least 0")
        self.require("threads", self.threads >= 1, "at least 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Forks for every candidate and base router."""
        names = self.base.split("+")
        self._shape = (len(seeds), min(self.candidates, len(cluster.instances)), len(names))
        copies = self._shape[1] * self._shape[2]
        credit = Credit(tardiness_cap=_TARDINESS_CAP) if self.tardiness > 0 else None
        self._forks = Forks(self.watched, copies, threads=self.threads, credit=credit)
        self._forks.restart()
        self._bases = [make_router(name) for name in names]
        self._imagined = [make_router(name) for name in names]
        for base, imagined in zip(self._bases, self._imagined, strict=True):
            base.reset(cluster, seeds)
            imagined.reset(cluster, np.repeat(seeds, copies).tolist())
        self._ranking = MinTtft()

    def route(self, view: View) -> NDArray[np.int64]:
        """The candidate with the best future."""
        num_envs = view.num_envs
        wishes = np.stack([base.route(view) for base in self._bases], axis=1)
        tried = self._ranked(view, wishes)
        losses = np.full(self._shape, np.inf)
        own = tried[:, :, None] == wishes[:, None, :]  # a base router's own plan
        own &= ~self.watched.done[:, None, None]
        self._play(tried, own, losses)
        best = losses.min(axis=(1, 2), initial=np.inf)
        others = ~own & (np.isfinite(best) & (best > 0))[:, None, None]
        others &= view.available[np.arange(num_envs)[:, None], tried][:, :, None]
        if others.any():
            self._play(tried, others, losses)
        # Candidates stand in the order in which equals are to be taken.
        best_candidate = losses.min(axis=2).argmin(axis=1)
        return tried[np.arange(num_envs), best_candidate]

    def _ranked(self, view: View, wishes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The instances to try, [E, candidates]: wishes of the base routers first."""
        ranks = np.where(view.available, self._ranking.scores(view), np.inf)
        for place in reversed(range(wishes.shape[1])):
            np.put_along_axis(ranks, wishes[:, place, None], place - wishes.shape[1], axis=1)
        order = np.argsort(ranks, axis=1, kind="stable").astype(np.int64)
        return order[:, : self._shape[1]]

    def _play(
        self,
        tried: NDArray[np.int64],
        chosen: NDArray[np.bool_],
        losses: NDArray[np.float64],
    ) -> None:
        """Play the chosen forks [E, candidates, bases] and write down what they lose."""
        forks = self._forks.simulation
        best = np.repeat(losses.min(axis=(1, 2)), self._forks.copies)
        self._forks.take(chosen.ravel())
        playing = chosen.ravel().copy()
        lost = np.zeros(forks.num_envs)
        ended = forks.num_ended.astype(np.int64)
        actions = np.repeat(tried.ravel(), self._shape[2])
        for step in range(self.horizon):
            if step == self.horizon - 1:
                self._forks.close()
            forks.step(actions)
            missed = forks.num_ended - ended - forks.good
            lost[playing] += missed[playing]
            if self.tardiness > 0:
                lost[playing] += self.tardiness * forks.tardiness[playing]
            ended += np.where(playing, forks.num_ended - ended, 0)
            forks.arrays.episodes["done"][lost >= best] = 1
            playing = ~forks.done
            if not playing.any():
                break
            actions = self._next_actions()
        lost[lost >= best] = np.inf  # given up
        losses[chosen] = lost.reshape(losses.shape)[chosen]

    def _next_actions(self) -> NDArray[np.int64]:
        """What each fork's base router decides."""
        view = self._forks.simulation.view
        decisions = np.stack([base.route(view) for base in self._imagined], axis=1)
        return decisions[np.arange(len(decisions)), np.arange(len(decisions)) % self._shape[2]]
