"""Choosing by chance, weighted by any router's scores, so that traffic moves smoothly.

A router that takes the best score sends everything to one instance until its score falls behind by
a hair, and then everything to the next: several replicas of it, or a stale score, make herds of
that. Here the better instance is only more likely.

Weighted rendezvous hashing: David G. Thaler and Chinya V. Ravishankar, "Using name-based mappings
to increase hit rates" (1998), with the weights of Jason Resch (SNIA 2015). Softmax over min-max
normalised scores is Dynamo's (`routers_flexlb_dynamo_preble_mooncake.md` §2.2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.router import (
    ROUTER_STREAM,
    Router,
    make_router,
    register,
    router_class,
    router_names,
)
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import random_word, stream_key, uniform
from prefixgym.envs.view.view import View

_AFFINITIES = ("none", "session", "prefix")
_NONE, _SESSION, _PREFIX = range(3)


@register
@dataclass
class Probabilistic(Router):
    """An instance drawn with a probability that falls with another router's score.

    1. Scores are normalised over the available instances: z = (score - least) / (most - least), 0
       if all are equal. An infinite score rules out, unless all are infinite.
    2. Kept are the top_k least z (0: all), of equals the first instances, and of these the ones
       with z <= tolerance.
    3. Probabilities are proportional to exp(-z / temperature); at temperature 0 the best share all.
    4. affinity `none` draws anew for every request. `session` and `prefix` draw once for each key,
       by weighted rendezvous: key k goes to the instance with the least -ln(u_ki) / p_i, where u_ki
       is a hash of both, uniform in (0, 1]. The shares are the same, p_i; but a key moves only as
       far as probabilities do. When an instance leaves, only its keys move; when p_i grows by a
       little, about that share of the keys moves, all of them to i.

    With temperature 0 and affinity `none` it is the other router itself, ties included. No request
    is turned away: a router that would do so only gives its scores here.

    Attributes:
        router: a router that scores, with its defaults, or "name:parameter=value,parameter=value".
        top_k: candidates kept, 0 for all.
        tolerance: normalised score up to which candidates are kept, 0..1.
        temperature: normalised score that makes an instance e times less likely.
        affinity: none, session or prefix.
        prefix_blocks: leading blocks that make the key of a prefix, fewer if the prompt has fewer.
    """

    name = "probabilistic"
    source = "softmax over scores, weighted rendezvous (module docstring)"
    family = "probabilistic"
    knows = ("index", "ledger", "ring")
    """With the default router; others know more or less."""

    router: str = "lmetric"
    top_k: int = 0
    tolerance: float = 1.0
    temperature: float = 0.1
    affinity: str = "session"
    prefix_blocks: int = 4

    def __post_init__(self) -> None:
        name, _, settings = self.router.partition(":")
        scored = [n for n in router_names() if issubclass(router_class(n), ScoredRouter)]
        self.require("router", name in scored, "; ".join((", ".join(scored), "with :key=value,…")))
        pairs = [setting.partition("=") for setting in settings.split(",") if setting]
        made = make_router(name, {key: value for key, _, value in pairs})
        self._scored = cast(ScoredRouter, made)
        self.require("top_k", self.top_k >= 0, "at least 0, 0 for all")
        self.require("tolerance", 0 <= self.tolerance <= 1, "0 to 1")
        self.require("temperature", 0 <= self.temperature < math.inf, "at least 0 and finite")
        self.require("affinity", self.affinity in _AFFINITIES, ", ".join(_AFFINITIES))
        self.require("prefix_blocks", self.prefix_blocks >= 1, "at least 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """The other router starts anew too."""
        self._scored.reset(cluster, seeds)
        # A stream of its own: the other router may draw as well.
        self._keys = np.array([stream_key(seed, ROUTER_STREAM + 1) for seed in seeds], np.uint64)

    def probabilities(self, view: View) -> NDArray[np.float64]:
        """How likely each instance is to get the current request, [E, N]; rows add up to 1."""
        shares = np.empty(view.instances.shape)
        _shares(
            view.instances,
            self._scored.scores(view),
            self.top_k,
            self.tolerance,
            self.temperature,
            shares,
        )
        return shares

    def route(self, view: View) -> NDArray[np.int64]:
        """A draw from `probabilities`."""
        plain = self.temperature == 0 and self.affinity == "none"
        if plain and not self._scored.may_reject:
            return self._scored.route(view)
        self._scored.hear(view)
        chosen = np.empty(view.num_envs, np.int64)
        _draw(
            view.requests,
            view.block_ids,
            self.probabilities(view),
            self._keys,
            _AFFINITIES.index(self.affinity),
            self.prefix_blocks,
            chosen,
        )
        self._scored.commit(view, chosen)
        return chosen

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """The other router may remember them."""
        self._scored.overhear(requests, block_ids, chosen)


@kernel
def _shares(
    instances: NDArray[np.void],
    scores: NDArray[np.float64],
    top_k: int,
    tolerance: float,
    temperature: float,
    shares: NDArray[np.float64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(shares)):
        count = candidates(instances[e], picks)
        softmax(scores[e], picks, count, top_k, tolerance, temperature, shares[e])


@kernel
def softmax(
    scores: NDArray[np.float64],
    picks: NDArray[np.int64],
    count: int,
    top_k: int,
    tolerance: float,
    temperature: float,
    shares: NDArray[np.float64],
) -> None:
    """Write the probability of every instance, [N]; see `Probabilistic`, steps 1 to 3.

    Args:
        scores: [N], the least is best; inf rules out.
        picks: the candidates, in order of index.
        count: how many.
        top_k: candidates kept; 0 keeps all.
        tolerance: normalised score up to which they are kept.
        temperature: in normalised score.
        shares: [N], the result.
    """
    least, most = np.inf, -np.inf
    for k in range(count):
        score = scores[picks[k]]
        if score < np.inf:
            least, most = min(least, score), max(most, score)
    total = 0.0
    shares[:] = 0.0
    for k in range(count):
        i = picks[k]
        if scores[i] == np.inf and least < np.inf:
            continue
        z = (scores[i] - least) / (most - least) if most > least else 0.0
        rank = 0
        if top_k > 0:
            for other in range(count):
                ahead = scores[picks[other]] - scores[i]
                rank += ahead < 0 or (ahead == 0 and other < k)
        if z <= tolerance and (top_k == 0 or rank < top_k):
            if temperature > 0:
                shares[i] = math.exp(-z / temperature)
            elif z == 0.0:
                shares[i] = 1.0
            total += shares[i]
    for k in range(count):
        shares[picks[k]] /= total


@kernel
def rendezvous(word: np.uint64, shares: NDArray[np.float64]) -> int:
    """The instance of the key hashed to `word`: i with probability shares[i] over all keys."""
    best, least = 0, np.inf
    for i in range(len(shares)):
        if shares[i] > 0.0:
            # An exponential race: the first of arrivals with rates `shares`.
            arrival = -math.log(1.0 - uniform(word, i)) / shares[i]
            if arrival < least:
                best, least = i, arrival
    return best


@kernel
def _draw(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    shares: NDArray[np.float64],
    keys: NDArray[np.uint64],
    affinity: int,
    prefix_blocks: int,
    chosen: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        request = requests[e]
        key = request["index"]
        if affinity == _SESSION:
            key = request["session"]
        elif affinity == _PREFIX and request["num_blocks"] > 0:
            key = block_ids[e, min(prefix_blocks, request["num_blocks"]) - 1]
        chosen[e] = rendezvous(random_word(keys[e], key), shares[e])
