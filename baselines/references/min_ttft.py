"""Greedy routers on the predicted time to first token.

Predicted TTFT of instance i = frontend latency + backlog_seconds[i] + prefill_seconds[i]: the
prefills that this router has booked there and that have not ended, then this request's own.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import register
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.view.view import View


@register
@dataclass
class MinTtft(ScoredRouter):
    """The instance with the least predicted TTFT; ties at random."""

    name = "min_ttft"
    source = "greedy predicted TTFT (rl.md §5.4)"
    family = "references"
    knows = ("index", "ledger")

    def scores(self, view: View) -> NDArray[np.float64]:
        """Predicted TTFT, s."""
        instances = view.instances
        wait = view.cluster.frontend_latency + instances["backlog_seconds"]
        predicted: NDArray[np.float64] = wait + instances["prefill_seconds"]
        return predicted


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
    source = "greedy + dump (rl.md §0 item 8, §5.4)"

    def scores(self, view: View) -> NDArray[np.float64]:
        """Predicted TTFT, or for hopeless requests how little backlog there is."""
        predicted = super().scores(view)
        reachable = np.where(view.available, predicted, np.inf)
        hopeless = reachable.min(axis=1) > view.requests["slo_ttft"]
        return np.where(hopeless[:, None], -view.instances["backlog_seconds"], predicted)
