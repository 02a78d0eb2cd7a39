"""Greedy routers on the predicted time to first token.

Predicted TTFT of instance i = frontend latency + backlog_seconds[i] + prefill_seconds[i]: the
prefills that this router has booked there and that have not ended, then this request's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, first_least, random_least
from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View


@register
@dataclass
class MinTtft(Router):
    """The instance with the least predicted TTFT; ties at random."""

    name = "min_ttft"
    source = "greedy predicted TTFT (rl.md §5.4)"

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """One random stream for each environment."""
        self._keys = router_keys(seeds)
        self._frontend_latency = cluster.frontend_latency

    def route(self, view: View) -> NDArray[np.int64]:
        """Least predicted TTFT."""
        return self._route(view, dump=False)

    def _route(self, view: View, dump: bool) -> NDArray[np.int64]:
        chosen = np.empty(view.num_envs, np.int64)
        _min_ttft(view.requests, view.instances, self._keys, self._frontend_latency, dump, chosen)
        return chosen


@register
@dataclass
class GreedyDump(MinTtft):
    """`min_ttft`, but a request that no instance can serve in time goes to the busiest one.

    Hopeless = the least predicted TTFT is above the request's objective. Busiest = most
    backlog_seconds, the lowest index among equals. It games plain goodput: requests that are late
    anyway are heaped on one instance, where they wait for very long. It is here so that tables show
    what that costs in the tail.
    """

    name = "greedy_dump"
    source = "greedy + dump (rl.md §0 item 8, §5.4)"

    def route(self, view: View) -> NDArray[np.int64]:
        """Least predicted TTFT, or the dump."""
        return self._route(view, dump=True)


@kernel
def _min_ttft(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    keys: NDArray[np.uint64],
    frontend_latency: float,
    dump: bool,
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    scores = np.empty(instances.shape[1])
    for e in range(len(chosen)):
        request = requests[e]
        count = candidates(instances[e], picks)
        for i in range(len(scores)):
            row = instances[e, i]
            scores[i] = frontend_latency + row["backlog_seconds"] + row["prefill_seconds"]
        best = random_least(scores, picks, count, keys[e], request["index"])
        if dump and scores[best] > request["slo_ttft"]:
            for i in range(len(scores)):
                scores[i] = -instances[e, i]["backlog_seconds"]
            best = first_least(scores, picks, count)
        chosen[e] = best
