"""What Preble's global scheduler remembers: prompts, who caches them, and the last three minutes.

A radix tree over all prompts (`prefix_tree`). For each node:

- the GPUs that hold it. The scheduler assumes that a GPU caches what it was sent and evicts least
  recently used leaves beyond its KV capacity; real local schedulers report their evictions. The
  KV of answers and of requests that run does not count, so it may believe in too much.
- for each GPU how many requests of the window H went through it.
- queueing times of the requests that were placed by it, in the newer and in the older half of H.
  Of a request the scheduler knows the first token: queueing = TTFT - PrefillTime(missed).

For each GPU the prefill time of the window's requests and their number, and for all together the
decode times (first token to end) of the requests that ended in the window.

Times are kept in ns, so that what is taken back leaves exactly nothing.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §3.1, §3.2.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.prefix_tree import ROOT, PrefixTree, insert, prefix_tree, remove_leaf
from prefixgym.baselines.prefix_tree import with_room as tree_with_room
from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.view.id_table import NONE
from prefixgym.envs.view.recency import (
    Recency,
    contains,
    drop,
    put_after,
    recency,
    touch,
    with_capacity,
)
from prefixgym.envs.view.recent import Recent, append, drop_first, first, recent
from prefixgym.envs.view.recent import with_room as log_with_room
from prefixgym.envs.view.view import ENDED, FIRST_TOKEN

NS = 1e9

STATS = np.dtype(
    [
        ("references", np.int32),  # of logs and flights: the node has to stay
        ("newer_count", np.int32),
        ("older_count", np.int32),
        ("newer_sum", np.int64),  # queueing, ns, of the newer half of the window
        ("older_sum", np.int64),
        ("scaled", np.float64),  # s: when the node was last replicated
    ],
    align=True,
)
"""What is kept with a node, beside its GPUs."""

FLIGHT = np.dtype(
    [
        ("node", np.int32),  # by which it was placed; NONE once it has its first token
        ("sent", np.float64),  # s
        ("prefill", np.int64),  # ns
        ("first_token", np.float64),  # s, nan before
    ],
    align=True,
)
"""A request in flight."""


class Memory(NamedTuple):
    """E environments, N GPUs, M nodes, S slots for flights."""

    tree: PrefixTree
    cached: Recency  # a list for each GPU: the nodes that it holds, by their last use
    tokens: NDArray[np.int64]  # [E, N]: tokens of these nodes
    capacity: NDArray[np.int64]  # [N]: tokens
    stats: NDArray[np.void]  # STATS [E, M]
    uses: NDArray[np.int32]  # [E, M, N]: windowed requests of a GPU through the node
    requests: Recent  # the window: prefill time, GPU and last node of each request
    prefill: NDArray[np.int64]  # [E, N], ns: of the window's requests
    num_requests: NDArray[np.int64]  # [E, N]
    newer: Recent  # queueing times of the newer half of the window, with their nodes
    older: Recent
    decodes: Recent  # decode times in the window
    decode_sum: NDArray[np.int64]  # [E], ns
    decode_mean: NDArray[np.float64]  # [E], ns; the last one known
    flights: NDArray[np.void]  # FLIGHT [E, S]
    sent: NDArray[np.int64]  # [E]: requests so far


def memory(num_envs: int, capacity: NDArray[np.int64], decode_seconds: float) -> Memory:
    """Nothing yet, for GPUs that cache `capacity` tokens; `decode_seconds` until one is known."""
    num_gpus = len(capacity)
    tree = prefix_tree(num_envs)
    num_nodes = tree.nodes.shape[1]
    return Memory(
        tree,
        recency(num_envs, num_nodes, num_gpus),
        np.zeros((num_envs, num_gpus), np.int64),
        capacity,
        np.zeros((num_envs, num_nodes), STATS),
        np.zeros((num_envs, num_nodes, num_gpus), np.int32),
        recent(num_envs),
        np.zeros((num_envs, num_gpus), np.int64),
        np.zeros((num_envs, num_gpus), np.int64),
        recent(num_envs),
        recent(num_envs),
        recent(num_envs),
        np.zeros(num_envs, np.int64),
        np.full(num_envs, decode_seconds * NS),
        np.zeros((num_envs, 0), FLIGHT),
        np.zeros(num_envs, np.int64),
    )


def with_room(m: Memory, num_ids: int, num_events: int, num_slots: int) -> Memory:
    """The same, with room for one more prompt of `num_ids` ids, events and flights everywhere."""
    tree = tree_with_room(m.tree, num_ids)
    m = m._replace(
        tree=tree,
        requests=log_with_room(m.requests, 1),
        newer=log_with_room(m.newer, num_events),
        # All that the newer half holds may move on.
        older=log_with_room(m.older, int(m.newer.size.max()) + num_events),
        decodes=log_with_room(m.decodes, num_events),
    )
    if num_slots > m.flights.shape[1]:
        m = m._replace(flights=widened(m.flights, num_slots))
    num_nodes = tree.nodes.shape[1]
    if num_nodes > m.stats.shape[1]:
        m = m._replace(
            cached=with_capacity(m.cached, num_nodes),
            stats=widened(m.stats, num_nodes),
            uses=widened(m.uses, num_nodes),
        )
    return m


@kernel
def hear(m: Memory, e: int, events: NDArray[np.void], num_events: int) -> None:
    """Learn from what reached the router: EVENT_VIEW records, of which the first `num_events`."""
    for k in range(num_events):
        event = events[k]
        flight = m.flights[e, event["slot"]]
        if event["kind"] == FIRST_TOKEN:
            waited = round((event["time"] - flight["sent"]) * NS) - flight["prefill"]
            waited = max(0, waited)
            append(m.newer, e, event["time"], waited, event["instance"], flight["node"])
            stats = m.stats[e, flight["node"]]
            stats["newer_count"] += 1
            stats["newer_sum"] += waited
            # The reference passes from the flight to the log.
            flight["node"] = NONE
            flight["first_token"] = event["time"]
        elif event["kind"] >= ENDED:
            if flight["node"] != NONE:  # without an answer
                _release(m, e, flight["node"])
                flight["node"] = NONE
            elif event["kind"] == ENDED:  # a failed or cancelled one has not decoded to its end
                decode = round((event["time"] - flight["first_token"]) * NS)
                append(m.decodes, e, event["time"], decode, event["instance"], NONE)
                m.decode_sum[e] += decode


@kernel
def forget(m: Memory, e: int, now: float, window: float) -> None:
    """Let everything leave the window that is older than `window` seconds."""
    while m.requests.size[e] > 0 and first(m.requests, e)["time"] <= now - window:
        record = first(m.requests, e)
        gpu, leaf = record["instance"], record["node"]
        m.prefill[e, gpu] -= record["amount"]
        m.num_requests[e, gpu] -= 1
        node = leaf
        while node != NONE:
            m.uses[e, node, gpu] -= 1
            node = m.tree.nodes[e, node]["parent"]
        drop_first(m.requests, e)
        _release(m, e, leaf)
    while m.newer.size[e] > 0 and first(m.newer, e)["time"] <= now - window / 2:
        record = first(m.newer, e)
        waited, node = record["amount"], record["node"]
        append(m.older, e, record["time"], waited, record["instance"], node)
        stats = m.stats[e, node]
        stats["newer_count"] -= 1
        stats["newer_sum"] -= waited
        stats["older_count"] += 1
        stats["older_sum"] += waited
        drop_first(m.newer, e)
    while m.older.size[e] > 0 and first(m.older, e)["time"] <= now - window:
        waited, node = first(m.older, e)["amount"], first(m.older, e)["node"]
        m.stats[e, node]["older_count"] -= 1
        m.stats[e, node]["older_sum"] -= waited
        drop_first(m.older, e)
        _release(m, e, node)
    while m.decodes.size[e] > 0 and first(m.decodes, e)["time"] <= now - window:
        m.decode_sum[e] -= first(m.decodes, e)["amount"]
        drop_first(m.decodes, e)
    if m.decodes.size[e] > 0:
        m.decode_mean[e] = m.decode_sum[e] / m.decodes.size[e]


@kernel
def enter(
    m: Memory, e: int, prompt: NDArray[np.int64], tokens: int, block_size: int
) -> tuple[int, int]:
    """Put a prompt into the tree: its last node, and the last one on its path that was known."""
    matched, leaf, lower, upper = insert(m.tree, e, prompt, tokens, block_size)
    if upper != NONE:
        _clear(m, e, upper)
        m.uses[e, upper, :] = m.uses[e, lower, :]
        for gpu in range(len(m.capacity)):
            if contains(m.cached, e, gpu, lower):
                put_after(m.cached, e, gpu, upper, lower)
    if matched == len(prompt):
        return leaf, leaf
    _clear(m, e, leaf)
    return leaf, int(m.tree.nodes[e, leaf]["parent"])


@kernel
def _clear(m: Memory, e: int, node: int) -> None:
    """A new node's statistics."""
    stats = m.stats[e, node]
    stats["references"] = stats["newer_count"] = stats["older_count"] = 0
    stats["newer_sum"] = stats["older_sum"] = 0
    stats["scaled"] = -np.inf
    m.uses[e, node, :] = 0


@kernel
def place(
    m: Memory, e: int, gpu: int, leaf: int, by: int, slot: int, prefill: int, now: float
) -> None:
    """A request whose prompt ends in `leaf` goes to `gpu`, for the sake of node `by`."""
    flight = m.flights[e, slot]
    flight["node"] = by
    flight["sent"] = now
    flight["prefill"] = prefill
    flight["first_token"] = np.nan
    m.stats[e, by]["references"] += 1
    send(m, e, gpu, leaf, prefill, now)


@kernel
def send(m: Memory, e: int, gpu: int, leaf: int, prefill: int, now: float) -> None:
    """What a request whose prompt ends in `leaf` does to `gpu`, whoever is told of its end."""
    node = leaf
    while node != ROOT:  # from the leaf up, so that a node is never older than its children
        if not contains(m.cached, e, gpu, node):
            m.tokens[e, gpu] += m.tree.nodes[e, node]["tokens"]
        touch(m.cached, e, gpu, node)
        m.uses[e, node, gpu] += 1
        node = m.tree.nodes[e, node]["parent"]
    m.uses[e, ROOT, gpu] += 1
    append(m.requests, e, now, prefill, gpu, leaf)
    m.prefill[e, gpu] += prefill
    m.num_requests[e, gpu] += 1
    m.sent[e] += 1
    m.stats[e, leaf]["references"] += 1
    while m.tokens[e, gpu] > m.capacity[gpu]:
        oldest = m.cached.ends[e, gpu]["oldest"]
        m.tokens[e, gpu] -= m.tree.nodes[e, oldest]["tokens"]
        drop(m.cached, e, gpu, oldest)
        _prune(m, e, oldest)


@kernel
def _release(m: Memory, e: int, node: int) -> None:
    m.stats[e, node]["references"] -= 1
    _prune(m, e, node)


@kernel
def _prune(m: Memory, e: int, node: int) -> None:
    """Take the node out of the tree if it is of no use any more, then perhaps those above it."""
    while node != ROOT:
        row = m.tree.nodes[e, node]
        if row["children"] > 0 or m.stats[e, node]["references"] > 0:
            return
        for gpu in range(len(m.capacity)):
            if contains(m.cached, e, gpu, node):
                return
        above = row["parent"]
        remove_leaf(m.tree, e, node)
        node = above


@kernel
def queueing_doubled(m: Memory, e: int, node: int) -> bool:
    """Whether the mean queueing time of the window's newer half is twice that of its older half."""
    stats = m.stats[e, node]
    if stats["newer_count"] == 0 or stats["older_count"] == 0 or stats["newer_sum"] == 0:
        return False
    newer = stats["newer_sum"] / stats["newer_count"]
    return bool(newer >= 2 * stats["older_sum"] / stats["older_count"])
