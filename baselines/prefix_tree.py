"""Radix trees over block ids, with numbered nodes to which a router can attach statistics.

A node is a run of blocks that all its prompts share; inserting a prompt that leaves a node in the
middle splits it. Node 0 is the root, which has no blocks. The number of a node stays the same until
it is removed; after a split it is the number of the lower part, and the upper part is new.

An id names its block and everything before it, so the tree is a table of ids: each says which node
it is in. Where a prompt leaves the tree is found by bisection.

(`prefixgym.envs.view.history` has SGLang's tree, with its owners and its eviction.)
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.view.id_table import (
    NONE,
    IdTable,
    doubled,
    find,
    find_or_add,
    id_table,
    remove,
)

ROOT = 0

NODE = np.dtype(
    [
        ("parent", np.int32),  # NONE at the root
        ("children", np.int32),  # how many
        ("depth", np.int32),  # blocks above it
        ("num_blocks", np.int32),
        ("tokens", np.int32),  # in its blocks
        ("context", np.int32),  # tokens from the root to its end
        ("last", np.int32),  # entry of its last block
    ],
    align=True,
)

BLOCK = np.dtype([("node", np.int32), ("before", np.int32)], align=True)
"""The node that a block is in, and the entry of the block before it."""


class PrefixTree(NamedTuple):
    """Trees of E environments with room for C blocks in M nodes each."""

    table: IdTable
    blocks: NDArray[np.void]  # BLOCK [E, C]
    nodes: NDArray[np.void]  # NODE [E, M]
    spare: NDArray[np.int32]  # [E, M]: a stack of the nodes not in use
    num_spare: NDArray[np.int64]  # [E]


def prefix_tree(num_envs: int, num_blocks: int = 1024, num_nodes: int = 256) -> PrefixTree:
    """Trees of a root only."""
    nodes = np.zeros((num_envs, num_nodes), NODE)
    nodes[:, ROOT]["parent"] = nodes[:, ROOT]["last"] = NONE
    return PrefixTree(
        id_table(num_envs, num_blocks),
        np.empty((num_envs, num_blocks), BLOCK),
        nodes,
        np.tile(np.arange(num_nodes - 1, -1, -1, dtype=np.int32), (num_envs, 1)),
        np.full(num_envs, num_nodes - 1, np.int64),
    )


def with_room(tree: PrefixTree, num_ids: int) -> PrefixTree:
    """The tree itself, or one with the same nodes and room to insert `num_ids` ids everywhere."""
    while tree.table.num_spare.min() < num_ids:
        blocks = widened(tree.blocks, 2 * tree.blocks.shape[1])
        tree = tree._replace(table=doubled(tree.table), blocks=blocks)
    while tree.num_spare.min() < 2:  # a split and a leaf
        num_envs, old = tree.nodes.shape
        nodes = widened(tree.nodes, 2 * old)
        spare = np.empty((num_envs, 2 * old), np.int32)
        _respare(tree.spare, tree.num_spare, spare)
        tree = tree._replace(nodes=nodes, spare=spare)
    return tree


@kernel
def _respare(
    old: NDArray[np.int32], num_spare: NDArray[np.int64], spare: NDArray[np.int32]
) -> None:
    """The new nodes at the bottom of the stack, below the old ones that were spare."""
    capacity = old.shape[1]
    for e in range(len(old)):
        for k in range(capacity):
            spare[e, k] = 2 * capacity - 1 - k
        for k in range(num_spare[e]):
            spare[e, capacity + k] = old[e, k]
        num_spare[e] += capacity


@kernel
def match(tree: PrefixTree, e: int, prompt: NDArray[np.int64]) -> tuple[int, int]:
    """The leading blocks of `prompt` (ids) that are in the tree, and the node of the last one."""
    low, high, node = 0, len(prompt), ROOT
    while low < high:
        middle = (low + high + 1) // 2
        entry = find(tree.table, e, prompt[middle - 1])
        if entry == NONE:
            high = middle - 1
        else:
            low = middle
            node = int(tree.blocks[e, entry]["node"])
    return low, node


@kernel
def insert(
    tree: PrefixTree, e: int, prompt: NDArray[np.int64], prompt_tokens: int, block_size: int
) -> tuple[int, int, int, int]:
    """Put a prompt into the tree, for which `with_room` has to have made room.

    Args:
        tree: the trees.
        e: the environment.
        prompt: block ids.
        prompt_tokens: tokens in these blocks, if the last one is partial.
        block_size: tokens in a full block.

    Returns:
        The leading blocks that were there, the node in which the prompt ends, and of the node that
        was split the lower and the upper part, both NONE if there was none.
    """
    matched, node = match(tree, e, prompt)
    lower = upper = NONE
    at = tree.nodes[e, node]
    if matched < at["depth"] + at["num_blocks"]:
        lower, upper = node, _split(tree, e, prompt, matched, node, block_size)
        node = upper
    if matched < len(prompt):
        leaf = _new_node(tree, e)
        row = tree.nodes[e, leaf]
        row["parent"] = node
        row["children"] = 0
        row["depth"] = matched
        row["num_blocks"] = len(prompt) - matched
        row["tokens"] = prompt_tokens - matched * block_size
        row["context"] = prompt_tokens
        entry = int(tree.nodes[e, node]["last"])
        for k in range(matched, len(prompt)):
            before = entry
            entry, _ = find_or_add(tree.table, e, prompt[k])
            tree.blocks[e, entry]["node"] = leaf
            tree.blocks[e, entry]["before"] = before
        row["last"] = entry
        tree.nodes[e, node]["children"] += 1
        node = leaf
    return matched, node, lower, upper


@kernel
def _new_node(tree: PrefixTree, e: int) -> int:
    tree.num_spare[e] -= 1
    return int(tree.spare[e, tree.num_spare[e]])


@kernel
def _split(
    tree: PrefixTree, e: int, prompt: NDArray[np.int64], matched: int, node: int, block_size: int
) -> int:
    """Give the node's blocks up to the `matched`-th of the prompt to a new node above it."""
    upper = _new_node(tree, e)
    lower_part, upper_part = tree.nodes[e, node], tree.nodes[e, upper]
    kept = matched - lower_part["depth"]
    upper_part["parent"] = lower_part["parent"]
    upper_part["children"] = 1
    upper_part["depth"] = lower_part["depth"]
    upper_part["num_blocks"] = kept
    upper_part["tokens"] = kept * block_size  # only the last block of a prompt can be partial
    upper_part["context"] = matched * block_size
    for k in range(lower_part["depth"], matched):
        entry = find(tree.table, e, prompt[k])
        tree.blocks[e, entry]["node"] = upper
        upper_part["last"] = entry
    lower_part["parent"] = upper
    lower_part["depth"] = matched
    lower_part["num_blocks"] -= kept
    lower_part["tokens"] -= kept * block_size
    return upper


@kernel
def remove_leaf(tree: PrefixTree, e: int, node: int) -> None:
    """Take a node without children, other than the root, out of the tree."""
    row = tree.nodes[e, node]
    entry = int(row["last"])
    for _ in range(row["num_blocks"]):
        before = int(tree.blocks[e, entry]["before"])
        remove(tree.table, e, entry)
        entry = before
    tree.nodes[e, row["parent"]]["children"] -= 1
    tree.spare[e, tree.num_spare[e]] = node
    tree.num_spare[e] += 1
