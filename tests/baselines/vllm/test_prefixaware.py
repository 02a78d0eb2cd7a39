"""The production stack's prefixaware, worked by hand, and against its rule on a plain trie."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from made_views import BLOCK, decide, one_view, router_for

from prefixgym.baselines.choosing import draw
from prefixgym.baselines.router import Router, router_keys

Path = tuple[int, ...]


def ids_of(path: Path) -> list[int]:
    """A block's id is the path that leads to it, read as a number."""
    return np.cumsum([(letter + 1) * 10**k for k, letter in enumerate(path)]).tolist()


def ask(router: Router, path: Path, index: int = 0, **more: Any) -> int:
    return decide(router, one_view(4, ids_of(path), {"index": index, "time": index}, **more))


def test_the_first_owner_of_a_prefix_keeps_all_that_share_it() -> None:
    router = router_for(4, "prefixaware")
    owner = ask(router, (0, 0))
    assert {ask(router, (0, k), index=k) for k in range(1, 9)} == {owner}
    # Load is not looked at.
    assert ask(router, (0, 9), index=9, requests=[99 * (i == owner) for i in range(4)]) == owner


def test_a_miss_is_drawn_among_the_available() -> None:
    router = router_for(4, "prefixaware")
    (key,) = router_keys([0])
    up = [1, 0, 1, 1]
    expected = [[0, 2, 3][draw(key, k, 3)] for k in range(9)]
    assert [ask(router, (k,), index=k, available=up) for k in range(9)] == expected


def test_others_join_only_while_no_owner_is_available() -> None:
    router = router_for(4, "prefixaware")
    owner = ask(router, (0, 0))
    down = [int(i != owner) for i in range(4)]
    second = ask(router, (0, 0, 0), index=1, available=down)
    assert second != owner
    # Now both have blocks (0,) and (0, 0), only the second one has (0, 0, 0).
    both = {ask(router, (0, 0), index=k) for k in range(2, 30)}
    assert both == {owner, second}
    assert {ask(router, (0, 0, 0), index=k) for k in range(30, 40)} == {second}
    # Without the second one the longest match is the shorter prefix, and that is the owner's.
    down = [int(i != second) for i in range(4)]
    assert {ask(router, (0, 0, 0), index=k, available=down) for k in range(40, 45)} == {owner}


def test_a_short_match_goes_to_the_lowest_arrival_rate_and_is_remembered() -> None:
    # A block stands for 4 · 512 characters; two of them are asked for.
    router = router_for(4, "prefixaware", prefix_min_match_length=2 * 4 * BLOCK)
    assert ask(router, (0, 0)) == 0  # no match: the first that never had a request
    assert ask(router, (0, 1), index=1) == 1  # one block matches
    assert ask(router, (1, 1), index=2) == 2
    assert ask(router, (0, 0, 1), index=3) == 0  # two blocks match: its owner
    assert ask(router, (0, 1, 1), index=4) == 1  # remembered in the fallback as well
    assert ask(router, (2, 2), index=5) == 3
    # Arrivals of the last 60 s: 2 2 1 1.
    assert ask(router, (3, 3), index=6) == 2


class Trie:
    """The rule on a dictionary: prefix to those who were sent it."""

    def __init__(self) -> None:
        self.sent: dict[Path, set[int]] = {}

    def longest(self, path: Path, up: set[int]) -> set[int]:
        selected = up
        for k in range(len(path)):
            here = self.sent.get(path[: k + 1], set()) & selected
            if not here:
                break
            selected = here
        return selected

    def insert(self, path: Path, instance: int) -> None:
        for k in range(len(path)):
            self.sent.setdefault(path[: k + 1], set()).add(instance)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=0, max_size=5),
            st.sets(st.integers(0, 3), min_size=1),
        ),
        min_size=1,
        max_size=60,
    )
)
def test_equals_a_plain_trie(steps: list[tuple[list[int], set[int]]]) -> None:
    router, trie = router_for(4, "prefixaware"), Trie()
    (key,) = router_keys([0])
    for index, (letters, up) in enumerate(steps):
        path = tuple(letters)
        allowed = sorted(trie.longest(path, up))
        chosen = ask(router, path, index, available=[int(i in up) for i in range(4)])
        assert chosen == allowed[draw(key, index, len(allowed))]
        trie.insert(path, chosen)
