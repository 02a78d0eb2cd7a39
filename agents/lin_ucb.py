"""A bandit that learns while it routes: LinUCB over what a learner observes of an instance.

Each decision pulls one arm, an instance described by its observed columns x (Li, Chu, Langford,
Schapire, WWW 2010, with one weight vector for all arms, as instances differ by their columns only).
What an arm paid is known when the first token has come, from the events that every router hears.

    A = λ I + Σ x xᵀ,   b = λ θ₀ + Σ r x,   θ = A⁻¹ b,   score(i) = θ·x_i + α √(x_iᵀ A⁻¹ x_i)
    r = 1 if TTFT <= its objective, else −w · min(TTFT / objective − 1, 8);  −8 w if it failed

It starts from θ₀, by which the reward is 1 − the column `ttft`, worth λ observations. It ends where
a linear model of the decision's own reward does. What a decision costs later requests, and the time
per output token, are no part of its reward: where that decides, it does badly.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.agents.seen import Seen, seen_in
from prefixgym.baselines.router import Router, register
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.observation import (
    INSTANCE_FIELDS,
    REQUEST_FIELDS,
    instance_constants,
    write_observation,
)
from prefixgym.envs.view.view import FAILED, FIRST_TOKEN, View

_NUM_REQUEST, _NUM_INSTANCE = len(REQUEST_FIELDS), len(INSTANCE_FIELDS)
_CAP = 8.0

_PULL = np.dtype(
    [
        ("routed", np.float64),  # s
        ("slo_ttft", np.float64),  # s
        ("open", np.int64),  # 1 until it has paid
        ("columns", np.float64, (_NUM_INSTANCE,)),  # of the chosen instance, as they were then
    ],
    align=True,
)


class _Belief(NamedTuple):
    """What each of E environments has learned."""

    inverse: NDArray[np.float64]  # A⁻¹ [E, F, F]
    sums: NDArray[np.float64]  # b [E, F]
    weights: NDArray[np.float64]  # θ [E, F]


@register
@dataclass
class LinUcb(Router):
    """LinUCB: an optimistic linear estimate of whether the first token will be in time.

    Column `available` is 1 for every arm, so it is the constant term.

    Attributes:
        alpha: optimism: how many standard deviations are added.
        ridge: how many observations the prior is worth in each direction.
        tardiness: price of one unit of tardiness, up to 8 units; 0 pays only what is in time.
    """

    name = "lin_ucb"
    source = "LinUCB (WWW 2010) on the environment's observation"
    family = "learned"
    knows = ("index", "ledger", "telemetry")

    alpha: float = 0.1
    ridge: float = 10.0
    tardiness: float = 0.25

    def __post_init__(self) -> None:
        self.require("alpha", 0 <= self.alpha < math.inf, "at least 0 and finite")
        self.require("ridge", 0 < self.ridge < math.inf, "above 0 and finite")
        self.require("tardiness", 0 <= self.tardiness < math.inf, "at least 0 and finite")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing is learned yet."""
        prior = np.zeros((len(seeds), _NUM_INSTANCE))
        for k, field in enumerate(INSTANCE_FIELDS):
            prior[:, k] = {"available": 1.0, "ttft": -1.0}.get(field.name, 0.0)
        self._constants = instance_constants(cluster)
        self._belief = _Belief(
            np.tile(np.eye(_NUM_INSTANCE) / self.ridge, (len(seeds), 1, 1)),
            self.ridge * prior,
            prior,
        )
        self._pulls = np.zeros((len(seeds), 0), _PULL)

    @property
    def weights(self) -> NDArray[np.float64]:
        """θ by column of the observation's instances, [E, F]."""
        return self._belief.weights.copy()

    def route(self, view: View) -> NDArray[np.int64]:
        """Learn from what was heard, then take the most promising instance."""
        if self._pulls.shape[1] < view.num_slots:
            self._pulls = widened(self._pulls, view.num_slots)
        _learn(view.events, view.num_events, self.tardiness, self._pulls, self._belief)
        chosen = np.empty(view.num_envs, np.int64)
        _pull(seen_in(view), self._constants, self.alpha, self._belief, self._pulls, chosen)
        return chosen


@kernel
def _learn(
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    price: float,
    pulls: NDArray[np.void],
    belief: _Belief,
) -> None:
    for e in range(len(num_events)):
        heard = False
        for k in range(num_events[e]):
            event = events[e, k]
            if event["kind"] != FIRST_TOKEN and event["kind"] != FAILED:
                continue
            pull = pulls[e, event["slot"]]
            if pull["open"] == 0:  # it failed after its first token
                continue
            pull["open"] = 0
            late = _CAP
            if event["kind"] == FIRST_TOKEN:
                late = (event["time"] - pull["routed"]) / pull["slo_ttft"] - 1.0
            reward = 1.0 if late <= 0.0 else -price * min(late, _CAP)
            _observe(belief.inverse[e], belief.sums[e], pull["columns"], reward)
            heard = True
        if heard:
            belief.weights[e] = belief.inverse[e] @ belief.sums[e]


@kernel
def _observe(
    inverse: NDArray[np.float64],
    sums: NDArray[np.float64],
    columns: NDArray[np.float64],
    reward: float,
) -> None:
    """Add x xᵀ to A and r x to b; A⁻¹ by Sherman and Morrison."""
    size = len(columns)
    along = np.zeros(size)
    for i in range(size):
        for j in range(size):
            along[i] += inverse[i, j] * columns[j]
    divisor = 1.0
    for i in range(size):
        divisor += columns[i] * along[i]
    for i in range(size):
        for j in range(size):
            inverse[i, j] -= along[i] * along[j] / divisor
        sums[i] += reward * columns[i]


@kernel
def _pull(
    seen: Seen,
    constants: NDArray[np.float64],
    alpha: float,
    belief: _Belief,
    pulls: NDArray[np.void],
    chosen: NDArray[np.int64],
) -> None:
    num_envs, num_instances = seen.shown_instances.shape
    request = np.empty(_NUM_REQUEST, np.float32)
    instances = np.empty((num_instances, _NUM_INSTANCE), np.float32)
    for e in range(num_envs):
        write_observation(seen, e, constants, request, instances)  # type: ignore[arg-type]
        chosen[e] = 0  # where none is available any will do
        best = -np.inf
        for i in range(num_instances):
            if instances[i, 0] == 0.0:  # column `available`
                continue
            mean, variance = 0.0, 0.0
            for j in range(_NUM_INSTANCE):
                mean += belief.weights[e, j] * instances[i, j]
                for k in range(_NUM_INSTANCE):
                    variance += instances[i, j] * belief.inverse[e, j, k] * instances[i, k]
            score = mean + alpha * math.sqrt(max(variance, 0.0))
            if score > best:
                best = score
                chosen[e] = i
        shown = seen.requests[e]
        pull = pulls[e, shown["slot"]]
        pull["routed"] = shown["time"]
        pull["slo_ttft"] = shown["slo_ttft"]
        pull["open"] = 1
        for k in range(_NUM_INSTANCE):
            pull["columns"][k] = instances[chosen[e], k]
