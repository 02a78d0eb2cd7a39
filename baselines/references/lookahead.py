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
from prefixgym.baselines.references.rollout import BASES, VIRTUAL_NODES, play_forks
from prefixgym.baselines.router import make_router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.credit import Credit
from prefixgym.envs.forks import Forks
from prefixgym.envs.view.hash_ring import HashRing
from prefixgym.envs.view.view import View

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
        horizon: decisions in a fork, this one included; then it drains. Nothing that arrives later
            slows the fork's requests down, so a horizon far shorter than they take is blind to
            TPOT: where hundreds of requests arrive while one decodes, look further.
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
        """A fork for every candidate and base router."""
        names = self.base.split("+")
        self._copies = min(self.candidates, len(cluster.instances))
        credit = Credit(tardiness_cap=_TARDINESS_CAP) if self.tardiness > 0 else None
        self._forks = Forks(
            self.watched, self._copies, threads=self.threads, credit=credit, see_truth=True
        )
        self._forks.restart()
        self._bases = [make_router(name) for name in names]
        for base in self._bases:
            base.reset(cluster, seeds)
        self._ranking = MinTtft()
        self._keys = np.repeat(router_keys(seeds), self._copies)
        self._ring = HashRing(len(cluster.instances), VIRTUAL_NODES)

    def route(self, view: View) -> NDArray[np.int64]:
        """The candidate with the best future."""
        wishes = np.stack([base.route(view) for base in self._bases], axis=1)
        tried = self._ranked(view, wishes)
        losses = np.full(tried.shape, np.inf)
        own = tried[:, :, None] == wishes[:, None, :]  # where a base router plays its own plan
        own &= ~self.watched.done[:, None, None]
        for b, base in enumerate(self._bases):
            self._play(base.name, tried, own[:, :, b], losses)
        best = losses.min(axis=1)
        others = view.available[np.arange(len(tried))[:, None], tried]
        others = others & (np.isfinite(best) & (best > 0))[:, None]
        for b, base in enumerate(self._bases):
            self._play(base.name, tried, others & ~own[:, :, b], losses)
        # Candidates stand in the order in which equals are to be taken.
        return tried[np.arange(len(tried)), losses.argmin(axis=1)]

    def _ranked(self, view: View, wishes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The instances to try, [E, candidates]: wishes of the base routers first."""
        ranks = np.where(view.available, self._ranking.scores(view), np.inf)
        for place in reversed(range(wishes.shape[1])):
            np.put_along_axis(ranks, wishes[:, place, None], place - wishes.shape[1], axis=1)
        order = np.argsort(ranks, axis=1, kind="stable").astype(np.int64)
        return order[:, : self._copies]

    def _play(
        self,
        base: str,
        tried: NDArray[np.int64],
        chosen: NDArray[np.bool_],
        losses: NDArray[np.float64],
    ) -> None:
        """Play the chosen forks [E, candidates] by `base`; lower `losses` where they lose less."""
        if not chosen.any():
            return
        self._forks.take(chosen.ravel(), decisions=self.horizon)
        found = np.full(chosen.size, np.inf)
        self._forks.simulation.run(
            play_forks,
            tried.ravel(),
            self.horizon,
            BASES.index(base),
            self.watched.cluster.frontend_latency,
            self._keys,
            self._ring.positions,
            self._ring.owners,
            self.tardiness,
            np.repeat(losses.min(axis=1), self._copies),
            found,
        )
        np.minimum(losses, found.reshape(losses.shape), out=losses)
