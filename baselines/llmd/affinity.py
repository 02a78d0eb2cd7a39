"""llm-d's "sticky until saturated": keep to the pods that hold the prompt, then the least tokens.

Source: `routers_sglang_vllm_aibrix_llmd.md` §4.4; read in llm-d-router
`pkg/epp/framework/plugins/scheduling/filter/prefixcacheaffinity/plugin.go` at 066c20ea.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.llmd.scorers import matched_share
from prefixgym.baselines.llmd.weighted import LlmdPrecise
from prefixgym.baselines.router import register
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import uniform
from prefixgym.envs.view.view import View

_EXPLORATION = np.uint64(0x45)
"""Keeps the draws of exploration apart from those of ties."""


@register
@dataclass
class LlmdAffinity(LlmdPrecise):
    """llm-d's prefix-cache-affinity filter, then its token-load scorer alone.

    A pod is sticky if it has at least `affinity_threshold` of the prompt. The others are left out,
    unless there is no sticky pod, or the best sticky pod's TTFT is more than `max_ttft_penalty_ms`
    (strict) above the best of the others: then all stay in, and the load decides.

        TTFT = tokens in flight / peak_prefill_throughput

    Attributes:
        affinity_threshold: share of the prompt, 0..1; 0 turns the filter off.
        max_ttft_penalty_ms: milliseconds; 0 always sticks.
        peak_prefill_throughput: tokens a second; the default was measured with Qwen 32B on two
            H100.
        exploration_probability: of leaving out nobody.
    """

    name = "llmd_affinity"
    source = "llm-d-router, prefix-cache-affinity-filter + token-load-scorer, 2026-08 (§4.4)"
    knows = ("index", "ledger")

    queue_scorer: float = 0.0
    kv_cache_utilization_scorer: float = 0.0
    prefix_cache_scorer: float = 0.0
    token_load_scorer: float = 1.0
    affinity_threshold: float = 0.8
    max_ttft_penalty_ms: float = 18_000.0
    peak_prefill_throughput: float = 15_928.0
    exploration_probability: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("affinity_threshold", "exploration_probability"):
            self.require(name, 0 <= getattr(self, name) <= 1, "0 to 1")
        self.require("max_ttft_penalty_ms", self.max_ttft_penalty_ms >= 0, "at least 0")
        self.require("peak_prefill_throughput", self.peak_prefill_throughput > 0, "above 0")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """One more random stream for each environment."""
        super().reset(cluster, seeds)
        self._exploration = self._keys ^ _EXPLORATION

    def scores(self, view: View) -> NDArray[np.float64]:
        """Those of the scorers; inf for the pods that the filter leaves out."""
        scores = super().scores(view)
        _leave_out(
            view.requests,
            view.instances,
            self.matched_tokens(view),
            self._exploration,
            self.affinity_threshold,
            self.max_ttft_penalty_ms,
            self.peak_prefill_throughput,
            self.exploration_probability,
            scores,
        )
        return scores


@kernel
def keep_sticky(
    shares: NDArray[np.float64],
    ttft_ms: NDArray[np.float64],
    threshold: float,
    max_penalty_ms: float,
    picks: NDArray[np.int64],
    count: int,
) -> int:
    """Move the pods that the affinity filter keeps to the front of `picks`; return their number.

    Args:
        shares: matched share of the prompt, [N].
        ttft_ms: estimated TTFT, [N].
        threshold: share from which a pod is sticky; 0 keeps all.
        max_penalty_ms: see `LlmdAffinity`.
        picks: the candidates; the order of those that are kept stays.
        count: how many.
    """
    if threshold <= 0.0:
        return count
    num_sticky, best_sticky, best_other = 0, np.inf, np.inf
    for k in range(count):
        pod = picks[k]
        if shares[pod] >= threshold:
            num_sticky += 1
            best_sticky = min(best_sticky, ttft_ms[pod])
        else:
            best_other = min(best_other, ttft_ms[pod])
    too_slow = max_penalty_ms > 0.0 and best_sticky - best_other > max_penalty_ms
    if num_sticky == 0 or num_sticky == count or too_slow:
        return count
    kept = 0
    for k in range(count):
        if shares[picks[k]] >= threshold:
            picks[kept] = picks[k]
            kept += 1
    return kept


@kernel
def _leave_out(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    matched: NDArray[np.int64],
    exploration: NDArray[np.uint64],
    threshold: float,
    max_penalty_ms: float,
    throughput: float,
    exploration_probability: float,
    scores: NDArray[np.float64],
) -> None:
    num_pods = scores.shape[1]
    picks = np.empty(num_pods, np.int64)
    shares, ttft_ms = np.empty(num_pods), np.empty(num_pods)
    kept_score = np.empty(num_pods)
    for e in range(len(scores)):
        count = candidates(instances[e], picks)
        for pod in range(num_pods):
            shares[pod] = matched_share(matched[e, pod], requests[e]["prompt_tokens"])
            ttft_ms[pod] = instances[e, pod]["prefill_tokens"] / throughput * 1000.0
        if uniform(exploration[e], requests[e]["index"]) < exploration_probability:
            continue
        count = keep_sticky(shares, ttft_ms, threshold, max_penalty_ms, picks, count)
        kept_score[:] = np.inf
        for k in range(count):
            kept_score[picks[k]] = scores[e, picks[k]]
        scores[e, :] = kept_score
