"""Routers that look at load or at nothing: random, round robin, least load, power of two choices.

Sources: SGLang model gateway and `routers_sglang_vllm_aibrix_llmd.md` §1.5, §1.7, §3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, draw, draw_two
from prefixgym.baselines.expected_wait import SmgLeastLoad
from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import uniforms
from prefixgym.envs.view.view import View

ComparedLoad = Literal["telemetry", "ledger", "tokens", "kv_usage", "expected_wait"]


@register
@dataclass
class Random(Router):
    """Any available instance with equal probability."""

    name = "random"
    source = "SGLang model gateway, random (§1.7)"
    family = "load only"

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """One random stream for each environment."""
        self._num_instances = len(cluster.instances)
        self._keys = router_keys(seeds)

    def route(self, view: View) -> NDArray[np.int64]:
        """The draw numbered like the decision."""
        chosen = np.empty(view.num_envs, np.int64)
        _random(view.requests, view.instances, self._keys, chosen)
        return chosen

    def plan(self, num_requests: int, first: int = 0) -> NDArray[np.int64]:
        """`num_requests` draws from number `first` on."""
        numbers = uniforms(self._keys[:, None], np.arange(first, first + num_requests))
        return (numbers * self._num_instances).astype(np.int64)


@kernel
def _random(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    keys: NDArray[np.uint64],
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        count = candidates(instances[e], picks)
        chosen[e] = picks[draw(keys[e], requests[e]["index"], count)]


@register
@dataclass
class RoundRobin(Router):
    """The available instances in turn: decision number modulo their number.

    As in the gateway, the turn shifts when an instance comes or goes.
    """

    name = "round_robin"
    source = "SGLang model gateway, round_robin (§1.7)"
    family = "load only"

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Start at instance 0."""
        self._num_envs, self._num_instances = len(seeds), len(cluster.instances)

    def route(self, view: View) -> NDArray[np.int64]:
        """The instance whose turn it is."""
        chosen = np.empty(view.num_envs, np.int64)
        _round_robin(view.requests, view.instances, chosen)
        return chosen

    def plan(self, num_requests: int, first: int = 0) -> NDArray[np.int64]:
        """0, 1, …, N - 1, 0, …, from number `first` on."""
        turn = np.arange(first, first + num_requests) % self._num_instances
        return np.tile(turn, (self._num_envs, 1))


@kernel
def _round_robin(
    requests: NDArray[np.void], instances: NDArray[np.void], chosen: NDArray[np.int64]
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        count = candidates(instances[e], picks)
        chosen[e] = picks[requests[e]["index"] % count]


@register
@dataclass
class LeastLoad(ScoredRouter):
    """The instance with the fewest of this router's own requests in flight; ties at random."""

    name = "least_load"
    source = "AIBrix gateway, least-request (§3.1)"
    family = "load only"
    knows = ("ledger",)

    def scores(self, view: View) -> NDArray[np.float64]:
        """`requests` of the ledger."""
        return view.instances["requests"].astype(np.float64)


@register
@dataclass
class PowerOfTwo(Router):
    """Two different available instances are drawn, the less loaded one is taken.

    Equal loads: the first drawn. A single available instance is taken without a draw.

    Attributes:
        load: what is compared. The gateway compares a polled value where both workers have one, and
            which value that is changed between its versions:

            `telemetry`: waiting + running requests.
            `tokens`: waiting tokens + tokens in KV blocks in use (`/get_load`, until 2026-02).
            `kv_usage`: share of KV blocks in use (since smg#554 of 2026-02).
            `expected_wait`: that of `smg_least_load` with its defaults (since smg#2187 of 2026-08).
            `ledger`: this router's own requests in flight, what the gateway falls back on. In HTTP
            mode sglang-router 0.3.2 counts none under this policy, and a worker whose poll fails
            has load -1 from then on: without `/get_load` the first drawn is always taken.
    """

    name = "power_of_two"
    source = "SGLang model gateway, power_of_two (§1.5)"
    family = "load only"
    knows = ("ledger", "telemetry")

    load: str = "telemetry"

    def __post_init__(self) -> None:
        allowed = get_args(ComparedLoad)
        self.require("load", self.load in allowed, ", ".join(allowed))

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """One random stream for each environment."""
        self._keys = router_keys(seeds)
        instances = range(len(cluster.instances))
        self._kv_tokens = np.array([cluster.kv_blocks(i) * cluster.block_size for i in instances])
        self._waits = SmgLeastLoad()
        self._waits.reset(cluster, seeds)

    def route(self, view: View) -> NDArray[np.int64]:
        """The less loaded of two draws."""
        chosen = np.empty(view.num_envs, np.int64)
        if self.load == "expected_wait":
            self._waits.hear(view)
        _less_loaded_of_two(view.requests, view.instances, self._loads(view), self._keys, chosen)
        if self.load == "expected_wait":
            self._waits.commit(view, chosen)
        return chosen

    def _loads(self, view: View) -> NDArray[np.float64]:
        rows = view.instances
        if self.load == "expected_wait":
            return self._waits.scores(view)
        if self.load == "telemetry":
            loads = rows["waiting"] + rows["running"]
        elif self.load == "tokens":
            loads = rows["waiting_tokens"] + rows["kv_usage"] * self._kv_tokens
        elif self.load == "kv_usage":
            loads = rows["kv_usage"]
        else:
            loads = rows["requests"]
        return loads.astype(np.float64)


@kernel
def _less_loaded_of_two(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    loads: NDArray[np.float64],
    keys: NDArray[np.uint64],
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        count = candidates(instances[e], picks)
        first, second = draw_two(keys[e], requests[e]["index"], picks, count)
        chosen[e] = first if loads[e, first] <= loads[e, second] else second
