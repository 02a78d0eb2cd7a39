"""vllm-router's kv_aware: tokens to prefill times requests to serve, by the engines' KV events.

(The production stack's `kvaware` is another router.) The rule of vllm-router 0.1.17, of which no
source is public, was found by experiment on the wheel and is held against it in
`test_vllm_router_parity.py`: it is LMetric's product. What `routers_sglang_vllm_aibrix_llmd.md`
§2.10 describes, the longest prefix with speculative entries, is an older draft
(vllm-project/router#130).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.papers.lmetric import LMetric
from prefixgym.baselines.router import register
from prefixgym.baselines.scored import ScoredRouter, Ties
from prefixgym.baselines.vllm.bindings import UNBOUND, bindings, with_sessions
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.rng import uniform
from prefixgym.envs.view.view import ENDED, View

_LONGEST_TTL = 31_536_000


@register
@dataclass
class KvAware(ScoredRouter):
    """The instance with the least product of tokens to prefill and requests to serve.

        cost_i = (q_i + L - c_i) · (requests_i + 1)

    q_i = prompt tokens booked on i and without a first token, c_i = cached tokens (whole blocks,
    never the whole prompt), requests_i = this router's in flight there. The first among equals.
    With router_temperature T > 0 instance i is drawn with probability ∝ exp(-cost_i / T).

    With kv_aware_session_affinity_ttl_secs > 0 a session goes to where its last request went,
    whatever that costs, until none of its requests was in flight for that long.

    The wheel learns of cached blocks from ZMQ events of `block_size` tokens, of a first token from
    a stream's first chunk (without streaming: at the end), and gives blocks in host memory, on
    disk or in an external store part of a credit (kv_penalty_*). Here blocks are those of the
    cluster, every first token is heard of and there is only device memory.

    Attributes:
        router_temperature: token-requests; 0 takes the least cost.
        kv_aware_session_affinity_ttl_secs: seconds, 1 to 31536000, or 0 for no affinity (the
            wheel: option not given).
    """

    name = "kv_aware"
    source = "vllm-router 0.1.17, kv_aware, by experiment"
    family = "vLLM"
    knows = ("index", "ledger")
    ties: ClassVar[Ties] = "first"

    router_temperature: float = 0.0
    kv_aware_session_affinity_ttl_secs: int = 0

    def __post_init__(self) -> None:
        finite = 0 <= self.router_temperature < np.inf
        self.require("router_temperature", finite, "at least 0 and finite")
        ttl = 0 <= self.kv_aware_session_affinity_ttl_secs <= _LONGEST_TTL
        self.require("kv_aware_session_affinity_ttl_secs", ttl, f"0 to {_LONGEST_TTL}")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """No sessions."""
        super().reset(cluster, seeds)
        self._product = LMetric(hotspot_detection=False)
        self._bindings = bindings(len(seeds))
        self._sessions = np.zeros((len(seeds), 0), np.int64)

    def hear(self, view: View) -> None:
        """Requests of sessions have ended."""
        if self.kv_aware_session_affinity_ttl_secs == 0:
            return
        self._bindings = with_sessions(self._bindings, view.requests["session"])
        if view.num_slots > self._sessions.shape[1]:
            self._sessions = widened(self._sessions, view.num_slots)
        _note_ends(view.events, view.num_events, self._sessions, self._bindings)

    def scores(self, view: View) -> NDArray[np.float64]:
        """Token-requests; inf everywhere but where the session is bound to."""
        scores = self._product.scores(view)
        if self.kv_aware_session_affinity_ttl_secs > 0:
            ttl = float(self.kv_aware_session_affinity_ttl_secs)
            _keep_sessions(view.requests, view.instances, self._bindings, ttl, scores)
        return scores

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Bind the session."""
        if self.kv_aware_session_affinity_ttl_secs > 0:
            _bind(view.requests, chosen, self._sessions, self._bindings)

    def route(self, view: View) -> NDArray[np.int64]:
        """The least cost, or a draw by it."""
        if self.router_temperature == 0:
            return super().route(view)
        self.hear(view)
        chosen = np.empty(view.num_envs, np.int64)
        _draw(
            self.scores(view),
            view.requests,
            view.instances,
            self._keys,
            self.router_temperature,
            chosen,
        )
        self.commit(view, chosen)
        return chosen


@kernel
def _draw(
    costs: NDArray[np.float64],
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    keys: NDArray[np.uint64],
    temperature: float,
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    weights = np.empty(instances.shape[1])
    for e in range(len(chosen)):
        count = candidates(instances[e], picks)
        least = np.inf
        for k in range(count):
            least = min(least, costs[e, picks[k]])
        total = 0.0
        for k in range(count):
            weights[k] = np.exp((least - costs[e, picks[k]]) / temperature)
            total += weights[k]
        rest = uniform(keys[e], requests[e]["index"]) * total
        for k in range(count):
            if weights[k] > 0:
                chosen[e] = picks[k]
                rest -= weights[k]
                if rest < 0:
                    break


@kernel
def _note_ends(
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    sessions: NDArray[np.int64],
    table: NDArray[np.void],
) -> None:
    for e in range(len(num_events)):
        for k in range(num_events[e]):
            event = events[e, k]
            if event["kind"] >= ENDED:  # finished, failed or cancelled
                row = table[e, sessions[e, event["slot"]]]
                row["in_flight"] -= 1
                row["used"] = event["time"]


@kernel
def _keep_sessions(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    table: NDArray[np.void],
    ttl: float,
    costs: NDArray[np.float64],
) -> None:
    for e in range(len(requests)):
        row = table[e, requests[e]["session"]]
        bound = row["instance"]
        if bound == UNBOUND or not instances[e, bound]["available"]:
            continue
        if row["in_flight"] > 0 or requests[e]["time"] - row["used"] < ttl:
            for i in range(instances.shape[1]):
                if i != bound:
                    costs[e, i] = np.inf


@kernel
def _bind(
    requests: NDArray[np.void],
    chosen: NDArray[np.int64],
    sessions: NDArray[np.int64],
    table: NDArray[np.void],
) -> None:
    for e in range(len(chosen)):
        request = requests[e]
        sessions[e, request["slot"]] = request["session"]
        row = table[e, request["session"]]
        row["instance"] = chosen[e]
        row["in_flight"] += 1
