"""Greedy routers on the predicted time to first token.

Predicted TTFT of instance i = frontend latency + backlog_seconds[i] + prefill_seconds[i]: the
prefills that this router has booked there and that have not ended, then this request's own.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import register
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.view.view import View


@register
@dataclass
class MinTtft(ScoredRouter):
    """The instance with the least predicted TTFT; ties at random."""

    name = "min_ttft"
    source = "greedy predicted TTFT"
    family = "references"
    knows = ("index", "ledger")

    def scores(self, view: View) -> NDArray[np.float64]:
        """Predicted TTFT, s."""
        scores = np.empty(view.instances.shape)
        _score(view.requests, view.instances, view.cluster.frontend_latency, False, scores)
        return scores


@register
@dataclass
class GreedyDump(MinTtft):
    """`min_ttft`, but a request that no instance can serve in time goes to the busiest one.

    Hopeless = the least predicted TTFT is above the request's objective. Busiest = most
    backlog_seconds. It games plain goodput: requests that are late anyway are heaped on one
    instance, where they wait for very long. It is here so that tables show what that costs in the
    tail.
    """

    name = "greedy_dump"
    source = "greedy predicted TTFT with a dump: how plain goodput is gamed"

    def scores(self, view: View) -> NDArray[np.float64]:
        """Predicted TTFT, or for hopeless requests how little backlog there is."""
        scores = np.empty(view.instances.shape)
        _score(view.requests, view.instances, view.cluster.frontend_latency, True, scores)
        return scores


@kernel
def _score(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    frontend: float,
    dumps: bool,
    scores: NDArray[np.float64],
) -> None:
    for e in range(len(scores)):
        if dumps:
            dump_scores(requests[e], instances[e], frontend, scores[e])
        else:
            ttft_scores(instances[e], frontend, scores[e])


@kernel
def ttft_scores(instances: NDArray[np.void], frontend: float, scores: NDArray[np.float64]) -> None:
    """Predicted TTFT on each instance of one environment."""
    for i in range(len(scores)):
        wait = frontend + instances[i]["backlog_seconds"]
        scores[i] = wait + instances[i]["prefill_seconds"]


@kernel
def dump_scores(
    request: Record, instances: NDArray[np.void], frontend: float, scores: NDArray[np.float64]
) -> None:
    """The same, or how little backlog there is if no available instance is in time."""
    ttft_scores(instances, frontend, scores)
    least = np.inf
    for i in range(len(scores)):
        if instances[i]["available"] != 0:
            least = min(least, scores[i])
    if least > request["slo_ttft"]:
        for i in range(len(scores)):
            scores[i] = -instances[i]["backlog_seconds"]
