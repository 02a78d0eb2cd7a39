"""Radix trees: worked by hand, then against a model that keeps whole prompts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prefixgym.baselines.prefix_tree import (
    ROOT,
    PrefixTree,
    insert,
    match,
    prefix_tree,
    remove_leaf,
    with_room,
)
from prefixgym.envs.view.id_table import NONE

BLOCK = 100


def path_ids(letters: str) -> list[int]:
    """A block's id is the word that leads to it, read as a number."""
    return [int(letters[: k + 1], 16) for k in range(len(letters))]


def put(
    tree: PrefixTree, letters: str, partial: int = 0
) -> tuple[PrefixTree, tuple[int, int, int, int]]:
    tree = with_room(tree, len(letters))
    ids = np.array(path_ids(letters), np.int64)
    tokens = len(letters) * BLOCK - partial
    matched, node, lower, upper = insert(tree, 0, ids, tokens, BLOCK)
    return tree, (matched, node, lower, upper)


def find(tree: PrefixTree, letters: str) -> tuple[int, int]:
    blocks, node = match(tree, 0, np.array(path_ids(letters), np.int64))
    return blocks, node


def test_a_prompt_that_leaves_a_node_in_the_middle_splits_it() -> None:
    tree, (matched, first, lower, upper) = put(prefix_tree(1), "abcd", partial=30)
    assert (matched, lower, upper) == (0, NONE, NONE)
    row = tree.nodes[0, first]
    assert (row["parent"], row["tokens"], row["context"], row["depth"]) == (ROOT, 370, 370, 0)
    assert put(tree, "abcd", partial=30)[1] == (4, first, NONE, NONE)

    tree, (matched, second, lower, upper) = put(tree, "abee")
    assert (matched, lower) == (2, first)
    assert upper not in (NONE, first, second)
    rows = tree.nodes[0]
    assert [rows[k]["tokens"] for k in (upper, first, second)] == [200, 170, 200]
    assert [rows[k]["context"] for k in (upper, first, second)] == [200, 370, 400]
    assert [rows[k]["parent"] for k in (upper, first, second)] == [ROOT, upper, upper]
    assert [rows[k]["children"] for k in (ROOT, upper, first, second)] == [1, 2, 0, 0]
    assert find(tree, "abcf") == (3, first)
    assert find(tree, "abef") == (3, second)
    assert find(tree, "abff") == (2, upper)
    assert find(tree, "ffff") == (0, ROOT)
    # A prompt that ends at a split is a node of its own.
    assert put(tree, "a")[1][:2] == (1, find(tree, "a")[1])
    assert find(tree, "ab")[1] == upper

    remove_leaf(tree, 0, second)
    assert find(tree, "abee") == (2, upper)
    assert tree.nodes[0, upper]["children"] == 1


@given(st.lists(st.tuples(st.text("abc", max_size=6), st.integers(0, 4)), max_size=40))
def test_tree_knows_the_prefixes_of_its_prompts(steps: list[tuple[str, int]]) -> None:
    tree, prompts = prefix_tree(1, num_blocks=2, num_nodes=2), set[str]()
    for letters, removal in steps:
        known = max((len(p) for p in prefixes(prompts) if letters.startswith(p)), default=0)
        tree, (matched, node, _, _) = put(tree, letters)
        assert matched == known
        prompts.add(letters)
        assert tree.nodes[0, node]["context"] == len(letters) * BLOCK
        if removal == 0 and node != ROOT and tree.nodes[0, node]["children"] == 0:
            above = int(tree.nodes[0, node]["depth"])
            remove_leaf(tree, 0, node)
            prompts = {p for p in prefixes(prompts) if not p.startswith(letters[: above + 1])}
        alive = prefixes(prompts)
        for word in alive | {p + "d" for p in alive}:
            assert find(tree, word)[0] == max(len(p) for p in alive if word.startswith(p))
        capacity = tree.table.ids.shape[1]
        assert capacity - tree.table.num_spare[0] == len(alive - {""})


def prefixes(prompts: set[str]) -> set[str]:
    return {p[:k] for p in prompts for k in range(len(p) + 1)} | {""}
