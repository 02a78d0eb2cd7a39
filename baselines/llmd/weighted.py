"""llm-d's endpoint picker: weighted scorers, and the pod with the highest sum.

The same framework serves the Gateway API inference extension (GIE), whose code it took over.

Source: `routers_sglang_vllm_aibrix_llmd.md` §4.0, §4.1, §4.3, §4.5.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.llmd.scorers import NEVER, Weights, add_totals, is_cold
from prefixgym.baselines.router import Source, register
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View


@register
@dataclass
class LlmdPrecise(ScoredRouter):
    """The pod with the highest weighted sum of scores; ties at random. Default weights 2, 2, 3.

    The prefix is looked up in an index that the engines' KV events feed: `hit_tokens` of the view.
    Queue, running requests and KV usage are polled. Nothing corrects them for requests sent since.

    The real index has blocks of 16 tokens, so shares are of the prompt's tokens here. It is not
    told that an engine computes at least the last token: there a prompt can match wholly.

    A pod's tokens in flight are those of the view's ledger: booked as uncached when sent, released
    at the first token.

    Attributes:
        queue_scorer: weight of the waiting requests; all weights 0 or more.
        kv_cache_utilization_scorer: of the KV usage.
        prefix_cache_scorer: of the matched share of the prompt.
        running_requests_size_scorer: of the running requests.
        load_aware_scorer: of the waiting requests up to `load_aware_threshold`.
        load_aware_threshold: requests.
        token_load_scorer: of the tokens in flight.
        queue_threshold_tokens: tokens in flight that score 0.
        active_request_scorer: of this router's requests in flight.
        idle_threshold: requests up to which a pod counts as idle.
        max_busy_score: the most that a busy pod scores.
        no_hit_lru_scorer: of the time since a pod's last cold request.
    """

    name = "llmd_precise"
    source = "llm-d-router, queue 2, KV 2, precise prefix 3, ebab6879 of 2026-08-22 (§4.0, §4.3)"
    family = "llm-d"
    knows: ClassVar[tuple[Source, ...]] = ("index", "telemetry")

    queue_scorer: float = 2.0
    kv_cache_utilization_scorer: float = 2.0
    prefix_cache_scorer: float = 3.0
    running_requests_size_scorer: float = 0.0
    load_aware_scorer: float = 0.0
    load_aware_threshold: int = 128
    token_load_scorer: float = 0.0
    queue_threshold_tokens: int = 4_194_304
    active_request_scorer: float = 0.0
    idle_threshold: int = 0
    max_busy_score: float = 1.0
    no_hit_lru_scorer: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name.endswith("_scorer"):
                weight = getattr(self, field.name)
                self.require(field.name, 0 <= weight < np.inf, "at least 0 and finite")
        self.require("load_aware_threshold", self.load_aware_threshold >= 1, "at least 1")
        self.require("queue_threshold_tokens", self.queue_threshold_tokens >= 1, "at least 1")
        self.require("idle_threshold", self.idle_threshold >= 0, "at least 0")
        self.require("max_busy_score", 0 <= self.max_busy_score <= 1, "0 to 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """No cold request yet."""
        super().reset(cluster, seeds)
        self._last_cold = np.full((len(seeds), len(cluster.instances)), NEVER, np.int64)
        self._weights = Weights(
            self.queue_scorer,
            self.kv_cache_utilization_scorer,
            self.prefix_cache_scorer,
            self.running_requests_size_scorer,
            self.load_aware_scorer,
            self.load_aware_threshold,
            self.token_load_scorer,
            self.queue_threshold_tokens,
            self.active_request_scorer,
            self.idle_threshold,
            self.max_busy_score,
            self.no_hit_lru_scorer,
        )

    def matched_tokens(self, view: View) -> NDArray[np.int64]:
        """Tokens of the current prompts that each pod is believed to have, [E, N]."""
        matched: NDArray[np.int64] = view.instances["hit_tokens"]
        return matched

    def scores(self, view: View) -> NDArray[np.float64]:
        """The weighted sums, negative."""
        scores = np.empty(view.instances.shape)
        _scores(
            self._weights,
            view.requests,
            view.instances,
            self.matched_tokens(view),
            self._last_cold,
            scores,
        )
        return scores

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """A cold request makes its pod the last to get one."""
        if self.no_hit_lru_scorer > 0:
            matched = self.matched_tokens(view)
            _note_cold(view.requests, view.instances, matched, self._last_cold, chosen)


@register
@dataclass
class LlmdNoHitLru(LlmdPrecise):
    """`llmd_precise` with the no-hit-LRU scorer, which spreads requests that hit nowhere.

    It keeps a cold cluster from piling up on one pod (llm-d-router#346).
    """

    name = "llmd_no_hit_lru"
    source = "llm-d-router, with no-hit-lru-scorer, ebab6879 of 2026-08-22 (§4.1)"

    no_hit_lru_scorer: float = 1.0


@kernel
def _scores(
    weights: Weights,
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    matched: NDArray[np.int64],
    last_cold: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    picks, values = np.empty(scores.shape[1], np.int64), np.empty(scores.shape[1])
    for e in range(len(scores)):
        count = candidates(instances[e], picks)
        add_totals(
            weights,
            requests[e],
            instances[e],
            matched[e],
            last_cold[e],
            picks,
            count,
            values,
            scores[e],
        )
        for i in range(scores.shape[1]):
            scores[e, i] = -scores[e, i]


@kernel
def _note_cold(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    matched: NDArray[np.int64],
    last_cold: NDArray[np.int64],
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        count = candidates(instances[e], picks)
        if is_cold(matched[e], picks, count):
            last_cold[e, chosen[e]] = requests[e]["index"] + 1
