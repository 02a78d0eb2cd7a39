"""How a router decides, beside how others would: seen at a sample of its decisions.

The others are asked at the same moment about the same view, and nothing is done that they say. One
that remembers its own choices is told those of the router that is looked at, as if it had made them
(`Router.overhear`); it is a copy that is asked, so that it does not remember its own answer.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixgym.agents.learned_router import Observer
from prefixgym.baselines.router import NOWHERE, Router, make_router
from prefixgym.baselines.split.pool import NOT_HERE, Pool
from prefixgym.envs.view.view import View
from prefixgym.experiments.training.moment import Moment, typical

COMPARED = ("min_ttft", "cache_aware", "loadaware")
"""Who is asked, with its defaults."""

LONG_PREFIX = 0.5
"""Share of a prompt from which on its cached prefix is called long."""

EVERY = 16
"""Decisions from one that is looked at to the next."""


@dataclass(frozen=True)
class Behaviour:
    """What was seen.

    Attributes:
        shares: `differs_from_NAME`, share of the decisions that this router would have taken
            otherwise; `copies`, mean number of available instances that hold a long prefix of the
            prompt.
        ranks: how many available instances promised a sooner first token than the chosen one, one
            number a decision, [D].
        typical: the moment that is most like all others.
    """

    shares: Mapping[str, float]
    ranks: NDArray[np.int64]
    typical: Moment


class Onlooker:
    """Looks on while one or several routers play whole episodes, from their beginning.

    Where instances have roles it looks at the first half of each decision.

    Args:
        seeds: of the episodes, [E].
        every: see `EVERY`.
    """

    def __init__(self, seeds: Sequence[int], every: int = EVERY) -> None:
        self._seeds = list(seeds)
        self._every = every
        self._decisions = 0
        self._others: dict[str, Router] = {}
        self._pool: Pool | None = None  # of those that prefill, where instances have roles
        self._seen: list[_Look] = []

    def __call__(self, view: View, chosen: NDArray[np.int64], going: NDArray[np.bool_]) -> None:
        """A decision; see `prefixgym.experiments.evaluate.OnDecision`."""
        if view.cluster.is_split:
            if self._pool is None:
                self._pool = Pool(view.cluster, "prefill")
            view, chosen = self._pool.glance(view), self._pool.places(chosen[:, 0])
            chosen = np.where(chosen == NOT_HERE, len(self._pool.members), chosen)
        if self._decisions == 0:
            self._others = {name: make_router(name) for name in COMPARED}
            for router in self._others.values():
                router.reset(view.cluster, self._seeds)
            self._observe = Observer(view.cluster, view.num_envs)
        if self._decisions % self._every == 0:
            self._look(view, chosen, going)
        told = np.where(going & (chosen < view.instances.shape[1]), chosen, NOWHERE)
        for router in self._others.values():
            router.overhear(view.requests, view.block_ids, told)
        self._decisions += 1

    def _look(self, view: View, chosen: NDArray[np.int64], going: NDArray[np.bool_]) -> None:
        differs = {
            name: copy.deepcopy(router).route(view) != chosen
            for name, router in self._others.items()
        }
        rows = view.instances
        long = rows["hit_tokens"] >= LONG_PREFIX * view.requests["prompt_tokens"][:, None]
        ttft = rows["backlog_seconds"] + rows["prefill_seconds"]
        mine = ttft[np.arange(len(chosen)), np.minimum(chosen, ttft.shape[1] - 1)]
        request, instances = self._observe(view)
        self._seen.append(
            _Look(
                going,
                differs,
                (long & view.available).sum(1),
                (view.available & (ttft < mine[:, None])).sum(1),
                np.concatenate([request, instances.reshape(len(instances), -1)], 1),
                [Moment.of(view, e) if going[e] else None for e in range(view.num_envs)],
            )
        )

    def behaviour(self, envs: slice = slice(None)) -> Behaviour:
        """What was seen in these environments, which are one router's."""
        going = np.array([look.going[envs] for look in self._seen])

        def all_of(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
            return np.array([part[envs] for part in parts])[going]

        shares = {
            f"differs_from_{name}": float(
                np.mean(all_of([look.differs[name] for look in self._seen]))
            )
            for name in self._others
        }
        shares["copies"] = float(np.mean(all_of([look.copies for look in self._seen])))
        moments = [m for look in self._seen for m in look.moments[envs] if m is not None]
        return Behaviour(
            shares,
            all_of([look.ranks for look in self._seen]).astype(np.int64),
            typical(moments, all_of([look.observed for look in self._seen]).astype(np.float64)),
        )


@dataclass(frozen=True)
class _Look:
    """One decision that was looked at, in E environments."""

    going: NDArray[np.bool_]  # [E]
    differs: Mapping[str, NDArray[np.bool_]]  # [E] by router
    copies: NDArray[np.int64]  # [E]
    ranks: NDArray[np.int64]  # [E]
    observed: NDArray[np.float32]  # [E, R + N·F]
    moments: list[Moment | None]  # [E]
