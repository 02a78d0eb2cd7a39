"""Who asked for which prefix, and who holds it, counted by hand."""

import numpy as np

from prefixgym.experiments.explain.popularity import WINDOW, Popularity, copies_by_class


def test_earlier_requests_of_the_last_minute_count() -> None:
    popularity = Popularity()
    assert popularity.ask(0.0, np.array([1, 2, 3])).tolist() == [0, 0, 0]
    assert popularity.ask(1.0, np.array([1, 2, 4])).tolist() == [1, 1, 0]
    assert popularity.ask(WINDOW, np.array([1, 2, 3])).tolist() == [2, 2, 1]
    # The first is too long ago, the other two are not.
    assert popularity.ask(WINDOW + 0.5, np.array([1, 2, 3])).tolist() == [2, 2, 1]
    assert popularity.ask(3 * WINDOW, np.array([1])).tolist() == [0]


def test_the_longest_prefix_of_each_class_is_looked_for() -> None:
    # Blocks asked for 9, 8, 2, 1 and 0 times: classes 3, 3, 1, 0 and none.
    found = copies_by_class(
        np.array([9, 8, 2, 1, 0]),
        np.array([0, 127, 128, 256, 300]),
        prompt_tokens=300,
        block_size=64,
    )
    # Two blocks are 128 tokens, three 192, four 256.
    assert list(found) == [(0, 2), (1, 2), (3, 3)]


def test_a_whole_prompt_is_held_although_its_last_token_never_counts() -> None:
    found = copies_by_class(np.array([4, 4]), np.array([127, 64]), prompt_tokens=128, block_size=64)
    assert list(found) == [(2, 1)]
