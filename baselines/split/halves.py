"""Two routers for one cluster: one says where a request is prefilled, one where it is decoded.

So SGLang's gateway does it (`prefill_policy` and `decode_policy` are independent, and each is the
main policy by default; §1.12), and llm-d with one scheduling profile for each role (§4.8).
"""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import Router, make_router, register_prefix, router_class
from prefixgym.baselines.split.pool import Pool
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.rng import stream_key
from prefixgym.envs.view.view import View

PREFIX = "pd"
DECODE_STREAM = 101
"""The stream of an environment's seed that the seed of its decode router is drawn from."""


class Halves(Router):
    """A router for each half; decisions are pairs, [E, 2], and N where the first half rejects.

    Args:
        prefill: decides among the instances that may prefill.
        decode: among those that may decode.
        threshold: with fewer tokens to compute on the instance that will decode it, a request is
            prefilled there too. llm-d's prefix-based decider and Dynamo's conditional
            disaggregation; 0 never.
    """

    name = PREFIX
    source = "a router for each role (§1.12, §4.8)"
    family = "split"

    def __init__(self, prefill: Router, decode: Router, threshold: int = 0) -> None:
        self._routers = (prefill, decode)
        self._threshold = threshold

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Both forget everything."""
        self._pools = (Pool(cluster, "prefill"), Pool(cluster, "decode"))
        others = [int(stream_key(seed, DECODE_STREAM) >> np.uint64(1)) for seed in seeds]
        for router, pool, own in zip(self._routers, self._pools, (seeds, others), strict=True):
            router.reset(pool.cluster, own)
        self._sent = np.zeros((2, len(seeds), 0), np.int64)
        self._reject = len(cluster.instances)

    def route(self, view: View) -> NDArray[np.int64]:
        """Where each environment's request is prefilled and where it is decoded, [E, 2]."""
        self._make_room(view.num_slots)
        chosen = np.empty((2, view.num_envs), np.int64)
        rejected = np.zeros(view.num_envs, np.bool_)
        for half, (router, pool) in enumerate(zip(self._routers, self._pools, strict=True)):
            part = pool.view(view, self._sent)
            choice = router.route(part)
            view.holds[:, pool.members] = part.holds
            rejected |= choice == len(pool.members)
            chosen[half] = pool.members[np.minimum(choice, len(pool.members) - 1)]
        everyone = np.arange(view.num_envs)
        hits = view.instances["hit_tokens"][everyone, chosen[1]]
        stays = view.requests["prompt_tokens"] - hits < self._threshold
        chosen[0] = np.where(stays, chosen[1], chosen[0])
        self._sent[:, everyone, view.requests["slot"]] = chosen
        chosen[0, rejected] = self._reject
        return chosen.T

    def _make_room(self, num_slots: int) -> None:
        room = self._sent.shape[2]
        if num_slots > room:
            self._sent = np.pad(self._sent, ((0, 0), (0, 0), (0, num_slots - room)))


@dataclass
class NamedHalves(Router):
    """Two routers by name, with their defaults; `pd:PREFILL+DECODE` makes a class for each pair.

    Attributes:
        threshold: with fewer tokens to compute on the instance that will decode it, a request is
            prefilled there too; 0 never. llm-d's `nonCachedTokens`; Dynamo's default is 5000.
    """

    name = PREFIX
    source = Halves.source
    family = Halves.family

    names: ClassVar[tuple[str, str]]

    threshold: int = 0

    def __post_init__(self) -> None:
        self.require("threshold", self.threshold >= 0, "at least 0 tokens")
        prefill, decode = (make_router(name) for name in self.names)
        self._halves = Halves(prefill, decode, self.threshold)

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """As for `Halves`.

        Raises:
            ValueError: the cluster has no roles.
        """
        if not cluster.is_split:
            raise ValueError(f"{self.name}: found a cluster without roles, which has no two halves")
        self._halves.reset(cluster, seeds)

    def route(self, view: View) -> NDArray[np.int64]:
        """As for `Halves`."""
        return self._halves.route(view)


def named_halves(name: str) -> type[Router]:
    """The class of `pd:PREFILL+DECODE`.

    Raises:
        ValueError: there are no such routers.
    """
    names = tuple(name.removeprefix(f"{PREFIX}:").split("+"))
    if len(names) != 2:
        raise ValueError(f"router: found {name!r}, allowed: {PREFIX}:PREFILL+DECODE, two routers")
    halves = [router_class(half) for half in names]
    knows = tuple(dict.fromkeys(source for half in halves for source in half.knows))
    facts = {"name": name, "names": names, "knows": knows, "__doc__": NamedHalves.__doc__}
    return dataclasses.dataclass(type("NamedHalves", (NamedHalves,), facts))


def in_halves(router: Router, cluster: ClusterSpec) -> Router:
    """Who decides in a cluster: where there are roles, a copy of `router` for each half."""
    if not cluster.is_split or isinstance(router, Halves | NamedHalves):
        return router
    return Halves(router, copy.deepcopy(router))


register_prefix(PREFIX, named_halves)
