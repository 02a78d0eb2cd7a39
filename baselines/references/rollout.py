"""Forks played by a base router, compiled: many decisions in one call.

Base routers are those that remember nothing, so that a fork needs no copy of their memory: what
they decide depends on the view, the environment's key and their hash ring. The rules are the
routers' own functions.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, first_least, random_least
from prefixgym.baselines.references.min_ttft import dump_scores, ttft_scores
from prefixgym.baselines.sglang.cache_aware_zmq import CacheAwareZmq, holders_by_load
from prefixgym.baselines.vllm.fallback import TO_FALLBACK
from prefixgym.baselines.vllm.loadaware import Loadaware, best_by_load
from prefixgym.baselines.vllm.session import session_home
from prefixgym.envs.decisions import CONTINUE, step_environment
from prefixgym.envs.episode_state import SimulationArrays
from prefixgym.envs.incidents import next_incident
from prefixgym.envs.jit import borrowed, kernel
from prefixgym.envs.lent import Lent
from prefixgym.envs.view.arrays import ViewArrays

BASES = (
    "cache_aware_zmq",
    "greedy_dump",
    "least_load",
    "loadaware",
    "loadaware_tokens",
    "min_ttft",
)
_CACHE_AWARE_ZMQ, _GREEDY_DUMP, _LEAST_LOAD, _LOADAWARE, _LOADAWARE_TOKENS, _MIN_TTFT = range(6)

VIRTUAL_NODES = Loadaware.virtual_nodes
"""Of the ring on which `loadaware` finds the home of a session."""

# The routers' defaults, as constants for the compiler.
_BETA = Loadaware.beta
_CACHE_THRESHOLD = CacheAwareZmq.cache_threshold
_BALANCE_ABS = CacheAwareZmq.balance_abs_threshold
_BALANCE_REL = CacheAwareZmq.balance_rel_threshold
_HIT_LOAD_ABS = CacheAwareZmq.hit_load_abs_threshold
_HIT_LOAD_REL = CacheAwareZmq.hit_load_rel_threshold


@kernel
def decide(
    v: ViewArrays,
    e: int,
    base: int,
    block_size: int,
    frontend: float,
    key: np.uint64,
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
) -> int:
    """What base router BASES[base] decides in environment e.

    Args:
        v: what it sees.
        e: where.
        base: index into `BASES`.
        block_size: tokens.
        frontend: s, the cluster's frontend latency.
        key: of the router in this environment, see `router_keys`.
        positions: of the ring with VIRTUAL_NODES.
        owners: of the same ring.
    """
    request, instances = v.requests[e], v.shown_instances[e]
    if base in (_LOADAWARE, _LOADAWARE_TOKENS):
        loads = instances["requests"] if base == _LOADAWARE else instances["prefill_tokens"]
        chosen = best_by_load(request, instances, loads, _BETA)
        if chosen == TO_FALLBACK:
            chosen = session_home(request, instances, positions, owners, key)
        return chosen
    scores, picks = np.empty(len(instances)), np.empty(len(instances), np.int64)
    count = candidates(instances, picks)
    if base == _CACHE_AWARE_ZMQ:
        holders_by_load(
            request,
            instances,
            block_size,
            _CACHE_THRESHOLD,
            _BALANCE_ABS,
            _BALANCE_REL,
            _HIT_LOAD_ABS,
            _HIT_LOAD_REL,
            scores,
        )
        return first_least(scores, picks, count)
    if base == _GREEDY_DUMP:
        dump_scores(request, instances, frontend, scores)
    elif base == _MIN_TTFT:
        ttft_scores(instances, frontend, scores)
    else:
        for i in range(len(scores)):
            scores[i] = instances[i]["requests"]
    return random_least(scores, picks, count, key, request["index"])


@kernel
def play_forks(
    lent: Lent,
    first: int,
    last: int,
    actions: NDArray[np.int64],
    horizon: int,
    base: int,
    frontend: float,
    keys: NDArray[np.uint64],
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    tardiness: float,
    limits: NDArray[np.float64],
    losses: NDArray[np.float64],
) -> int:
    """Play forks first … last - 1, as far as they are not done, to their ends.

    Each takes its action, then the base router's next decisions up to `horizon` in all; then
    nothing arrives any more and it drains. There must be room for so many more flights.

    Args:
        lent: the forks.
        first: where to begin.
        last: where to end.
        actions: first decisions [E].
        horizon: decisions, the first included.
        base: index into `BASES`.
        frontend: as for `decide`.
        keys: of the router in each fork.
        positions: as for `decide`.
        owners: as for `decide`.
        tardiness: what a unit of lateness weighs; the credit keeps it if this is above 0.
        limits: a fork that has lost so much is given up, [E].
        losses: requests that missed an objective, and tardiness; inf if given up. Written to [E].
    """
    s: SimulationArrays = borrowed(lent.arrays)
    block_size = s.cluster.limits[0, 0].block_size
    for k in range(first, last):
        episode = s.episodes[k]
        if episode.done:
            continue
        losses[k] = 0.0
        action, decision, ended = actions[k], 1, episode.ended
        while True:
            episode.closed = decision == horizon
            step_environment(s, k, action)
            if episode.halted:
                next_incident(s, k)
                action = CONTINUE
                continue
            losses[k] += episode.ended - ended - episode.good
            if tardiness > 0.0:
                losses[k] += tardiness * s.credit.environments[k].tardiness
            if losses[k] >= limits[k]:
                losses[k] = np.inf
                episode.done = 1
            if episode.done or decision == horizon:
                break
            action = decide(s.knowledge, k, base, block_size, frontend, keys[k], positions, owners)
            decision += 1
            ended = episode.ended
    return 0
