"""Dynamo's KV router: prefill blocks that are not cached plus blocks in use, the least sum wins.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §2.2-§2.5; read in ai-dynamo/dynamo
`lib/kv-router/src/scheduling/selector/default.rs` at 07a6c9ce and
`lib/llm/src/discovery/worker_monitor.rs` at 00220774; checked with the wheel ai-dynamo-runtime
1.6.1, which decides where the two differ.

Dynamo's block size follows the engine, and so does ours: a block is one of the cluster's. Only
device memory is credited, as no instance has other tiers. The router's queue, off by default, is
not here: requests would wait in it before an instance is chosen for them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, random_least
from prefixgym.baselines.dynamo.active_sequences import ActiveSequences
from prefixgym.baselines.probabilistic import rendezvous, softmax
from prefixgym.baselines.router import Source, register
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import random_word
from prefixgym.envs.view.view import View


@dataclass
class _KvRouter(ScoredRouter):
    """What all versions share: the load that is tracked, busy instances, the choice by cost.

    Temperature 0 takes the least cost, one of equals at random; above 0 an instance is drawn with
    probability proportional to exp(-cost / ((max - min) · temperature)), max and min over the
    instances that may be chosen.

    An instance is busy and not chosen while one of three limits is exceeded, all off by default:

        blocks > active_decode_blocks_threshold · KV blocks, where blocks are those of the router's
            own requests in flight, or those that the engine says are in use
        prefill tokens > active_prefill_tokens_threshold
        prefill tokens > active_prefill_tokens_threshold_frac · max_num_batched_tokens

    If every instance that is there is busy, the request is rejected.

    Attributes:
        router_temperature: 0 takes the least cost, above 0 draws.
        active_decode_blocks_threshold: share of the KV blocks above which an instance is busy.
        active_prefill_tokens_threshold: tokens in prefill above which an instance is busy.
        active_prefill_tokens_threshold_frac: the same as a share of max_num_batched_tokens.
    """

    may_reject = True

    router_temperature: float = 0.0
    active_decode_blocks_threshold: float = math.inf
    active_prefill_tokens_threshold: float = math.inf
    active_prefill_tokens_threshold_frac: float = math.inf

    def __post_init__(self) -> None:
        share = self.active_decode_blocks_threshold
        self._require_finite("router_temperature")
        self.require(
            "active_decode_blocks_threshold", 0 <= share <= 1 or share == math.inf, "0 to 1, inf"
        )
        for limit in ("active_prefill_tokens_threshold", "active_prefill_tokens_threshold_frac"):
            self.require(limit, getattr(self, limit) >= 0, "at least 0")

    def _require_finite(self, parameter: str) -> None:
        holds = 0 <= getattr(self, parameter) < math.inf
        self.require(parameter, holds, "at least 0 and finite")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing in flight."""
        super().reset(cluster, seeds)
        shape = len(seeds), len(cluster.instances)
        self._block_size = cluster.block_size
        self._sequences = ActiveSequences(*shape, cluster.block_size)
        self._overlap_blocks = np.empty(shape, np.int64)
        self._decode_blocks = np.empty(shape, np.int64)
        self._costs = np.empty(shape)
        kv_blocks = [cluster.kv_blocks(i) for i in range(shape[1])]
        self._most_blocks = self.active_decode_blocks_threshold * np.array(kv_blocks, np.float64)
        budgets = np.array([i.max_batched_tokens for i in cluster.instances], np.float64)
        self._most_prefill_tokens = np.minimum(
            self.active_prefill_tokens_threshold,
            self.active_prefill_tokens_threshold_frac * budgets,
        )

    def hear(self, view: View) -> None:
        """Prefills that are over and requests that have ended."""
        self._sequences.hear(view)

    def _find_overlap(self, view: View) -> None:
        """Write the prompt's cached blocks, as the router believes, to `_overlap_blocks`."""
        np.floor_divide(view.instances["hit_tokens"], self._block_size, out=self._overlap_blocks)

    def _score(
        self,
        view: View,
        overlap_score_credit: float,
        overlap_score_credit_decay: float,
        prefill_load_scale: float,
        decode_active_request_weight: float,
        track_prefill_tokens: bool,
    ) -> NDArray[np.float64]:
        """Costs, [E, N], by the current formula."""
        self._find_overlap(view)
        self._sequences.potential_blocks(view, self._decode_blocks)
        _score(
            view.requests,
            view.instances,
            self._sequences.workers,
            self._overlap_blocks,
            self._decode_blocks,
            self._block_size,
            overlap_score_credit,
            overlap_score_credit_decay,
            prefill_load_scale,
            decode_active_request_weight,
            track_prefill_tokens,
            self._most_blocks,
            self.active_decode_blocks_threshold,
            self._most_prefill_tokens,
            self._costs,
        )
        return self._costs

    def route(self, view: View) -> NDArray[np.int64]:
        """The least cost, or a draw that prefers it."""
        self.hear(view)
        chosen = np.empty(view.num_envs, np.int64)
        _choose(
            self.scores(view),
            view.requests,
            view.instances,
            self._keys,
            self.router_temperature,
            chosen,
        )
        self.commit(view, chosen)
        return chosen

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Book the requests."""
        self._book(view, chosen, True)

    def _book(self, view: View, chosen: NDArray[np.int64], track_prefill_tokens: bool) -> None:
        tokens = np.zeros(view.num_envs, np.int64)
        if track_prefill_tokens:
            # Of a rejected request it does not matter whose blocks these are.
            last = self._overlap_blocks.shape[1] - 1
            envs = np.arange(view.num_envs)
            cached = self._overlap_blocks[envs, np.minimum(chosen, last)] * self._block_size
            tokens = np.maximum(0, view.requests["prompt_tokens"] - cached)
        self._sequences.book(view, chosen, tokens)


@register
@dataclass
class Dynamo(_KvRouter):
    """Dynamo's KV router as of 1.6.1, with the defaults of its command line.

        raw_i    = (active_prefill_tokens_i + L) / block_size
        excess_i = (active_prefill_tokens_i - least of all that may be chosen) / block_size
        credit_i = overlap_score_credit · overlap_i
                   / (1 + overlap_score_credit_decay · excess_i / blocks of the prompt)
        cost_i   = prefill_load_scale · max(0, raw_i - credit_i) + decode_blocks_i
                   + decode_active_request_weight · active_requests_i

    and without router_track_prefill_tokens, where nothing decays,

        cost_i   = max(0, decode_blocks_i - credit_i)
                   + decode_active_request_weight · active_requests_i

    overlap_i = leading blocks of the prompt cached on i as reported; active_prefill_tokens_i and
    decode_blocks_i = what `ActiveSequences` has, the latter with this request's own blocks. A
    booking counts the tokens that are not cached, whatever the credit is. `hit_tokens` stops before
    the prompt's last token, so a prompt that is cached to its end counts here with one block less
    than in Dynamo.

    Attributes:
        overlap_score_credit: blocks of prefill that a cached block takes off.
        overlap_score_credit_decay: how fast the credit fades where more is in prefill.
        prefill_load_scale: blocks in use that a block of prefill weighs.
        decode_active_request_weight: blocks that a request in flight weighs.
        router_track_prefill_tokens: False leaves prefill out, as for a pool that only decodes.
    """

    name = "dynamo"
    source = "NVIDIA Dynamo 1.6.1, KV router (§2.2)"
    family = "Dynamo"
    knows: ClassVar[tuple[Source, ...]] = ("index", "ledger", "telemetry")

    overlap_score_credit: float = 1.0
    overlap_score_credit_decay: float = 0.0
    prefill_load_scale: float = 1.0
    decode_active_request_weight: float = 0.0
    router_track_prefill_tokens: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_finite("overlap_score_credit")
        self._require_finite("overlap_score_credit_decay")
        self._require_finite("prefill_load_scale")
        self._require_finite("decode_active_request_weight")

    def scores(self, view: View) -> NDArray[np.float64]:
        """Blocks, [E, N]; inf where the instance is busy."""
        return self._score(
            view,
            self.overlap_score_credit,
            self.overlap_score_credit_decay,
            self.prefill_load_scale,
            self.decode_active_request_weight,
            self.router_track_prefill_tokens,
        )

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Book the requests."""
        self._book(view, chosen, self.router_track_prefill_tokens)


@register
@dataclass
class DynamoClassic(_KvRouter):
    """Dynamo's KV router of 2025 to early 2026.

        cost_i = overlap_score_weight · (active_prefill_tokens_i + L - cached_i) / block_size
                 + decode_blocks_i

    With the documentation's example, prefill and decode blocks (8, 10), (5, 5), (2, 9) cost 18, 10
    and 11. It is `dynamo` with prefill_load_scale in the place of overlap_score_weight, and the
    same router while both are 1: later versions split what the weight mixed, how much a hit is
    worth and how much prefill weighs.

    Attributes:
        overlap_score_weight: blocks in use that a block of prefill weighs.
    """

    name = "dynamo_classic"
    source = "NVIDIA Dynamo of 2025 to early 2026, KV router (§2.2)"
    family = "Dynamo"
    knows = ("index", "ledger", "telemetry")

    overlap_score_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_finite("overlap_score_weight")

    def scores(self, view: View) -> NDArray[np.float64]:
        """Blocks, [E, N]; inf where the instance is busy."""
        return self._score(view, 1.0, 0.0, self.overlap_score_weight, 0.0, True)


@kernel
def _score(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    workers: NDArray[np.void],
    overlap_blocks: NDArray[np.int64],
    decode_blocks: NDArray[np.int64],
    block_size: int,
    overlap_score_credit: float,
    overlap_score_credit_decay: float,
    prefill_load_scale: float,
    decode_active_request_weight: float,
    track_prefill_tokens: bool,
    most_blocks: NDArray[np.float64],
    most_kv_usage: float,
    most_prefill_tokens: NDArray[np.float64],
    costs: NDArray[np.float64],
) -> None:
    num_instances = costs.shape[1]
    picks = np.empty(num_instances, np.int64)
    for e in range(len(costs)):
        prompt_tokens = requests[e]["prompt_tokens"]
        request_blocks = -(-prompt_tokens // block_size)
        for i in range(num_instances):
            busy = (
                workers[e, i]["blocks"] > most_blocks[i]
                or instances[e, i]["kv_usage"] > most_kv_usage
                or workers[e, i]["prefill_tokens"] > most_prefill_tokens[i]
            )
            costs[e, i] = np.inf if busy else 0.0
        least_active = np.iinfo(np.int64).max
        for k in range(candidates(instances[e], picks)):
            if costs[e, picks[k]] < np.inf:
                least_active = min(least_active, workers[e, picks[k]]["prefill_tokens"])
        for i in range(num_instances):
            if costs[e, i] == np.inf:
                continue
            worker = workers[e, i]
            credit = overlap_score_credit
            if track_prefill_tokens and overlap_score_credit_decay > 0.0:
                excess = max(0, worker["prefill_tokens"] - least_active) / block_size
                credit /= 1.0 + overlap_score_credit_decay * (excess / request_blocks)
            saved = credit * overlap_blocks[e, i]
            if track_prefill_tokens:
                raw = (worker["prefill_tokens"] + prompt_tokens) / block_size
                costs[e, i] = prefill_load_scale * max(0.0, raw - saved) + decode_blocks[e, i]
            else:
                costs[e, i] = max(0.0, decode_blocks[e, i] - saved)
            costs[e, i] += decode_active_request_weight * worker["requests"]


@kernel
def _choose(
    costs: NDArray[np.float64],
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    keys: NDArray[np.uint64],
    temperature: float,
    chosen: NDArray[np.int64],
) -> None:
    num_instances = costs.shape[1]
    picks = np.empty(num_instances, np.int64)
    shares = np.empty(num_instances)
    for e in range(len(chosen)):
        count = 0
        for k in range(candidates(instances[e], picks)):
            if costs[e, picks[k]] < np.inf:
                picks[count] = picks[k]
                count += 1
        index = requests[e]["index"]
        if count == 0:
            chosen[e] = num_instances  # all are busy: rejected
        elif temperature == 0.0:
            chosen[e] = random_least(costs[e], picks, count, keys[e], index)
        else:
            softmax(costs[e], picks, count, 0, 1.0, temperature, shares)
            chosen[e] = rendezvous(random_word(keys[e], index), shares)
