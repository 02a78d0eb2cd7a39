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

Trees of a batch lie side by side in arrays with a leading axis [E]. The kernels below work on one
environment's rows of them.
"""

import heapq

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


class History:
    """Prefix trees of E environments with N instances.

    Attributes:
        trees: TREE records, shape [E].
        edges: EDGE records, shape [E, C].
        stamps: int32 [E, C, N], _ABSENT where the edge does not have the tenant.
        ids: int64 [E, P], the ids on the edges.
        slots: int32 [E, 2 C], hash table from an edge's first id to the edge.
        tokens: tokens on the edges of each tenant, int64 [E, N].
    """

    def __init__(self, num_envs: int, num_instances: int) -> None:
        self.trees = np.zeros(num_envs, TREE)
        # The gateway registers every worker with an empty insert, which advances the counter.
        self.trees["counter"] = num_instances
        self.edges = np.empty((num_envs, _START_EDGES), EDGE)
        self.stamps = np.empty((num_envs, _START_EDGES, num_instances), np.int32)
        self.ids = np.empty((num_envs, _START_IDS), np.int64)
        self.slots = np.full((num_envs, 2 * _START_EDGES), NO_NODE, np.int32)
        self.tokens = np.zeros((num_envs, num_instances), np.int64)
        self._spare_edges, self._spare_ids = _START_EDGES, _START_IDS

    def reserve(self, num_ids: int) -> None:
        """Make room for one more insert of up to `num_ids` ids in every environment."""
        # An insert adds a leaf and, where it splits an edge, that edge's upper half.
        self._spare_edges -= 2
        self._spare_ids -= num_ids
        if self._spare_edges < 0 or self._spare_ids < 0:
            self._grow(num_ids)

    def _grow(self, num_ids: int) -> None:
        """Double what has less than a quarter to spare; count what is to spare exactly."""
        used = int(self.trees["num_edges"].max())
        old = capacity = self.edges.shape[1]
        while capacity - used < max(2, capacity // 4):
            capacity *= 2
        if capacity > old:
            self.edges = widened(self.edges, capacity)
            self.stamps = widened(self.stamps, capacity)
            self.slots = np.empty((len(self.trees), 2 * capacity), np.int32)
            _index_all(self.trees, self.edges, self.ids, self.slots)
        self._spare_edges = capacity - used - 2

        used = int(self.trees["num_ids"].max())
        old = capacity = self.ids.shape[1]
        while capacity - used < max(num_ids, capacity // 4):
            capacity *= 2
        if capacity > old:
            self.ids = widened(self.ids, capacity)
        self._spare_ids = capacity - used - num_ids


@kernel
def _index_all(
    trees: NDArray[np.void],
    edges: NDArray[np.void],
    ids: NDArray[np.int64],
    slots: NDArray[np.int32],
) -> None:
    for e in range(len(trees)):
        _index(trees[e]["num_edges"], edges[e], ids[e], slots[e])


@kernel
def _index(
    num_edges: int, edges: NDArray[np.void], ids: NDArray[np.int64], slots: NDArray[np.int32]
) -> None:
    """Fill the hash table anew."""
    for slot in range(len(slots)):
        slots[slot] = NO_NODE
    for node in range(num_edges):
        slots[_slot(edges, ids, slots, ids[edges[node]["first"]])] = node


@kernel
def _slot(
    edges: NDArray[np.void], ids: NDArray[np.int64], slots: NDArray[np.int32], first_id: int
) -> int:
    """Where the edge that begins with `first_id` is, or would be, in the hash table."""
    mask = len(slots) - 1
    slot = int(np.int64(mix64(np.uint64(first_id)) & np.uint64(mask)))
    while slots[slot] != NO_NODE and ids[edges[slots[slot]]["first"]] != first_id:
        slot = (slot + 1) & mask
    return slot


@kernel
def _shared(
    edges: NDArray[np.void],
    ids: NDArray[np.int64],
    node: int,
    prompt: NDArray[np.int64],
    depth: int,
) -> int:
    """How many leading ids of the edge the prompt shares from `depth` on."""
    first = edges[node]["first"]
    most = min(edges[node]["num_ids"], len(prompt) - depth)
    shared = 0
    while shared < most and ids[first + shared] == prompt[depth + shared]:
        shared += 1
    return shared


@kernel
def _longest(
    edges: NDArray[np.void],
    ids: NDArray[np.int64],
    slots: NDArray[np.int32],
    prompt: NDArray[np.int64],
) -> tuple[int, int]:
    """How many leading blocks of `prompt` are in the tree, and the edge that the last one is on."""
    node, depth = NO_NODE, 0
    while depth < len(prompt):
        child = slots[_slot(edges, ids, slots, prompt[depth])]
        if child == NO_NODE:
            break
        node = child
        shared = _shared(edges, ids, node, prompt, depth)
        depth += shared
        if shared < edges[node]["num_ids"]:
            break
    return depth, node


@kernel
def match(
    tree: NDArray[np.void],
    edges: NDArray[np.void],
    stamps: NDArray[np.int32],
    ids: NDArray[np.int64],
    slots: NDArray[np.int32],
    prompt: NDArray[np.int64],
) -> tuple[int, int]:
    """The longest prefix of `prompt` (block ids) that any instance was ever sent.

    Args:
        tree: the environment's TREE record, as an array of shape [1].
        edges: EDGE records [C].
        stamps: [C, N].
        ids: [P].
        slots: [2 C].
        prompt: block ids.

    Returns:
        The number of matched blocks, and the owner of the last edge that they reach, wholly or in
        part; the owner is NO_NODE if nothing matches.
    """
    depth, node = _longest(edges, ids, slots, prompt)
    stamp = tree[0]["counter"]
    tree[0]["counter"] += 1
    if node == NO_NODE:
        return 0, NO_NODE
    owner = edges[node]["owner"]
    if stamps[node, owner] == _ABSENT:
        owner = 0
        while stamps[node, owner] == _ABSENT:
            owner += 1
        edges[node]["owner"] = owner
    if stamp % _STAMPED_MATCHES == 0:
        stamps[node, owner] = stamp
    return depth, owner


@kernel
def match_among(
    tree: NDArray[np.void],
    edges: NDArray[np.void],
    stamps: NDArray[np.int32],
    ids: NDArray[np.int64],
    slots: NDArray[np.int32],
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
    depth, node = _longest(edges, ids, slots, prompt)
    tree[0]["counter"] += 1
    while node != NO_NODE:
        best = NO_NODE
        for k in range(count):
            tenant = picks[k]
            if stamps[node, tenant] != _ABSENT and (best == NO_NODE or loads[tenant] < loads[best]):
                best = tenant
        if best != NO_NODE:
            return depth, node, best
        # Whoever has an edge has its parent, so the next to try is the parent.
        node = edges[node]["parent"]
        depth = 0
        above = node
        while above != NO_NODE:
            depth += edges[above]["num_ids"]
            above = edges[above]["parent"]
    return 0, NO_NODE, NO_NODE


@kernel
def sent_blocks(
    edges: NDArray[np.void],
    stamps: NDArray[np.int32],
    ids: NDArray[np.int64],
    slots: NDArray[np.int32],
    prompt: NDArray[np.int64],
    blocks: NDArray[np.int64],
) -> None:
    """Write how many leading blocks of `prompt` each tenant was sent, [N]. Marks nothing as used.

    The other arguments are those of `match`.
    """
    blocks[:] = 0
    reach, node = _longest(edges, ids, slots, prompt)
    start = 0  # blocks before the edge
    above = NO_NODE if node == NO_NODE else edges[node]["parent"]
    while above != NO_NODE:
        start += edges[above]["num_ids"]
        above = edges[above]["parent"]
    while node != NO_NODE:
        for tenant in range(len(blocks)):
            if blocks[tenant] == 0 and stamps[node, tenant] != _ABSENT:
                blocks[tenant] = reach
        node = edges[node]["parent"]
        reach = start
        if node != NO_NODE:
            start -= edges[node]["num_ids"]


@kernel
def touch(tree: NDArray[np.void], stamps: NDArray[np.int32], node: int, tenant: int) -> None:
    """Stamp the edge that `match_among` found just before, as sparingly as `match` does."""
    stamp = tree[0]["counter"] - 1
    if stamp % _STAMPED_MATCHES == 0:
        stamps[node, tenant] = stamp


@kernel
def insert(
    tree: NDArray[np.void],
    edges: NDArray[np.void],
    stamps: NDArray[np.int32],
    ids: NDArray[np.int64],
    slots: NDArray[np.int32],
    tokens: NDArray[np.int64],
    prompt: NDArray[np.int64],
    prompt_tokens: int,
    block_size: int,
    tenant: int,
) -> None:
    """Remember that `prompt` went to `tenant`. `History.reserve` has to have made room.

    Args:
        tree: the environment's TREE record, as an array of shape [1].
        edges: EDGE records [C].
        stamps: [C, N].
        ids: [P].
        slots: [2 C].
        tokens: [N].
        prompt: block ids.
        prompt_tokens: tokens in these blocks, if the last one is partial.
        block_size: tokens in a full block.
        tenant: an instance.
    """
    node, depth = NO_NODE, 0
    while depth < len(prompt):
        slot = _slot(edges, ids, slots, prompt[depth])
        child = slots[slot]
        if child == NO_NODE:
            child = tree[0]["num_edges"]
            tree[0]["num_edges"] += 1
            slots[slot] = child
            leaf = edges[child]
            leaf["first"] = tree[0]["num_ids"]
            leaf["num_ids"] = len(prompt) - depth
            leaf["tokens"] = prompt_tokens - depth * block_size
            leaf["parent"] = node
            leaf["owner"] = tenant
            for k in range(len(prompt) - depth):
                ids[tree[0]["num_ids"] + k] = prompt[depth + k]
            tree[0]["num_ids"] += len(prompt) - depth
            for other in range(stamps.shape[1]):
                stamps[child, other] = _ABSENT
            shared = len(prompt) - depth
        else:
            shared = _shared(edges, ids, child, prompt, depth)
            if shared < edges[child]["num_ids"]:
                child = _split(tree, edges, stamps, ids, slots, slot, shared, block_size)
        node = child
        depth += shared
        if stamps[node, tenant] == _ABSENT:
            stamps[node, tenant] = 0
            tokens[tenant] += edges[node]["tokens"]
    if node != NO_NODE:
        stamps[node, tenant] = tree[0]["counter"]
    tree[0]["counter"] += 1


@kernel
def _split(
    tree: NDArray[np.void],
    edges: NDArray[np.void],
    stamps: NDArray[np.int32],
    ids: NDArray[np.int64],
    slots: NDArray[np.int32],
    slot: int,
    num_ids: int,
    block_size: int,
) -> int:
    """Give the first `num_ids` ids of the edge in `slot` an edge of their own, and return that."""
    node = slots[slot]
    upper = tree[0]["num_edges"]
    tree[0]["num_edges"] += 1
    lower_half, upper_half = edges[node], edges[upper]
    upper_half["first"] = lower_half["first"]
    upper_half["num_ids"] = num_ids
    upper_half["tokens"] = num_ids * block_size  # only the last block of an edge can be partial
    upper_half["parent"] = lower_half["parent"]
    upper_half["owner"] = lower_half["owner"]
    lower_half["first"] += num_ids
    lower_half["num_ids"] -= num_ids
    lower_half["tokens"] -= num_ids * block_size
    lower_half["parent"] = upper
    for tenant in range(stamps.shape[1]):
        stamps[upper, tenant] = stamps[node, tenant]
    slots[slot] = upper
    slots[_slot(edges, ids, slots, ids[lower_half["first"]])] = node
    return int(upper)


@kernel
def evict(
    tree: NDArray[np.void],
    edges: NDArray[np.void],
    stamps: NDArray[np.int32],
    ids: NDArray[np.int64],
    slots: NDArray[np.int32],
    tokens: NDArray[np.int64],
    most_tokens: float,
) -> None:
    """Bring every tenant down to `most_tokens`, least recently stamped leaves first.

    Whole edges go, so a tenant may end below the limit. Equal stamps: the edge made first.

    Args:
        tree: the environment's TREE record, as an array of shape [1].
        edges: EDGE records [C].
        stamps: [C, N].
        ids: [P].
        slots: [2 C].
        tokens: [N].
        most_tokens: limit of each tenant.
    """
    if tokens.max() <= most_tokens:
        return
    num_edges = tree[0]["num_edges"]
    children = np.zeros((num_edges, len(tokens)), np.int32)  # that have the tenant too
    for node in range(num_edges):
        parent = edges[node]["parent"]
        if parent != NO_NODE:
            for tenant in range(len(tokens)):
                children[parent, tenant] += stamps[node, tenant] != _ABSENT
    for tenant in range(len(tokens)):
        if tokens[tenant] <= most_tokens:
            continue
        leaves = [
            (np.int64(stamps[node, tenant]), np.int64(node))
            for node in range(num_edges)
            if stamps[node, tenant] != _ABSENT and children[node, tenant] == 0
        ]
        heapq.heapify(leaves)
        while tokens[tenant] > most_tokens:
            node = int(heapq.heappop(leaves)[1])
            stamps[node, tenant] = _ABSENT
            tokens[tenant] -= edges[node]["tokens"]
            parent = edges[node]["parent"]
            if parent != NO_NODE:
                children[parent, tenant] -= 1
                if children[parent, tenant] == 0:
                    leaf = (np.int64(stamps[parent, tenant]), np.int64(parent))
                    heapq.heappush(leaves, leaf)
    _compact(tree, edges, stamps, ids)
    _index(tree[0]["num_edges"], edges, ids, slots)


@kernel
def forget(
    tree: NDArray[np.void],
    edges: NDArray[np.void],
    stamps: NDArray[np.int32],
    ids: NDArray[np.int64],
    slots: NDArray[np.int32],
    tokens: NDArray[np.int64],
    tenant: int,
) -> None:
    """Take a tenant out of the whole tree; the arguments are those of `evict`."""
    for node in range(tree[0]["num_edges"]):
        stamps[node, tenant] = _ABSENT
    tokens[tenant] = 0
    _compact(tree, edges, stamps, ids)
    _index(tree[0]["num_edges"], edges, ids, slots)


@kernel
def _compact(
    tree: NDArray[np.void],
    edges: NDArray[np.void],
    stamps: NDArray[np.int32],
    ids: NDArray[np.int64],
) -> None:
    """Drop the edges that no tenant has any more, keeping the order of the others."""
    old_ids = np.empty(tree[0]["num_ids"], np.int64)
    for k in range(len(old_ids)):
        old_ids[k] = ids[k]
    renumbered = np.empty(tree[0]["num_edges"], np.int32)
    num_edges, num_ids = 0, 0
    for node in range(len(renumbered)):
        is_held = False
        for tenant in range(stamps.shape[1]):
            is_held = is_held or stamps[node, tenant] != _ABSENT
        if not is_held:
            continue
        renumbered[node] = num_edges
        edges[num_edges] = edges[node]
        for tenant in range(stamps.shape[1]):
            stamps[num_edges, tenant] = stamps[node, tenant]
        edge = edges[num_edges]
        for k in range(edge["num_ids"]):
            ids[num_ids + k] = old_ids[edge["first"] + k]
        edge["first"] = num_ids
        num_ids += edge["num_ids"]
        num_edges += 1
    for node in range(num_edges):
        parent = edges[node]["parent"]
        if parent != NO_NODE:  # an edge's parent has all of its tenants, so it is still there
            edges[node]["parent"] = renumbered[parent]
    tree[0]["num_edges"] = num_edges
    tree[0]["num_ids"] = num_ids
