"""SGLang's in-tree router of June 2026: cache_aware_zmq, fed by the engines' cache events.

Source: `routers_sglang_vllm_aibrix_llmd.md` §1.14; read in sglang
`experimental/sgl-router/src/policies/cache_aware_zmq.rs` at 080dd47d.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, first_least
from prefixgym.baselines.router import register
from prefixgym.baselines.scored import ScoredRouter, Ties
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.view.view import View


@register
@dataclass
class CacheAwareZmq(ScoredRouter):
    """The least loaded of those that hold most of the prompt, unless load is out of balance.

    load = this router's requests in flight. Equals: the first.

    1. Out of balance iff max - min > balance_abs_threshold and max > balance_rel_threshold · min:
       the least loaded instance.
    2. If the longest prefix cached anywhere is more than cache_threshold of the prompt's full
       blocks: the least loaded of the instances that hold all of that prefix. If it leads the least
       loaded instance of all by more than hit_load_abs_threshold requests and has more than
       hit_load_rel_threshold times its load, that one instead; an infinite ratio (the default)
       turns this off.
    3. Else the least loaded instance.

    An engine computes at least one token of every prompt, so the index never reports the block of
    the last one: a prompt that is cached to its end counts as one block less than all.

    Attributes:
        cache_threshold: share of the prompt's blocks, 0..1.
        balance_abs_threshold: requests.
        balance_rel_threshold: ratio.
        hit_load_abs_threshold: requests.
        hit_load_rel_threshold: ratio.
    """

    name = "cache_aware_zmq"
    source = "SGLang in-tree sgl-router, cache_aware_zmq, 2026-06 (§1.14)"
    family = "SGLang"
    knows = ("index", "ledger")
    ties: ClassVar[Ties] = "first"

    cache_threshold: float = 0.5
    balance_abs_threshold: int = 32
    balance_rel_threshold: float = 1.1
    hit_load_abs_threshold: int = 0
    hit_load_rel_threshold: float = math.inf

    def __post_init__(self) -> None:
        self.require("cache_threshold", 0 <= self.cache_threshold <= 1, "0 to 1")
        for name in (
            "balance_abs_threshold",
            "balance_rel_threshold",
            "hit_load_abs_threshold",
            "hit_load_rel_threshold",
        ):
            self.require(name, getattr(self, name) >= 0, "at least 0")

    def scores(self, view: View) -> NDArray[np.float64]:
        """The load of those that may get the request, inf for the others."""
        scores = np.empty(view.instances.shape)
        _score(
            view.requests,
            view.instances,
            view.cluster.block_size,
            self.cache_threshold,
            self.balance_abs_threshold,
            self.balance_rel_threshold,
            self.hit_load_abs_threshold,
            self.hit_load_rel_threshold,
            scores,
        )
        return scores


@kernel
def _score(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    block_size: int,
    cache_threshold: float,
    balance_abs: int,
    balance_rel: float,
    hit_load_abs: int,
    hit_load_rel: float,
    scores: NDArray[np.float64],
) -> None:
    for e in range(len(scores)):
        holders_by_load(
            requests[e],
            instances[e],
            block_size,
            cache_threshold,
            balance_abs,
            balance_rel,
            hit_load_abs,
            hit_load_rel,
            scores[e],
        )


@kernel
def holders_by_load(
    request: Record,
    instances: NDArray[np.void],
    block_size: int,
    cache_threshold: float,
    balance_abs: int,
    balance_rel: float,
    hit_load_abs: int,
    hit_load_rel: float,
    scores: NDArray[np.float64],
) -> None:
    """Scores of one environment: loads, inf for those that may not get the request."""
    num_instances = len(instances)
    picks, owners = np.empty(num_instances, np.int64), np.empty(num_instances, np.int64)
    for i in range(num_instances):
        scores[i] = instances[i]["requests"]
    count = candidates(instances, picks)
    low = high = scores[picks[0]]
    matched = 0
    for k in range(count):
        low, high = min(low, scores[picks[k]]), max(high, scores[picks[k]])
        matched = max(matched, instances[picks[k]]["hit_tokens"])
    full_blocks = request["prompt_tokens"] // block_size
    out_of_balance = high - low > balance_abs and high > balance_rel * low
    if out_of_balance or matched // block_size <= cache_threshold * full_blocks:
        return
    num_owners = 0
    for k in range(count):
        if instances[picks[k]]["hit_tokens"] == matched:
            owners[num_owners] = picks[k]
            num_owners += 1
    load = scores[first_least(scores, owners, num_owners)]
    if load - low > hit_load_abs and load > hit_load_rel * low:
        return
    for i in range(num_instances):
        if instances[i]["hit_tokens"] < matched:
            scores[i] = np.inf
