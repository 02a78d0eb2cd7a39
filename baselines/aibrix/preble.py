"""AIBrix's variant of Preble: follow a long match, else the least windowed cost.

Source: `routers_sglang_vllm_aibrix_llmd.md` §3.8 and part B §3.7, which differ in two points; read
in aibrix `pkg/plugins/gateway/algorithms/prefix_cache_preble.go` at 0338af7d and
`pkg/utils/prefixcacheindexer/tree.go` at 073f657f. The imbalance gate is that of §3.8 (above 8, as
in the gateway's code of 2026-08-22; the 16 of part B is the Helm chart's). A node's prefill cost is
divided by the number of models on it, as part B says and the code does: that is 1 here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.aibrix.prefix_cache import keep_least_loaded
from prefixgym.baselines.choosing import candidates, first_least, random_least
from prefixgym.baselines.prefill_time import attention_ms, linear_ms
from prefixgym.baselines.prefix_tree import ROOT, PrefixTree, insert, prefix_tree, remove_leaf
from prefixgym.baselines.prefix_tree import with_room as tree_with_room
from prefixgym.baselines.router import NOWHERE, Router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.view.id_table import NONE
from prefixgym.envs.view.recency import (
    NOBODY,
    Recency,
    drop,
    put_after,
    recency,
    touch,
    with_capacity,
)
from prefixgym.envs.view.recent import Recent, append, drop_first, first, recent
from prefixgym.envs.view.recent import with_room as log_with_room
from prefixgym.envs.view.view import View

_MATCH_THRESHOLD = 0.5
_TREE_TTL = 300.0  # s
_TIME_PER_TOKEN = 0.15  # s; the code has a median of measured values, but never measures any
_UTILISATION = 0.9
_SLOWDOWN = {"A6000": 1.0, "V100": 2.5}
_NS = 1e9

STATS = np.dtype(
    [
        ("used", np.float64),  # s: when a prompt last went through the node
        ("count", np.int64),  # requests of the window that end here
        ("hit_tokens", np.int64),  # their tokens above the node
        ("prompt_tokens", np.int64),
        ("cost", np.int64),  # ns: what the node adds to the cost of each pod that has it
    ],
    align=True,
)
"""What is kept with a node."""


class _State(NamedTuple):
    """Trees of E environments with M nodes, and N pods."""

    tree: PrefixTree
    order: Recency  # one list: nodes by their last use
    stats: NDArray[np.void]  # STATS [E, M]
    pods: NDArray[np.bool_]  # [E, M, N]: who was sent something through the node
    log: Recent  # the window: the node in which each request's prompt ends
    load: NDArray[np.int64]  # [E, N]: windowed requests of a pod's nodes
    cost: NDArray[np.int64]  # [E, N], ns: windowed cost of a pod's nodes


class _Model(NamedTuple):
    """The cost model and the clocks."""

    slowdown: float
    decode_seconds: float
    window: float  # s
    interval: float  # s
    most_spread: int
    block_size: int


@register
@dataclass
class PrefixCachePreble(Router):
    """AIBrix's `prefix-cache-preble` with its defaults.

    A radix tree of prompts; a node has the pods that were sent a prompt through it.

    1. The prompt is put into the tree.
    2. If max - min of the requests in flight is above pod_running_request_imbalance_abs_count, only
       the pods with the least remain.
    3. If more than half of the prompt was in the tree before: of the deepest node on its path that
       has a remaining pod, the pod with the fewest windowed requests; equals at random (there: in
       the order of a map).
    4. Else the remaining pod with the least cost, the first among equals:

           cost(pod) = Σ over the pod's nodes in which windowed requests ended
                       miss rate · requests · prefill time + decoding_length · 0.15 s
           miss rate = the node's own tokens / tokens from the root, as of its requests

       prefill time: (linear + attention + quadratic) / 0.9 of the node's own tokens n in A6000
       terms, times 2.5 for a V100, with the raw fits of `prefill_time` and quadratic =
       -7.37 + 3.86e-3 n + 2.16e-6 n² ms from 4,096 tokens on. It is negative for 361 to 383 tokens.
    5. The pod is added to all nodes of the path.

    Nodes that no prompt went through for 5 minutes are dropped, and with a node its pods from all
    nodes above it, even if these have other children of the same pods. Shares are of tokens; text
    matches by whole blocks.

    Attributes:
        target_gpu: A6000 or V100.
        decoding_length: output tokens assumed for every request.
        sliding_window_period: minutes, up to the tree's 5.
        eviction_loop_interval: milliseconds between the looks at what has expired.
        pod_running_request_imbalance_abs_count: requests.
    """

    name = "aibrix_preble"
    source = "AIBrix gateway, prefix-cache-preble, 2026-08-22 (§3.8, part B §3.7)"
    family = "AIBrix"
    knows = ("history", "ledger")

    target_gpu: str = "V100"
    decoding_length: int = 45
    sliding_window_period: float = 3.0
    eviction_loop_interval: float = 1000.0
    pod_running_request_imbalance_abs_count: int = 8

    def __post_init__(self) -> None:
        self.require("target_gpu", self.target_gpu in _SLOWDOWN, ", ".join(_SLOWDOWN))
        self.require("decoding_length", self.decoding_length >= 0, "at least 0")
        within = 0 < self.sliding_window_period <= _TREE_TTL / 60
        self.require("sliding_window_period", within, "above 0, at most 5")
        ticks = 0 < self.eviction_loop_interval < math.inf
        self.require("eviction_loop_interval", ticks, "above 0 and finite")
        spread = self.pod_running_request_imbalance_abs_count
        self.require("pod_running_request_imbalance_abs_count", spread >= 0, "at least 0")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """An empty tree and window."""
        num_envs, num_pods = len(seeds), len(cluster.instances)
        self._keys = router_keys(seeds)
        tree = prefix_tree(num_envs)
        num_nodes = tree.nodes.shape[1]
        self._state = _State(
            tree,
            recency(num_envs, num_nodes, 1),
            np.zeros((num_envs, num_nodes), STATS),
            np.zeros((num_envs, num_nodes, num_pods), np.bool_),
            recent(num_envs),
            np.zeros((num_envs, num_pods), np.int64),
            np.zeros((num_envs, num_pods), np.int64),
        )
        self._model = _Model(
            _SLOWDOWN[self.target_gpu],
            self.decoding_length * _TIME_PER_TOKEN,
            60 * self.sliding_window_period,
            self.eviction_loop_interval / 1000,
            self.pod_running_request_imbalance_abs_count,
            cluster.block_size,
        )

    def route(self, view: View) -> NDArray[np.int64]:
        """The least busy pod of a long match, or the pod with the least cost."""
        self._make_room(view.block_ids.shape[1])
        chosen = np.empty(view.num_envs, np.int64)
        _preble(
            self._state,
            self._model,
            view.requests,
            view.block_ids,
            view.instances,
            self._keys,
            chosen,
        )
        return chosen

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Into the tree and the window with them."""
        self._make_room(block_ids.shape[1])
        _overhear(self._state, self._model, requests, block_ids, chosen)

    def _make_room(self, num_ids: int) -> None:
        state = self._state
        tree = tree_with_room(state.tree, num_ids)
        self._state = state = state._replace(tree=tree, log=log_with_room(state.log, 1))
        num_nodes = tree.nodes.shape[1]
        if num_nodes > state.stats.shape[1]:
            self._state = state._replace(
                order=with_capacity(state.order, num_nodes),
                stats=widened(state.stats, num_nodes),
                pods=widened(state.pods, num_nodes),
            )


@kernel
def prefill_cost_ms(node_tokens: int, context: int) -> float:
    """A node's prefill time on an A6000 by AIBrix, ms; the raw fits, which can be negative."""
    quadratic = 0.0
    if node_tokens >= 4096:
        quadratic = -7.37 + 3.86e-3 * node_tokens + 2.16e-6 * node_tokens**2
    base = linear_ms(node_tokens) + attention_ms(node_tokens, context)
    return (base + quadratic) / _UTILISATION


@kernel
def _preble(
    s: _State,
    model: _Model,
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    keys: NDArray[np.uint64],
    chosen: NDArray[np.int64],
) -> None:
    num_pods = instances.shape[1]
    picks, fit = np.empty(num_pods, np.int64), np.empty(num_pods, np.int64)
    values, ready = np.empty(num_pods), np.empty(num_pods, np.bool_)
    for e in range(len(chosen)):
        request = requests[e]
        now = request["time"]
        _forget_old(s, model, e, math.floor(now / model.interval) * model.interval)

        matched, leaf, tokens = _enter(s, model, e, request, block_ids[e])
        for pod in range(num_pods):
            values[pod] = instances[e, pod]["requests"]
        num_picks = candidates(instances[e], picks)
        keep_least_loaded(values, picks, num_picks, model.most_spread, ready)

        num_fit = 0
        matched_tokens = min(matched * model.block_size, tokens)
        if matched_tokens > _MATCH_THRESHOLD * request["prompt_tokens"]:
            node = leaf
            while num_fit == 0 and node != NONE:
                for pod in range(num_pods):
                    if ready[pod] and s.pods[e, node, pod]:
                        fit[num_fit] = pod
                        num_fit += 1
                node = s.tree.nodes[e, node]["parent"]
        if num_fit > 0:
            for pod in range(num_pods):
                values[pod] = s.load[e, pod]
            chosen[e] = random_least(values, fit, num_fit, keys[e], request["index"])
        else:
            for k in range(num_picks):
                if ready[picks[k]]:
                    fit[num_fit] = picks[k]
                    num_fit += 1
            for pod in range(num_pods):
                values[pod] = s.cost[e, pod]
            chosen[e] = first_least(values, fit, num_fit)
        _send(s, model, e, leaf, chosen[e], now)


@kernel
def _overhear(
    s: _State,
    model: _Model,
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    chosen: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        if chosen[e] != NOWHERE:
            _, leaf, _ = _enter(s, model, e, requests[e], block_ids[e])
            _send(s, model, e, leaf, chosen[e], requests[e]["time"])


@kernel
def _enter(
    s: _State, model: _Model, e: int, request: Record, ids: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Put a prompt into the tree.

    Returns:
        The blocks that were there, the node in which it ends, and its tokens.
    """
    prompt, now = ids[: request["num_blocks"]], request["time"]
    tokens = min(len(prompt) * model.block_size, request["prompt_tokens"])
    matched, leaf, lower, upper = insert(s.tree, e, prompt, tokens, model.block_size)
    if upper != NONE:
        _clear(s, e, upper)
        s.pods[e, upper, :] = s.pods[e, lower, :]
        put_after(s.order, e, 0, upper, lower)
        _value(s, model, e, lower)  # it lost tokens
    if matched < len(prompt):
        _clear(s, e, leaf)
    node = leaf
    while node != ROOT:  # from the leaf up, so that a node is never older than its children
        s.stats[e, node]["used"] = now
        touch(s.order, e, 0, node)
        node = s.tree.nodes[e, node]["parent"]
    return matched, leaf, tokens


@kernel
def _clear(s: _State, e: int, node: int) -> None:
    """A new node's statistics."""
    stats = s.stats[e, node]
    stats["count"] = stats["hit_tokens"] = stats["prompt_tokens"] = stats["cost"] = 0
    s.pods[e, node, :] = False


@kernel
def _send(s: _State, model: _Model, e: int, leaf: int, pod: int, now: float) -> None:
    """A request whose prompt ends in `leaf` goes to `pod`."""
    node = leaf
    while node != NONE:
        if not s.pods[e, node, pod]:
            s.pods[e, node, pod] = True
            s.load[e, pod] += s.stats[e, node]["count"]
            s.cost[e, pod] += s.stats[e, node]["cost"]
        node = s.tree.nodes[e, node]["parent"]
    append(s.log, e, now, 0, pod, leaf)
    _count(s, model, e, leaf, 1)


@kernel
def _count(s: _State, model: _Model, e: int, node: int, change: int) -> None:
    """A request enters the window (1) or leaves it (-1)."""
    stats, row = s.stats[e, node], s.tree.nodes[e, node]
    before = stats["count"]
    stats["count"] += change
    stats["hit_tokens"] += change * (row["context"] - row["tokens"])
    stats["prompt_tokens"] += change * row["context"]
    if change < 0 and stats["prompt_tokens"] <= 0:
        stats["count"] = stats["hit_tokens"] = stats["prompt_tokens"] = 0
    for pod in range(s.pods.shape[2]):
        if s.pods[e, node, pod]:
            s.load[e, pod] += stats["count"] - before
    _value(s, model, e, node)


@kernel
def _value(s: _State, model: _Model, e: int, node: int) -> None:
    """Work out anew what the node adds to its pods' costs."""
    stats, row = s.stats[e, node], s.tree.nodes[e, node]
    cost = 0
    if stats["count"] > 0:
        miss_rate = 1.0
        if stats["prompt_tokens"] > 0:
            miss_rate = 1.0 - stats["hit_tokens"] / stats["prompt_tokens"]
        prefill = model.slowdown * prefill_cost_ms(row["tokens"], row["context"]) / 1000.0
        seconds = miss_rate * stats["count"] * prefill + model.decode_seconds
        cost = round(seconds * _NS)  # whole, so that taking it back leaves exactly nothing
    for pod in range(s.pods.shape[2]):
        if s.pods[e, node, pod]:
            s.cost[e, pod] += cost - stats["cost"]
    stats["cost"] = cost


@kernel
def _forget_old(s: _State, model: _Model, e: int, now: float) -> None:
    """What the look at time `now` finds expired: requests of the window, then idle nodes."""
    while s.log.size[e] > 0 and first(s.log, e)["time"] <= now - model.window:
        _count(s, model, e, first(s.log, e)["node"], -1)
        drop_first(s.log, e)
    oldest = s.order.ends[e, 0]["oldest"]
    while oldest != NOBODY and now - s.stats[e, oldest]["used"] > _TREE_TTL:
        above = s.tree.nodes[e, oldest]["parent"]
        while above != NONE:
            for pod in range(s.pods.shape[2]):
                if s.pods[e, oldest, pod] and s.pods[e, above, pod]:
                    s.pods[e, above, pod] = False
                    s.load[e, pod] -= s.stats[e, above]["count"]
                    s.cost[e, pod] -= s.stats[e, above]["cost"]
            above = s.tree.nodes[e, above]["parent"]
        drop(s.order, e, 0, oldest)
        remove_leaf(s.tree, e, oldest)
        oldest = s.order.ends[e, 0]["oldest"]
