"""Forks played by a base router, compiled: many decisions in one call.

Base routers are those that remember nothing, so that a fork needs no copy of their memory: what
they decide depends on the view, the environment's key and their hash ring. The rules are the
routers' own functions.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, random_least
from prefixgym.baselines.references.min_ttft import dump_scores, ttft_scores
from prefixgym.baselines.vllm.fallback import TO_FALLBACK, session_home
from prefixgym.baselines.vllm.loadaware import best_by_load
from prefixgym.envs.decisions import SimulationArrays, step_environment
from prefixgym.envs.jit import borrowed, kernel
from prefixgym.envs.lent import Lent
from prefixgym.envs.view.arrays import ViewArrays

BASES = ("greedy_dump", "least_load", "loadaware", "loadaware_tokens", "min_ttft")
_GREEDY_DUMP, _LEAST_LOAD, _LOADAWARE, _LOADAWARE_TOKENS, _MIN_TTFT = range(len(BASES))

LOADAWARE_BETA = 1.0
LOADAWARE_VIRTUAL_NODES = 160
"""Defaults of `loadaware`; its fallback is the session's home."""


@kernel
def decide(
    v: ViewArrays,
    e: int,
    base: int,
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
        frontend: s, the cluster's frontend latency.
        key: of the router in this environment, see `router_keys`.
        positions: of the ring with LOADAWARE_VIRTUAL_NODES.
        owners: of the same ring.
    """
    request, instances = v.requests[e], v.instances[e]
    if base in (_LOADAWARE, _LOADAWARE_TOKENS):
        loads = instances["requests"] if base == _LOADAWARE else instances["prefill_tokens"]
        chosen = best_by_load(request, instances, loads, LOADAWARE_BETA)
        if chosen == TO_FALLBACK:
            chosen = session_home(request, instances, positions, owners, key)
        return chosen
    scores = np.empty(len(instances))
    if base == _GREEDY_DUMP:
        dump_scores(request, instances, frontend, scores)
    elif base == _MIN_TTFT:
        ttft_scores(instances, frontend, scores)
    else:
        for i in range(len(scores)):
            scores[i] = instances[i]["requests"]
    picks = np.empty(len(instances), np.int64)
    count = candidates(instances, picks)
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
    for k in range(first, last):
        episode = s.episodes[k]
        if episode.done:
            continue
        losses[k] = 0.0
        action = actions[k]
        for decision in range(horizon):
            if decision > 0:
                action = decide(s.knowledge, k, base, frontend, keys[k], positions, owners)
            if decision == horizon - 1:
                episode.closed = 1
            ended = episode.ended
            step_environment(s, k, action)
            losses[k] += episode.ended - ended - episode.good
            if tardiness > 0.0:
                losses[k] += tardiness * s.credit.environments[k].tardiness
            if losses[k] >= limits[k]:
                losses[k] = np.inf
                episode.done = 1
            if episode.done:
                break
    return 0
