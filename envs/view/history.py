"""The router's own past choices: a prefix tree over block ids that remembers who got what.

A radix tree whose edges are runs of block ids, shared by all instances ("tenants") of a router. The
router inserts each prompt under the instance it chose, before any answer exists; no engine ever
reports back, so the tree does not know what was really cached or evicted.

The rules are those of the string tree of SGLang's model gateway since sglang#16099 (2025-12-29;
`routers_sglang_vllm_aibrix_llmd.md` §1.1; read in sglang `sgl-model-gateway/src/policies/tree.rs`
at 03744dbe and smg `crates/kv_index/src/string_tree.rs` at 09b0a5c4):

- An edge has an owner: who created it. A split copies the owner to both halves. Once the owner's
  entry on the edge was evicted, another tenant of the edge becomes its owner for good (there an
  arbitrary one, here the lowest-numbered).
- An edge has a stamp for each tenant that was sent through it, from a counter that every insert and
  every match advances. An insert stamps the edge at which the prompt ends, newly made or not, and
  gives the tenant stamp 0 on edges it passes for the first time. A match stamps its last edge for
  the owner, but only when the counter is a multiple of 8.
- `evict` takes from each tenant above its limit the least recently stamped of its leaves (edges
  whose children it does not share), until it is within the limit.

Prompts are chains of block ids, where an id stands for its block and everything before it, so the
first id of an edge names its place in the tree. A prompt's last block may be partial; its id
differs from that of the full block, so a longer prompt matches up to the block before.

Trees of a batch lie side by side in arrays with a leading axis [E]. The kernels below work on the
tree of one environment.
"""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.rng import mix64

NO_NODE = -1
_ABSENT = -1  # stamp of a tenant that an edge does not have
_STAMPED_MATCHES = 8

EDGE = np.dtype(
    [
        ("first", np.int64),  # position of its first id in the row of `ids`
        ("num_ids", np.int32),
        ("tokens", np.int32),
        ("parent", np.int32),  # NO_NODE at the root
        ("owner", np.int32),
    ],
    align=True,
)
"""A node of the tree, which is the edge that leads to it."""

TREE = np.dtype(
    [
        ("num_edges", np.int64),
        ("num_ids", np.int64),
        ("counter", np.int64),
    ],
    align=True,
)
"""What is in use of an environment's rows, and the stamp to hand out next."""

_START_EDGES = 128
_START_IDS = 1024


class HistoryArrays(NamedTuple):
    """Prefix trees of E environments with N instances: what the kernels below work on."""

    trees: NDArray[np.void]  # TREE [E]
    edges: NDArray[np.void]  # EDGE [E, C]
    stamps: NDArray[np.int32]  # [E, C, N], _ABSENT where the edge does not have the tenant
    ids: NDArray[np.int64]  # [E, P], the ids on the edges
    slots: NDArray[np.int32]  # [E, 2 C], hash table from an edge's first id to the edge
    tokens: NDArray[np.int64]  # [E, N], tokens on the edges of each tenant


class History:
    """Prefix trees of E environments with N instances, which grow.

    Attributes:
        arrays: for the kernels.
    """

    def __init__(self, num_envs: int, num_instances: int) -> None:
        self.arrays = HistoryArrays(
            trees=np.zeros(num_envs, TREE),
            edges=np.empty((num_envs, _START_EDGES), EDGE),
            stamps=np.empty((num_envs, _START_EDGES, num_instances), np.int32),
            ids=np.empty((num_envs, _START_IDS), np.int64),
            slots=np.full((num_envs, 2 * _START_EDGES), NO_NODE, np.int32),
            tokens=np.zeros((num_envs, num_instances), np.int64),
        )
        # The gateway inserts an empty prompt for every worker that it knows by then whenever it
        # registers one, here one after the other: 1 + 2 + ... + N inserts.
        self.arrays.trees["counter"] = num_instances * (num_instances + 1) // 2
        self._spare_edges, self._spare_ids = _START_EDGES, _START_IDS

    def remember(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        block_size: int,
        tenants: NDArray[np.int64],
    ) -> None:
        """Insert the prompts of `View.requests` under `tenants`, [E]; below 0: nothing."""
        self.reserve(block_ids.shape[1])
        _insert_all(self.arrays, requests, block_ids, block_size, tenants)

    def reserve(self, num_ids: int) -> None:
        """Make room for one more insert of up to `num_ids` ids in every environment."""
        # An insert adds a leaf and, where it splits an edge, that edge's upper half.
        self._spare_edges -= 2
        self._spare_ids -= num_ids
        if self._spare_edges < 0 or self._spare_ids < 0:
            self._grow(num_ids)

    def _grow(self, num_ids: int) -> None:
        """Double what has less than a quarter to spare; count what is to spare exactly."""
        h = self.arrays
        used = int(h.trees["num_edges"].max())
        old = capacity = h.edges.shape[1]
        while capacity - used < max(2, capacity // 4):
            capacity *= 2
        if capacity > old:
            h = h._replace(
                edges=widened(h.edges, capacity),
                stamps=widened(h.stamps, capacity),
                slots=np.empty((len(h.trees), 2 * capacity), np.int32),
            )
            _index_all(h)
        self._spare_edges = capacity - used - 2

        used = int(h.trees["num_ids"].max())
        old = capacity = h.ids.shape[1]
        while capacity - used < max(num_ids, capacity // 4):
            capacity *= 2
        if capacity > old:
            h = h._replace(ids=widened(h.ids, capacity))
        self._spare_ids = capacity - used - num_ids
        self.arrays = h


@kernel
def _index_all(h: HistoryArrays) -> None:
    for e in range(len(h.trees)):
        _index(h, e)


@kernel
def _index(h: HistoryArrays, e: int) -> None:
    """Fill the hash table anew."""
    for slot in range(h.slots.shape[1]):
        h.slots[e, slot] = NO_NODE
    for node in range(h.trees[e]["num_edges"]):
        h.slots[e, _slot(h, e, h.ids[e, h.edges[e, node]["first"]])] = node


@kernel
def _slot(h: HistoryArrays, e: int, first_id: int) -> int:
    """Where the edge that begins with `first_id` is, or would be, in the hash table."""
    mask = h.slots.shape[1] - 1
    slot = int(np.int64(mix64(np.uint64(first_id)) & np.uint64(mask)))
    while (
        h.slots[e, slot] != NO_NODE and h.ids[e, h.edges[e, h.slots[e, slot]]["first"]] != first_id
    ):
        slot = (slot + 1) & mask
    return slot


@kernel
def _shared(h: HistoryArrays, e: int, node: int, prompt: NDArray[np.int64], depth: int) -> int:
    """How many leading ids of the edge the prompt shares from `depth` on."""
    first = h.edges[e, node]["first"]
    most = min(h.edges[e, node]["num_ids"], len(prompt) - depth)
    shared = 0
    while shared < most and h.ids[e, first + shared] == prompt[depth + shared]:
        shared += 1
    return shared


@kernel
def _longest(h: HistoryArrays, e: int, prompt: NDArray[np.int64]) -> tuple[int, int]:
    """How many leading blocks of `prompt` are in the tree, and the edge that the last one is on."""
    node, depth = NO_NODE, 0
    while depth < len(prompt):
        child = h.slots[e, _slot(h, e, prompt[depth])]
        if child == NO_NODE:
            break
        node = child
        shared = _shared(h, e, node, prompt, depth)
        depth += shared
        if shared < h.edges[e, node]["num_ids"]:
            break
    return depth, node


@kernel
def match(h: HistoryArrays, e: int, prompt: NDArray[np.int64]) -> tuple[int, int]:
    """The longest prefix of `prompt` (block ids) that any instance was ever sent.

    Args:
        h: `History.arrays`.
        e: the environment.
        prompt: block ids.

    Returns:
        The number of matched blocks, and the owner of the last edge that they reach, wholly or in
        part; the owner is NO_NODE if nothing matches.
    """
    depth, node = _longest(h, e, prompt)
    stamp = h.trees[e]["counter"]
    h.trees[e]["counter"] += 1
    if node == NO_NODE:
        return 0, NO_NODE
    owner = h.edges[e, node]["owner"]
    if h.stamps[e, node, owner] == _ABSENT:
        owner = 0
        while h.stamps[e, node, owner] == _ABSENT:
            owner += 1
        h.edges[e, node]["owner"] = owner
    if stamp % _STAMPED_MATCHES == 0:
        h.stamps[e, node, owner] = stamp
    return depth, owner


@kernel
def match_among(
    h: HistoryArrays,
    e: int,
    prompt: NDArray[np.int64],
    loads: NDArray[np.float64],
    picks: NDArray[np.int64],
    count: int,
) -> tuple[int, int, int]:
    """The longest prefix of `prompt` that one of the `count` tenants in `picks` was sent.

    The first arguments are those of `match`.

    Returns:
        The number of matched blocks, the edge that they reach, and the tenant in `picks` that was
        sent them; of several the one with the least of `loads` [N], the first of equals. Both are
        NO_NODE if nothing matches. `touch` marks the edge as used.
    """
    depth, node = _longest(h, e, prompt)
    h.trees[e]["counter"] += 1
    while node != NO_NODE:
        best = NO_NODE
        for k in range(count):
            tenant = picks[k]
            if h.stamps[e, node, tenant] != _ABSENT and (
                best == NO_NODE or loads[tenant] < loads[best]
            ):
                best = tenant
        if best != NO_NODE:
            return depth, node, best
        # Whoever has an edge has its parent, so the next to try is the parent.
        node = h.edges[e, node]["parent"]
        depth = 0
        above = node
        while above != NO_NODE:
            depth += h.edges[e, above]["num_ids"]
            above = h.edges[e, above]["parent"]
    return 0, NO_NODE, NO_NODE


@kernel
def sent_blocks(
    h: HistoryArrays, e: int, prompt: NDArray[np.int64], blocks: NDArray[np.int64]
) -> None:
    """Write how many leading blocks of `prompt` each tenant was sent, [N]. Marks nothing as used.

    The other arguments are those of `match`.
    """
    blocks[:] = 0
    reach, node = _longest(h, e, prompt)
    start = 0  # blocks before the edge
    above = NO_NODE if node == NO_NODE else h.edges[e, node]["parent"]
    while above != NO_NODE:
        start += h.edges[e, above]["num_ids"]
        above = h.edges[e, above]["parent"]
    while node != NO_NODE:
        for tenant in range(len(blocks)):
            if blocks[tenant] == 0 and h.stamps[e, node, tenant] != _ABSENT:
                blocks[tenant] = reach
        node = h.edges[e, node]["parent"]
        reach = start
        if node != NO_NODE:
            start -= h.edges[e, node]["num_ids"]


@kernel
def touch(h: HistoryArrays, e: int, node: int, tenant: int) -> None:
    """Stamp the edge that `match_among` found just before, as sparingly as `match` does."""
    stamp = h.trees[e]["counter"] - 1
    if stamp % _STAMPED_MATCHES == 0:
        h.stamps[e, node, tenant] = stamp


@kernel
def insert(
    h: HistoryArrays,
    e: int,
    prompt: NDArray[np.int64],
    prompt_tokens: int,
    block_size: int,
    tenant: int,
) -> None:
    """Remember that `prompt` went to `tenant`. `History.reserve` has to have made room.

    Args:
        h: `History.arrays`.
        e: the environment.
        prompt: block ids.
        prompt_tokens: tokens in these blocks, if the last one is partial.
        block_size: tokens in a full block.
        tenant: an instance.
    """
    node, depth = NO_NODE, 0
    while depth < len(prompt):
        slot = _slot(h, e, prompt[depth])
        child = h.slots[e, slot]
        if child == NO_NODE:
            child = h.trees[e]["num_edges"]
            h.trees[e]["num_edges"] += 1
            h.slots[e, slot] = child
            leaf = h.edges[e, child]
            leaf["first"] = h.trees[e]["num_ids"]
            leaf["num_ids"] = len(prompt) - depth
            leaf["tokens"] = prompt_tokens - depth * block_size
            leaf["parent"] = node
            leaf["owner"] = tenant
            for k in range(len(prompt) - depth):
                h.ids[e, h.trees[e]["num_ids"] + k] = prompt[depth + k]
            h.trees[e]["num_ids"] += len(prompt) - depth
            for other in range(h.stamps.shape[2]):
                h.stamps[e, child, other] = _ABSENT
            shared = len(prompt) - depth
        else:
            shared = _shared(h, e, child, prompt, depth)
            if shared < h.edges[e, child]["num_ids"]:
                child = _split(h, e, slot, shared, block_size)
        node = child
        depth += shared
        if h.stamps[e, node, tenant] == _ABSENT:
            h.stamps[e, node, tenant] = 0
            h.tokens[e, tenant] += h.edges[e, node]["tokens"]
    if node != NO_NODE:
        h.stamps[e, node, tenant] = h.trees[e]["counter"]
    h.trees[e]["counter"] += 1


@kernel
def _split(h: HistoryArrays, e: int, slot: int, num_ids: int, block_size: int) -> int:
    """Give the first `num_ids` ids of the edge in `slot` an edge of their own, and return that."""
    node = h.slots[e, slot]
    upper = h.trees[e]["num_edges"]
    h.trees[e]["num_edges"] += 1
    lower_half, upper_half = h.edges[e, node], h.edges[e, upper]
    upper_half["first"] = lower_half["first"]
    upper_half["num_ids"] = num_ids
    upper_half["tokens"] = num_ids * block_size  # only the last block of an edge can be partial
    upper_half["parent"] = lower_half["parent"]
    upper_half["owner"] = lower_half["owner"]
    lower_half["first"] += num_ids
    lower_half["num_ids"] -= num_ids
    lower_half["tokens"] -= num_ids * block_size
    lower_half["parent"] = upper
    for tenant in range(h.stamps.shape[2]):
        h.stamps[e, upper, tenant] = h.stamps[e, node, tenant]
    h.slots[e, slot] = upper
    h.slots[e, _slot(h, e, h.ids[e, lower_half["first"]])] = node
    return int(upper)


@kernel
def evict(h: HistoryArrays, e: int, most_tokens: float) -> None:
    """Bring every tenant down to `most_tokens`, least recently stamped leaves first.

    Whole edges go, so a tenant may end below the limit. Equal stamps: the edge made first.

    Args:
        h: `History.arrays`.
        e: the environment.
        most_tokens: limit of each tenant.
    """
    if h.tokens[e].max() <= most_tokens:
        return
    num_edges = h.trees[e]["num_edges"]
    children = np.zeros((num_edges, h.tokens.shape[1]), np.int32)  # that have the tenant too
    for node in range(num_edges):
        parent = h.edges[e, node]["parent"]
        if parent != NO_NODE:
            for tenant in range(h.tokens.shape[1]):
                children[parent, tenant] += h.stamps[e, node, tenant] != _ABSENT
    for tenant in range(h.tokens.shape[1]):
        if h.tokens[e, tenant] <= most_tokens:
            continue
        leaves = [
            (np.int64(h.stamps[e, node, tenant]), np.int64(node))
            for node in range(num_edges)
            if h.stamps[e, node, tenant] != _ABSENT and children[node, tenant] == 0
        ]
        heapq.heapify(leaves)
        while h.tokens[e, tenant] > most_tokens:
            node = int(heapq.heappop(leaves)[1])
            h.stamps[e, node, tenant] = _ABSENT
            h.tokens[e, tenant] -= h.edges[e, node]["tokens"]
            parent = h.edges[e, node]["parent"]
            if parent != NO_NODE:
                children[parent, tenant] -= 1
                if children[parent, tenant] == 0:
                    leaf = (np.int64(h.stamps[e, parent, tenant]), np.int64(parent))
                    heapq.heappush(leaves, leaf)
    _compact(h, e)
    _index(h, e)


@kernel
def forget(h: HistoryArrays, e: int, tenant: int) -> None:
    """Take a tenant out of the whole tree."""
    for node in range(h.trees[e]["num_edges"]):
        h.stamps[e, node, tenant] = _ABSENT
    h.tokens[e, tenant] = 0
    _compact(h, e)
    _index(h, e)


@kernel
def _compact(h: HistoryArrays, e: int) -> None:
    """Drop the edges that no tenant has any more, keeping the order of the others."""
    old_ids = np.empty(h.trees[e]["num_ids"], np.int64)
    for k in range(len(old_ids)):
        old_ids[k] = h.ids[e, k]
    renumbered = np.empty(h.trees[e]["num_edges"], np.int32)
    num_edges, num_ids = 0, 0
    for node in range(len(renumbered)):
        is_held = False
        for tenant in range(h.stamps.shape[2]):
            is_held = is_held or h.stamps[e, node, tenant] != _ABSENT
        if not is_held:
            continue
        renumbered[node] = num_edges
        h.edges[e, num_edges] = h.edges[e, node]
        for tenant in range(h.stamps.shape[2]):
            h.stamps[e, num_edges, tenant] = h.stamps[e, node, tenant]
        edge = h.edges[e, num_edges]
        for k in range(edge["num_ids"]):
            h.ids[e, num_ids + k] = old_ids[edge["first"] + k]
        edge["first"] = num_ids
        num_ids += edge["num_ids"]
        num_edges += 1
    for node in range(num_edges):
        parent = h.edges[e, node]["parent"]
        if parent != NO_NODE:  # an edge's parent has all of its tenants, so it is still there
            h.edges[e, node]["parent"] = renumbered[parent]
    h.trees[e]["num_edges"] = num_edges
    h.trees[e]["num_ids"] = num_ids


@kernel
def _insert_all(
    h: HistoryArrays,
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    block_size: int,
    tenants: NDArray[np.int64],
) -> None:
    for e in range(len(tenants)):
        if tenants[e] < 0:
            continue
        prompt = block_ids[e, : requests[e]["num_blocks"]]
        prompt_tokens = min(len(prompt) * block_size, requests[e]["prompt_tokens"])
        insert(h, e, prompt, prompt_tokens, block_size, tenants[e])
