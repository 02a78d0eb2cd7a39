"""llm-d's latency scorer: place requests by the room that their objectives leave.

Source: `routers_sglang_vllm_aibrix_llmd.md` §4.6, §4.4, §4.5; read in llm-d-router
`pkg/epp/framework/plugins/scheduling/scorer/latency/plugin.go` at 2b0e7579.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.llmd.affinity import keep_sticky
from prefixgym.baselines.llmd.scorers import matched_share
from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import random_word, uniform
from prefixgym.envs.view.id_table import NONE
from prefixgym.envs.view.view import View

_EPSILON = 1e-9
_MOST_WEIGHT = 100
# Draws of a decision.
_GLOBAL_EXPLORATION, _TIER, _EXPLORATION, _PICK = range(4)


class _Rule(NamedTuple):
    """Parameters as the kernels need them."""

    predicted: bool
    ttft_weight: float
    tpot_weight: float
    most: bool
    composite_kv: float
    composite_queue: float
    composite_prefix: float
    tau_global: float
    tau: float
    max_ttft_penalty_ms: float
    explore_sticky: float
    explore_negative: float


@register
@dataclass
class LlmdLatency(Router):
    """llm-d's latency-aware profile: affinity gate, headroom tier, latency scorer, weighted draw.

    Headroom = objective - prediction, for TTFT and TPOT. llm-d learns its predictions from the
    engines' metrics; here they come from the cost profiles, so they are better than its own:

        TTFT = frontend latency + backlog_seconds + prefill_seconds
        TPOT = running / throughput of the last poll (the present decode step), 0 when idle

    1. Affinity filter (see `LlmdAffinity`) with affinity_gate_tau_global and predicted TTFT,
       skipped with probability epsilon_explore_sticky.
    2. Pods whose headrooms are both ≥ 0 are the positive tier. If both tiers have pods, the
       negative one is kept with probability epsilon_explore_neg, else the positive one.
    3. The filter again, with affinity_gate_tau.
    4. Scores. From a positive tier all pods; from a negative one those without a request in flight,
       else those of the first kind that there is: only TPOT missed, only TTFT missed, both.

           c = 0.8 |TTFT headroom| + 0.2 |TPOT headroom|, each min-max normalised over these pods
               (0.5 if all are equal; then only the other counts, unless that is equal as well)
           w = ⌊100 (1 - c)⌋ + 1         "most" and positive: ⌊100 c⌋ + 1

       so that "least" packs pods close to their objectives. Other pods: 0.
    5. One pod with probability proportional to w.

    Without predictor w = 100 · mean of free KV, relative queue and matched share, rounded, over all
    pods; steps 1 to 4 are left out, as their inputs are missing.

    Attributes:
        predictor: `profile`, or `none` for the composite.
        ttft_weight: of the TTFT headroom.
        tpot_weight: of the TPOT headroom.
        headroom_selection_strategy: `least` or `most`.
        composite_kv_weight: of free KV, without predictor.
        composite_queue_weight: of the queue.
        composite_prefix_weight: of the matched share.
        affinity_gate_tau_global: share of the prompt; 0 turns the first filter off.
        affinity_gate_tau: share of the prompt; 0 turns the second filter off.
        max_ttft_penalty_ms: of the filters, milliseconds.
        epsilon_explore_sticky: probability.
        epsilon_explore_neg: probability.
    """

    name = "llmd_latency"
    source = "llm-d-router, latency-scorer with the gates of GIE v1.3's chart (§4.6)"
    family = "llm-d"
    knows = ("index", "ledger", "telemetry")

    predictor: str = "profile"
    ttft_weight: float = 0.8
    tpot_weight: float = 0.2
    headroom_selection_strategy: str = "least"
    composite_kv_weight: float = 1.0
    composite_queue_weight: float = 1.0
    composite_prefix_weight: float = 1.0
    affinity_gate_tau_global: float = 0.99
    affinity_gate_tau: float = 0.8
    max_ttft_penalty_ms: float = 18_000.0
    epsilon_explore_sticky: float = 0.01
    epsilon_explore_neg: float = 0.01

    def __post_init__(self) -> None:
        self.require("predictor", self.predictor in ("profile", "none"), "profile, none")
        strategy = self.headroom_selection_strategy
        self.require("headroom_selection_strategy", strategy in ("least", "most"), "least, most")
        for name in (
            "affinity_gate_tau_global",
            "affinity_gate_tau",
            "epsilon_explore_sticky",
            "epsilon_explore_neg",
        ):
            self.require(name, 0 <= getattr(self, name) <= 1, "0 to 1")
        for name in (
            "ttft_weight",
            "tpot_weight",
            "composite_kv_weight",
            "composite_queue_weight",
            "composite_prefix_weight",
            "max_ttft_penalty_ms",
        ):
            self.require(name, 0 <= getattr(self, name) < math.inf, "at least 0 and finite")
        self.require("tpot_weight", self.ttft_weight + self.tpot_weight > 0, "above 0 in sum")
        composite = self.composite_kv_weight + self.composite_queue_weight
        composite += self.composite_prefix_weight
        self.require("composite_prefix_weight", composite > 0, "above 0 in sum")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """One random stream for each environment."""
        self._keys = router_keys(seeds)
        headrooms = self.ttft_weight + self.tpot_weight
        composite = self.composite_kv_weight + self.composite_queue_weight
        composite += self.composite_prefix_weight
        self._rule = _Rule(
            self.predictor == "profile",
            self.ttft_weight / headrooms,
            self.tpot_weight / headrooms,
            self.headroom_selection_strategy == "most",
            self.composite_kv_weight / composite,
            self.composite_queue_weight / composite,
            self.composite_prefix_weight / composite,
            self.affinity_gate_tau_global,
            self.affinity_gate_tau,
            self.max_ttft_penalty_ms,
            self.epsilon_explore_sticky,
            self.epsilon_explore_neg,
        )

    def weights(self, view: View) -> NDArray[np.float64]:
        """w of every pod, [E, N]; 0 for those that are out."""
        weights = np.empty(view.instances.shape)
        latency = view.cluster.frontend_latency
        _weigh(self._rule, view.requests, view.instances, latency, self._keys, weights)
        return weights

    def route(self, view: View) -> NDArray[np.int64]:
        """A draw by these weights."""
        chosen = np.empty(view.num_envs, np.int64)
        _draw(self.weights(view), view.requests, view.instances, self._keys, chosen)
        return chosen


@kernel
def _uniform(key: np.uint64, index: int, draw: int) -> float:
    """One of the draws of a decision."""
    return uniform(random_word(key, index), draw)


@kernel
def _weigh(
    rule: _Rule,
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    frontend_latency: float,
    keys: NDArray[np.uint64],
    weights: NDArray[np.float64],
) -> None:
    num_pods = weights.shape[1]
    picks = np.empty(num_pods, np.int64)
    shares, ttft_ms = np.empty(num_pods), np.empty(num_pods)
    ttft_room, tpot_room = np.empty(num_pods), np.empty(num_pods)
    for e in range(len(weights)):
        request, pods = requests[e], instances[e]
        count = candidates(pods, picks)
        weights[e, :] = 0.0
        for k in range(count):
            pod = picks[k]
            row = pods[pod]
            shares[pod] = matched_share(row["hit_tokens"], request["prompt_tokens"])
            ttft = frontend_latency + row["backlog_seconds"] + row["prefill_seconds"]
            tpot = row["running"] / row["throughput"] if row["throughput"] > 0 else 0.0
            ttft_ms[pod] = 1000.0 * ttft
            ttft_room[pod] = request["slo_ttft"] - ttft
            tpot_room[pod] = request["slo_tpot"] - tpot
        if not rule.predicted:
            _weigh_composite(rule, pods, shares, picks, count, weights[e])
            continue
        penalty, index = rule.max_ttft_penalty_ms, request["index"]
        if _uniform(keys[e], index, _GLOBAL_EXPLORATION) >= rule.explore_sticky:
            count = keep_sticky(shares, ttft_ms, rule.tau_global, penalty, picks, count)
        keep_negative = _uniform(keys[e], index, _TIER) < rule.explore_negative
        count = _keep_tier(ttft_room, tpot_room, keep_negative, picks, count)
        if _uniform(keys[e], index, _EXPLORATION) >= rule.explore_sticky:
            count = keep_sticky(shares, ttft_ms, rule.tau, penalty, picks, count)
        _weigh_headroom(rule, pods, ttft_room, tpot_room, picks, count, weights[e])


@kernel
def _weigh_composite(
    rule: _Rule,
    pods: NDArray[np.void],
    shares: NDArray[np.float64],
    picks: NDArray[np.int64],
    count: int,
    weights: NDArray[np.float64],
) -> None:
    longest = 0
    for k in range(count):
        longest = max(longest, pods[picks[k]]["waiting"])
    for k in range(count):
        row = pods[picks[k]]
        queue = (longest - row["waiting"]) / longest if longest > 0 else 1.0
        score = rule.composite_kv * (1.0 - row["kv_usage"])
        score += rule.composite_queue * queue + rule.composite_prefix * shares[picks[k]]
        weights[picks[k]] = math.floor(_MOST_WEIGHT * score + 0.5)


@kernel
def _kind(ttft_room: float, tpot_room: float) -> int:
    """0: both objectives are met, 1: TPOT is missed, 2: TTFT is, 3: both are."""
    return 2 * (ttft_room < 0.0) + (tpot_room < 0.0)


@kernel
def _keep_tier(
    ttft_room: NDArray[np.float64],
    tpot_room: NDArray[np.float64],
    keep_negative: bool,
    picks: NDArray[np.int64],
    count: int,
) -> int:
    """Move one tier to the front of `picks`; return its size, or `count` if there is only one."""
    kept = 0
    for k in range(count):
        pod = picks[k]
        if (_kind(ttft_room[pod], tpot_room[pod]) != 0) == keep_negative:
            picks[kept] = pod
            kept += 1
    return kept if kept > 0 else count


@kernel
def _weigh_headroom(
    rule: _Rule,
    pods: NDArray[np.void],
    ttft_room: NDArray[np.float64],
    tpot_room: NDArray[np.float64],
    picks: NDArray[np.int64],
    count: int,
    weights: NDArray[np.float64],
) -> None:
    best, any_idle = 4, False
    for k in range(count):
        pod = picks[k]
        best = min(best, _kind(ttft_room[pod], tpot_room[pod]))
        any_idle = any_idle or pods[pod]["requests"] == 0
    kept = 0
    for k in range(count):
        pod = picks[k]
        if best > 0 and any_idle:
            fits = pods[pod]["requests"] == 0
        else:
            fits = _kind(ttft_room[pod], tpot_room[pod]) == best
        if fits:
            picks[kept] = pod
            kept += 1

    ttft_low, ttft_range = _absolute_range(ttft_room, picks, kept)
    tpot_low, tpot_range = _absolute_range(tpot_room, picks, kept)
    ttft_weight, tpot_weight = rule.ttft_weight, rule.tpot_weight
    if ttft_range <= _EPSILON and tpot_range > _EPSILON:
        ttft_weight, tpot_weight = 0.0, 1.0
    elif tpot_range <= _EPSILON and ttft_range > _EPSILON:
        ttft_weight, tpot_weight = 1.0, 0.0
    for k in range(kept):
        pod = picks[k]
        ttft = tpot = 0.5
        if ttft_range > _EPSILON:
            ttft = (abs(ttft_room[pod]) - ttft_low) / ttft_range
        if tpot_range > _EPSILON:
            tpot = (abs(tpot_room[pod]) - tpot_low) / tpot_range
        combined = ttft_weight * ttft + tpot_weight * tpot
        if not (rule.most and best == 0):
            combined = 1.0 - combined
        weights[pod] = math.floor(combined * _MOST_WEIGHT) + 1


@kernel
def _absolute_range(
    values: NDArray[np.float64], picks: NDArray[np.int64], count: int
) -> tuple[float, float]:
    """Least absolute value of the candidates, and how far up they reach from there."""
    low, high = np.inf, 0.0
    for k in range(count):
        low, high = min(low, abs(values[picks[k]])), max(high, abs(values[picks[k]]))
    return low, high - low


@kernel
def _draw(
    weights: NDArray[np.float64],
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    keys: NDArray[np.uint64],
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(weights.shape[1], np.int64)
    for e in range(len(chosen)):
        count = candidates(instances[e], picks)
        total = 0.0
        for k in range(count):
            total += weights[e, picks[k]]
        even = 1.0 if total == 0.0 else 0.0  # all weights 0: anybody
        left = _uniform(keys[e], requests[e]["index"], _PICK) * (total + even * count)
        chosen[e] = NONE
        for k in range(count):
            weight = weights[e, picks[k]] + even
            if weight > 0.0 and (chosen[e] == NONE or left >= 0.0):
                chosen[e] = picks[k]
            left -= weight
