"""Exact LRU replay of a trace on several caches: who routes, what is found, what is computed.

Requests in the order of the trace, each at once: no time passes, nothing is held while in use. A
request hits with its leading blocks in the cache; then all its blocks are touched, the head last,
as in `envs/cluster/lru_replay.py`, of which this is the same for many caches and a router.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.profiles import Profile
from prefixgym.envs.cluster.step_time import prefill_ticks
from prefixgym.envs.workload.tape import Tape

Ties = Literal["first", "random", "balanced"]
MAX_BATCHED_TOKENS = 8192


class LruCache:
    """Blocks of one node, least recently used first."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks: found {num_blocks}, must be at least 1")
        self._num_blocks = num_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, ids: Sequence[int]) -> int:
        """How many leading blocks of a prompt are cached."""
        for count, key in enumerate(ids):
            if key not in self._blocks:
                return count
        return len(ids)

    def touch(self, ids: Sequence[int]) -> None:
        """All blocks of a prompt become the most recently used, the head last."""
        for key in reversed(ids):
            if key in self._blocks:
                self._blocks.move_to_end(key)
                continue
            if len(self._blocks) == self._num_blocks:
                self._blocks.popitem(last=False)
            self._blocks[key] = None


@dataclass(frozen=True)
class Seen:
    """What a router of the replay may go by.

    Attributes:
        row: of the request in the tape.
        hits: leading blocks that each node has, [nodes].
        computed: prompt tokens that each node has computed so far, [nodes].
    """

    row: int
    hits: Sequence[int]
    computed: Sequence[int]


Route = Callable[[Seen], int]
"""The node that a request goes to."""


def prefix_greedy(ties: Ties, least: int = 1, seed: int = 0) -> Route:
    """The longest match wins.

    Args:
        ties: among nodes with equally long matches, and where there is none: the first, one at
            random, or the one that has computed the fewest tokens so far.
        least: blocks; shorter matches count as none.
        seed: of the random choices.
    """
    if ties not in ("first", "random", "balanced"):
        raise ValueError(f"ties: found {ties!r}, allowed: first, random, balanced")
    generator = np.random.default_rng(seed)

    def route(seen: Seen) -> int:
        hits = [hit if hit >= least else 0 for hit in seen.hits]
        best = max(hits)
        equal = [node for node, hit in enumerate(hits) if hit == best]
        if ties == "random":
            return equal[int(generator.integers(len(equal)))]
        if ties == "balanced":
            return min(equal, key=lambda node: seen.computed[node])
        return equal[0]

    return route


def round_robin(nodes: int) -> Route:
    """Each in turn, whatever is cached where."""
    return lambda seen: seen.row % nodes


def sometimes(share: float, route: Route, nodes: int, seed: int = 0) -> Route:
    """Follow `route` for this share of requests, which chance picks; others go anywhere."""
    generator = np.random.default_rng(seed)

    def chosen(seen: Seen) -> int:
        if generator.random() < share:
            return route(seen)
        return int(generator.integers(nodes))

    return chosen


def recorded(instances: NDArray[np.integer]) -> Route:
    """As a router has chosen elsewhere, by row [R]."""
    chosen = instances.tolist()
    return lambda seen: chosen[seen.row]


@dataclass(frozen=True)
class Replayed:
    """What a replay has found.

    Attributes:
        hit_rate: blocks found / blocks of all prompts, partial last ones included.
        gpu_seconds: of prefill, all requests together.
        busiest: share of the computed tokens on the node that computed most.
        copies: blocks inserted / distinct blocks: how often a block was computed or copied in.
    """

    hit_rate: float
    gpu_seconds: float
    busiest: float
    copies: float


class PrefillTime:
    """Seconds of prefill on a profile: alone, in chunks of `MAX_BATCHED_TOKENS`."""

    def __init__(self, profile: Profile) -> None:
        self._cost = profile.step_cost()

    def __call__(self, prompt: int, hit: int) -> float:
        """Of a prompt of so many tokens, so many of them cached; one is always computed."""
        hit = min(hit, prompt - 1)
        ticks: int = prefill_ticks(self._cost, prompt - hit, hit, MAX_BATCHED_TOKENS)
        return ticks / TICKS_PER_SECOND


def replay(
    tape: Tape, nodes: int, num_blocks: int, route: Route, seconds: Callable[[int, int], float]
) -> Replayed:
    """Play all requests of a tape, in the order of its rows.

    Args:
        tape: the requests.
        nodes: caches; 1 is a cache that all share.
        num_blocks: of each.
        route: who decides; not asked where there is one cache.
        seconds: of prefill, by prompt tokens and hit tokens.

    Raises:
        ValueError: `num_blocks` is below 1.
    """
    caches = [LruCache(num_blocks) for _ in range(nodes)]
    computed = [0] * nodes
    found = total = missed = 0
    distinct: set[int] = set()
    spent = 0.0
    counts = tape.requests["num_blocks"].tolist()
    for row, prompt in enumerate(tape.requests["prompt_tokens"].tolist()):
        ids = tape.block_ids(row)[: counts[row]].tolist()
        hits = [cache.match(ids) for cache in caches]
        node = route(Seen(row, hits, computed)) if nodes > 1 else 0
        caches[node].touch(ids)
        hit = min(prompt, hits[node] * tape.block_size)
        computed[node] += prompt - hit
        spent += seconds(prompt, hit)
        found += hits[node]
        missed += len(ids) - hits[node]
        total += len(ids)
        distinct.update(ids)
    return Replayed(
        hit_rate=found / max(1, total),
        gpu_seconds=spent,
        busiest=max(computed) / max(1, sum(computed)),
        copies=missed / max(1, len(distinct)),
    )
