"""The compiled tree against hand-worked cases and against a plain tree of Python objects."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixgym.envs.view.history import NO_NODE, History, evict, insert, match

BLOCK = 16


class OneTree:
    """A `History` of one environment, driven prompt by prompt."""

    def __init__(self, num_instances: int) -> None:
        self.history = History(1, num_instances)

    def insert(self, prompt: list[int], tenant: int, tokens: int | None = None) -> None:
        h = self.history
        h.reserve(len(prompt))
        insert(
            h.arrays,
            0,
            np.array(prompt, np.int64),
            len(prompt) * BLOCK if tokens is None else tokens,
            BLOCK,
            tenant,
        )

    def match(self, prompt: list[int]) -> tuple[int, int]:
        return match(self.history.arrays, 0, np.array(prompt, np.int64))

    def evict(self, most_tokens: float) -> None:
        evict(self.history.arrays, 0, float(most_tokens))

    @property
    def tokens(self) -> list[int]:
        return [int(n) for n in self.history.arrays.tokens[0]]

    @property
    def counter(self) -> int:
        return int(self.history.arrays.trees[0]["counter"])


def test_empty_tree_matches_nothing() -> None:
    assert OneTree(2).match([1, 2]) == (0, NO_NODE)


def test_matches_whole_edges_parts_of_edges_and_nothing_else() -> None:
    tree = OneTree(3)
    tree.insert([1, 2, 3, 4], 2)
    assert tree.match([1, 2, 3, 4, 5]) == (4, 2)
    assert tree.match([1, 2, 9]) == (2, 2)
    assert tree.match([9]) == (0, NO_NODE)
    assert tree.match([]) == (0, NO_NODE)


def test_first_creator_keeps_a_prefix_that_others_hold_too() -> None:
    tree = OneTree(3)
    tree.insert([1, 2], 1)
    for _ in range(5):
        tree.insert([1, 2], 0)
        tree.insert([1, 2, 3], 2)
    assert tree.match([1, 2]) == (2, 1)
    assert tree.match([1, 2, 3]) == (3, 2)  # created the extension
    assert tree.match([1, 7]) == (1, 1)


def test_a_split_copies_owner_and_tenants() -> None:
    tree = OneTree(3)
    tree.insert([1, 2, 3, 4], 2)
    tree.insert([1, 2, 8], 0)
    assert tree.match([1, 2]) == (2, 2)
    assert tree.match([1, 2, 3]) == (3, 2)
    assert tree.match([1, 2, 8]) == (3, 0)
    # Tenant 0 holds blocks 1, 2 and 8, tenant 2 what it had.
    assert tree.tokens == [3 * BLOCK, 0, 4 * BLOCK]


def test_tokens_count_a_partial_last_block_and_no_edge_twice() -> None:
    tree = OneTree(2)
    tree.insert([1, 2, 3], 0, tokens=2 * BLOCK + 5)
    assert tree.tokens == [37, 0]
    tree.insert([1, 2, 3], 0, tokens=2 * BLOCK + 5)
    assert tree.tokens == [37, 0]
    tree.insert([1, 4], 0)  # splits after block 1
    tree.insert([1, 2, 3], 1, tokens=2 * BLOCK + 5)
    assert tree.tokens == [37 + BLOCK, 37]


def test_eviction_drops_the_least_recently_stamped_leaf() -> None:
    tree = OneTree(1)
    tree.insert([1, 2], 0)
    tree.insert([1, 3], 0)
    tree.insert([1, 4], 0)
    tree.insert([1, 2], 0)  # stamps its last edge anew: the oldest leaf is now block 3
    tree.evict(4 * BLOCK)  # within the limit
    assert tree.tokens == [4 * BLOCK]
    tree.evict(4 * BLOCK - 1)
    assert tree.tokens == [3 * BLOCK]
    assert tree.match([1, 3]) == (1, 0)
    assert tree.match([1, 4]) == (2, 0)
    assert tree.match([1, 2]) == (2, 0)


def test_eviction_takes_whole_edges_from_the_tail() -> None:
    tree = OneTree(1)
    tree.insert([1, 2, 3], 0)
    tree.insert([1, 2, 3, 4, 5, 6], 0)
    tree.evict(5 * BLOCK)
    assert tree.tokens == [3 * BLOCK]
    assert tree.match([1, 2, 3, 4]) == (3, 0)
    tree.evict(3 * BLOCK - 1)
    assert tree.match([1]) == (0, NO_NODE)
    assert tree.tokens == [0]


def test_limit_is_for_each_tenant_and_an_evicted_owner_is_replaced() -> None:
    tree = OneTree(3)
    tree.insert([1, 2], 2)
    tree.insert([1, 2], 1)
    tree.insert([8, 9], 2)
    tree.evict(2 * BLOCK)
    assert tree.tokens == [0, 2 * BLOCK, 2 * BLOCK]
    assert tree.match([1, 2]) == (2, 1)
    tree.insert([1, 2], 2)
    assert tree.match([1, 2]) == (2, 1)  # the new owner stays


def test_only_every_eighth_count_lets_a_match_look_recent() -> None:
    # Two instances: the counter starts at 3. Inserts take 3 and 4, matches the counts from 5 on.
    for matches, survivor in [(3, 2), (4, 1)]:
        tree = OneTree(2)
        tree.insert([1], 0)
        tree.insert([2], 0)
        for _ in range(matches):
            tree.match([1])
        assert tree.counter == 5 + matches  # the fourth match has count 8
        tree.evict(BLOCK)
        assert tree.match([survivor]) == (1, 0)


@dataclass
class Node:
    """An edge of the plain tree, which is written after the gateway's rules and shares no code."""

    text: list[int]
    sizes: list[int]
    owner: int
    order: int
    parent: "Node | None"
    stamps: dict[int, int] = field(default_factory=dict)
    children: dict[int, "Node"] = field(default_factory=dict)


class PlainTree:
    def __init__(self, num_instances: int) -> None:
        self.root = Node([], [], -1, -1, None)
        self.counter = sum(range(num_instances + 1))
        self.made = 0
        self.num_instances = num_instances

    def node(self, text: list[int], sizes: list[int], owner: int, parent: Node) -> Node:
        self.made += 1
        node = Node(text, sizes, owner, self.made, parent)
        parent.children[text[0]] = node
        return node

    @staticmethod
    def shared(a: list[int], b: list[int]) -> int:
        n = 0
        while n < min(len(a), len(b)) and a[n] == b[n]:
            n += 1
        return n

    def insert(self, prompt: list[int], tenant: int, tokens: int) -> None:
        sizes = [BLOCK] * len(prompt)
        if prompt:
            sizes[-1] = tokens - BLOCK * (len(prompt) - 1)
        node, rest = self.root, prompt
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                child = self.node(rest, sizes[-len(rest) :], tenant, node)
            n = self.shared(child.text, rest)
            if n < len(child.text):
                upper = self.node(child.text[:n], child.sizes[:n], child.owner, node)
                upper.stamps = dict(child.stamps)
                child.text, child.sizes, child.parent = child.text[n:], child.sizes[n:], upper
                upper.children[child.text[0]] = child
                child = upper
            child.stamps.setdefault(tenant, 0)
            node, rest = child, rest[n:]
        node.stamps[tenant] = self.counter
        self.counter += 1

    def match(self, prompt: list[int]) -> tuple[int, int]:
        node, rest = self.root, prompt
        while rest and rest[0] in node.children:
            node = node.children[rest[0]]
            n = self.shared(node.text, rest)
            rest = rest[n:]
            if n < len(node.text):
                break
        stamp = self.counter
        self.counter += 1
        if node is self.root:
            return 0, NO_NODE
        if node.owner not in node.stamps:
            node.owner = min(node.stamps)
        if stamp & 7 == 0:
            node.stamps[node.owner] = stamp
        return len(prompt) - len(rest), node.owner

    def nodes(self) -> list[Node]:
        found = [self.root]
        for node in found:
            found += node.children.values()
        return found[1:]

    def size(self, tenant: int) -> int:
        return sum(sum(node.sizes) for node in self.nodes() if tenant in node.stamps)

    def evict(self, most_tokens: float) -> None:
        for tenant in range(self.num_instances):
            while self.size(tenant) > most_tokens:
                leaves = [
                    (node.stamps[tenant], node.order, node)
                    for node in self.nodes()
                    if tenant in node.stamps
                    and not any(tenant in child.stamps for child in node.children.values())
                ]
                node = min(leaves)[2]
                del node.stamps[tenant]
                if not node.stamps:
                    assert node.parent is not None
                    del node.parent.children[node.text[0]]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, list[int], int, int]]:
    """Operations on prompts over few blocks: (operation, block ids, tokens, tenant or limit)."""
    names: dict[tuple[int, ...], int] = {}
    operations = []
    for _ in range(draw(st.integers(1, 40))):
        letters = draw(st.lists(st.integers(0, 1), max_size=6))
        partial = draw(st.integers(0, BLOCK - 1)) if letters else 0
        chain = [tuple(letters[: k + 1]) for k in range(len(letters))]
        tokens = BLOCK * len(letters)
        if partial:
            chain[-1] = (*chain[-1], -partial)
            tokens += partial - BLOCK
        # Ids from a large range, so that the hash table's order differs from theirs.
        prompt = [names.setdefault(block, 7919 * len(names) ** 3) for block in chain]
        kind = draw(st.sampled_from(["insert", "insert", "insert", "match", "evict"]))
        operations.append((kind, prompt, tokens, draw(st.integers(0, 2))))
    return operations


@given(histories(), st.integers(0, 8 * BLOCK))
def test_equals_a_plain_tree(
    operations: list[tuple[str, list[int], int, int]], most_tokens: int
) -> None:
    tree, plain = OneTree(3), PlainTree(3)
    for kind, prompt, tokens, tenant in operations:
        if kind == "insert":
            tree.insert(prompt, tenant, tokens)
            plain.insert(prompt, tenant, tokens)
        elif kind == "match":
            assert tree.match(prompt) == plain.match(prompt)
        else:
            tree.evict(most_tokens)
            plain.evict(most_tokens)
        assert tree.counter == plain.counter
        assert tree.tokens == [plain.size(tenant) for tenant in range(3)]
        assert tree.history.arrays.trees[0]["num_edges"] == len(plain.nodes())
    for _, prompt, _, _ in operations:
        assert tree.match(prompt) == plain.match(prompt)


@pytest.mark.parametrize("seed", [0, 1])
def test_grows_without_forgetting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree, plain = OneTree(4), PlainTree(4)
    prompts: list[list[int]] = []
    for k in range(1200):
        base = prompts[rng.integers(len(prompts))] if prompts and k % 3 else []
        keep = int(rng.integers(len(base) + 1))
        prompt = base[:keep] + [100 * k + j for j in range(int(rng.integers(1, 12)))]
        prompts.append(prompt)
        tenant = int(rng.integers(4))
        tree.insert(prompt, tenant)
        plain.insert(prompt, tenant, BLOCK * len(prompt))
    assert tree.history.arrays.edges.shape[1] > 1200
    assert [tree.match(p) for p in prompts] == [plain.match(p) for p in prompts]
