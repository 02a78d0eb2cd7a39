"""The decision tree of the Gateway API inference extension before scorers became its default.

Source: `routers_sglang_vllm_aibrix_llmd.md` §4.0a (GIE v0.5).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.router import register
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View


@register
@dataclass
class GieTree(ScoredRouter):
    """GIE v0.5: pods with about the shortest queue, of these about the least KV usage, at random.

    1. Pods with at most queue_threshold waiting requests; all if there is none.
    2. Of n pods those with a queue in [min, min + (max - min) / n], in whole requests.
    3. Of n pods those with a KV usage in [min, min + (max - min) / n].
    4. One of them at random.

    No scenario has adapters, so the tree's LoRA filters keep everybody and both of its branches are
    these steps. Prefixes play no part.

    Attributes:
        queue_threshold: waiting requests.
    """

    name = "gie_tree"
    source = "Gateway API inference extension v0.5, decision tree (§4.0a)"
    family = "llm-d"
    knows = ("telemetry",)

    queue_threshold: int = 128

    def __post_init__(self) -> None:
        self.require("queue_threshold", self.queue_threshold >= 0, "at least 0")

    def scores(self, view: View) -> NDArray[np.float64]:
        """0 for the pods that are left at the end, else inf."""
        scores = np.empty(view.instances.shape)
        _leaves(view.instances, self.queue_threshold, scores)
        return scores


@kernel
def _leaves(instances: NDArray[np.void], queue_threshold: int, scores: NDArray[np.float64]) -> None:
    picks, values = np.empty(scores.shape[1], np.int64), np.empty(scores.shape[1])
    for e in range(len(scores)):
        count = candidates(instances[e], picks)
        for i in range(len(values)):
            values[i] = instances[e, i]["waiting"]
        kept = _keep_up_to(values, queue_threshold, picks, count)
        count = kept if kept > 0 else count
        low, high = _range(values, picks, count)
        count = _keep_up_to(values, low + (high - low) // count, picks, count)
        for i in range(len(values)):
            values[i] = instances[e, i]["kv_usage"]
        low, high = _range(values, picks, count)
        count = _keep_up_to(values, low + (high - low) / count, picks, count)
        scores[e, :] = np.inf
        for k in range(count):
            scores[e, picks[k]] = 0.0


@kernel
def _range(
    values: NDArray[np.float64], picks: NDArray[np.int64], count: int
) -> tuple[float, float]:
    low, high = np.inf, -np.inf
    for k in range(count):
        low, high = min(low, values[picks[k]]), max(high, values[picks[k]])
    return low, high


@kernel
def _keep_up_to(
    values: NDArray[np.float64], most: float, picks: NDArray[np.int64], count: int
) -> int:
    """Move the candidates with a value of at most `most` to the front; return their number.

    If there is none, `picks` stays as it is.
    """
    kept = 0
    for k in range(count):
        if values[picks[k]] <= most:
            picks[kept] = picks[k]
            kept += 1
    return kept
