"""GORGO: network, own prefill and queue in one weighted sum, the least wins.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §8.6 (arXiv 2602.11688); read in and checked with
gorgo-lb 0.2.0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.papers.gorgo_tuner import OBJECTIVES, WeightTuner
from prefixgym.baselines.router import register
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.history import History, HistoryArrays, forget, sent_blocks
from prefixgym.envs.view.view import View


@dataclass
class _Gorgo(ScoredRouter):
    """What both forms share.

        score_i = rtt · w_0 + uncached_i · w_1 + queued_i · w_2

    uncached_i = prompt tokens that no request sent to i before began with: a trie of all prompts
    that never evicts, only forgets an instance that is not there. The real one is over tokens; here
    only whole equal blocks match. queued_i = prompt tokens in flight on i, cached or not. The first
    among equals. All instances have metrics, so the package's random choice without any does not
    occur. The simulated network is the same to every instance, so the round-trip times are
    what a probe would say, and cost nothing but the score.

    Attributes:
        rtt_weight: ms of score for a ms of round trip.
        rtt_ms: round-trip time of each instance in ms, comma-separated; empty: all equal.
        auto_tune: whether the weights in `tuned` are moved while requests are served.
        tuned: which weights, comma-separated.
        objective_metric: what the tuner judges by, one of `OBJECTIVES`.
        window_size: ended requests that are judged together.
        hop_size: ended requests from one judgement to the next.
    """

    ties = "first"

    tunable: ClassVar[tuple[str, ...]]
    """Parameters that the tuner may move."""

    rtt_weight: float = 1.0
    rtt_ms: str = ""
    auto_tune: bool = False
    tuned: str = ""
    objective_metric: str = "neg_p95_ttft"
    window_size: int = 100
    hop_size: int = 50

    def __post_init__(self) -> None:
        self._require_finite("rtt_weight")
        try:
            self._rtt = [float(word) for word in self.rtt_ms.split(",") if word]
        except ValueError:
            self._rtt = [-1.0]
        valid = all(0 <= rtt < math.inf for rtt in self._rtt)
        self.require("rtt_ms", valid, "numbers of at least 0, one for each instance, or empty")
        names = self.tuned.split(",")
        valid = set(names) <= set(self.tunable) and len(set(names)) == len(names)
        self.require("tuned", valid, f"some of {','.join(self.tunable)}")
        self.require("objective_metric", self.objective_metric in OBJECTIVES, ", ".join(OBJECTIVES))
        self.require("window_size", self.window_size >= 1, "at least 1")
        self.require("hop_size", self.hop_size >= 1, "at least 1")

    def _require_finite(self, parameter: str) -> None:
        holds = 0 <= getattr(self, parameter) < math.inf
        self.require(parameter, holds, "at least 0 and finite")

    def _factors(self) -> list[tuple[str, float]]:
        """For each w the weight that is a factor of it ("" if none is), and the other factor."""
        raise NotImplementedError

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """An empty trie; the weights from which tuning starts.

        Raises:
            ValueError: `rtt_ms` has another number of instances than the cluster.
        """
        super().reset(cluster, seeds)
        num_instances = len(cluster.instances)
        if self._rtt and len(self._rtt) != num_instances:
            raise ValueError(
                f"{self.name}.rtt_ms: found {len(self._rtt)} numbers, allowed: none or one for "
                f"each of {num_instances} instances"
            )
        self._rtt_of = np.array(self._rtt or [0.0] * num_instances)
        self._block_size = cluster.block_size
        self._history = History(len(seeds), num_instances)
        names = [name for name, _ in self._factors()]
        self._scale = np.array([rest for _, rest in self._factors()])
        self._tuner = WeightTuner(
            self._keys,
            [getattr(self, name) if name else 1.0 for name in names],
            [names.index(name) for name in self.tuned.split(",")],
            self.objective_metric,
            self.window_size,
            self.hop_size,
        )

    def hear(self, view: View) -> None:
        """Let the tuner look at what has come back."""
        if self.auto_tune:
            self._tuner.hear(view)

    def scores(self, view: View) -> NDArray[np.float64]:
        """The weighted sums, [E, N]."""
        scores = np.empty(view.instances.shape)
        _score(
            view.requests,
            view.block_ids,
            view.instances,
            self._history.arrays,
            self._block_size,
            self._rtt_of,
            self._scale,
            self._tuner.weights,
            scores,
        )
        return scores

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Put the prompts into the trie under their instances."""
        _forget_absent(view.instances, self._history.arrays)
        self._history.remember(view.requests, view.block_ids, self._block_size, chosen)
        if self.auto_tune:
            self._tuner.book(view)

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Into the trie with them."""
        self._history.remember(requests, block_ids, self._block_size, chosen)


@register
@dataclass
class Gorgo(_Gorgo):
    """GORGO's policy `gorgo`, with three weights for the whole fleet.

        score_i = rtt_weight · rtt_ms_i + prefill_weight · uncached_i + load_weight · queued_i

    Of the package, what needs an operator is left out: weights of single instances, and restarting
    the tuner.

    Attributes:
        tuned: which weights, comma-separated; the package's default leaves out load_weight.
        prefill_weight: ms of score for a token to prefill.
        load_weight: ms of score for a token in flight.
    """

    name = "gorgo"
    source = "GORGO, arXiv 2602.11688, gorgo-lb 0.2.0 (§8.6)"
    family = "papers"
    knows = ("history", "ledger")
    tunable = ("rtt_weight", "prefill_weight", "load_weight")

    tuned: str = "prefill_weight,rtt_weight"
    prefill_weight: float = 1.0
    load_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_finite("prefill_weight")
        self._require_finite("load_weight")

    def _factors(self) -> list[tuple[str, float]]:
        return [("rtt_weight", 1.0), ("prefill_weight", 1.0), ("load_weight", 1.0)]


@register
@dataclass
class Gorgo2D(_Gorgo):
    """GORGO's policy `gorgo-2d`: physical rates, and weights near 1 on top of them.

        score_i = rtt_weight · rtt_ms_i + prefill_rate · uncached_i
                  + queue_rate · queue_weight · queued_i

    The package measures the rates by a regression of TTFT; here they are given.

    Attributes:
        prefill_rate: ms for a token to prefill.
        queue_rate: ms for a token in flight.
        queue_weight: what the queue counts in the sum.
    """

    name = "gorgo_2d"
    source = "GORGO, gorgo-lb 0.2.0, gorgo-2d (§8.6)"
    family = "papers"
    knows = ("history", "ledger")
    tunable = ("rtt_weight", "queue_weight")

    tuned: str = "rtt_weight,queue_weight"
    prefill_rate: float = 1.0
    queue_rate: float = 1.0
    queue_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_finite("prefill_rate")
        self._require_finite("queue_rate")
        self._require_finite("queue_weight")

    def _factors(self) -> list[tuple[str, float]]:
        return [("rtt_weight", 1.0), ("", self.prefill_rate), ("queue_weight", self.queue_rate)]


@kernel
def _score(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    h: HistoryArrays,
    block_size: int,
    rtt_ms: NDArray[np.float64],
    scale: NDArray[np.float64],
    weights: NDArray[np.float64],
    scores: NDArray[np.float64],
) -> None:
    blocks = np.empty(scores.shape[1], np.int64)
    for e in range(len(scores)):
        prompt = block_ids[e, : requests[e]["num_blocks"]]
        prompt_tokens = requests[e]["prompt_tokens"]
        sent_blocks(h, e, prompt, blocks)
        network, own, queue = (
            scale[0] * weights[e, 0],
            scale[1] * weights[e, 1],
            scale[2] * weights[e, 2],
        )
        for i in range(scores.shape[1]):
            uncached = prompt_tokens - min(blocks[i] * block_size, prompt_tokens)
            queued = instances[e, i]["context_tokens"]
            scores[e, i] = network * rtt_ms[i] + own * uncached + queue * queued


@kernel
def _forget_absent(instances: NDArray[np.void], h: HistoryArrays) -> None:
    for e in range(instances.shape[0]):
        for i in range(instances.shape[1]):
            if h.tokens[e, i] > 0 and instances[e, i]["available"] == 0:
                forget(h, e, i)
