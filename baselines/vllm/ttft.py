"""vLLM production stack's ttft: attention work queued at an instance, plus the request's own.

Source: `routers_sglang_vllm_aibrix_llmd.md` §2.5: production-stack PR #670 of 2025-09, which was
never merged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.router import register
from prefixgym.baselines.vllm.fallback import TO_FALLBACK, IndexRouter
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.view.view import FIRST_TOKEN, View

FLIGHT = np.dtype([("work", np.int64), ("instance", np.int64)], align=True)
"""What is booked for a request without a first token; `work` 0 where there is none."""


@register
@dataclass
class Ttft(IndexRouter):
    """The least work before the first token, in pairs of tokens that attend to each other.

        W(n, c) = (c + 1 + n) · (n - c) // 2        n prompt tokens, the first c of them cached
        score_i = Σ W(n_r, c_r) + W(n, c_i)         r: sent to i, without a first token yet

    W counts, for each token to compute, the tokens up to it. Instances are looked at in the order
    of the controller's answer: those with a match first, then the others; the last among equals is
    taken. Without any holder the fallback decides and no work is looked at.
    """

    name = "ttft"
    source = "vLLM production stack, ttft, PR #670 of 2025-09, not merged (§2.5)"
    family = "vLLM"
    knows = ("index", "ledger", "ring")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing in flight."""
        super().reset(cluster, seeds)
        self._work = np.zeros((len(seeds), len(cluster.instances)), np.int64)
        self._flights = np.zeros((len(seeds), 0), FLIGHT)

    def hear(self, view: View) -> None:
        """First tokens take work off the instances' accounts."""
        if view.num_slots > self._flights.shape[1]:
            self._flights = widened(self._flights, view.num_slots)
        _settle(view.events, view.num_events, self._flights, self._work)

    def choose(self, view: View, chosen: NDArray[np.int64]) -> None:
        """The least work, if there is a holder."""
        _ttft(view.requests, view.instances, self._work, chosen)

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Book the request's work."""
        _book(view.requests, view.instances, chosen, self._flights, self._work)


@kernel
def triangular_work(tokens: int, cached: int) -> int:
    """W: token pairs of a prompt of `tokens`, of which the first `cached` need not be computed."""
    return (cached + 1 + tokens) * (tokens - cached) // 2


@kernel
def _ttft(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    work: NDArray[np.int64],
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        count = candidates(instances[e], picks)
        chosen[e] = TO_FALLBACK
        least = 0
        for holders in (True, False):
            for k in range(count):
                i = picks[k]
                hit = instances[e, i]["hit_tokens"]
                if (hit > 0) == holders:
                    score = work[e, i] + triangular_work(requests[e]["prompt_tokens"], hit)
                    if chosen[e] == TO_FALLBACK or score <= least:
                        chosen[e], least = i, score
            if chosen[e] == TO_FALLBACK:  # no holder
                break


@kernel
def _settle(
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    flights: NDArray[np.void],
    work: NDArray[np.int64],
) -> None:
    for e in range(len(num_events)):
        for k in range(num_events[e]):
            event = events[e, k]
            if event["kind"] >= FIRST_TOKEN:  # or an end, of whatever kind
                flight = flights[e, event["slot"]]
                work[e, flight["instance"]] -= flight["work"]
                flight["work"] = 0


@kernel
def _book(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    chosen: NDArray[np.int64],
    flights: NDArray[np.void],
    work: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        request, i = requests[e], chosen[e]
        booked = triangular_work(request["prompt_tokens"], instances[e, i]["hit_tokens"])
        flights[e, request["slot"]]["work"] = booked
        flights[e, request["slot"]]["instance"] = i
        work[e, i] += booked
