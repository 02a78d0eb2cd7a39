"""The table of block ids and the orders of last use, held against plain dictionaries and lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prefixgym.envs.memory import widened
from prefixgym.envs.view.id_table import (
    NONE,
    doubled,
    find,
    find_or_add,
    id_table,
    remove,
)
from prefixgym.envs.view.recency import (
    NOBODY,
    Recency,
    contains,
    drop,
    put_after,
    recency,
    touch,
    with_capacity,
)

IDS = st.integers(-3, 40)


@given(st.lists(st.tuples(st.booleans(), IDS), max_size=120))
def test_id_table_is_a_dictionary(steps: list[tuple[bool, int]]) -> None:
    table, known = id_table(2, 4), dict[int, int]()
    find_or_add(table, 1, 7)  # the environment beside it
    for add, block_id in steps:
        if table.num_spare[0] == 0:
            table = doubled(table)
        if add:
            entry, is_new = find_or_add(table, 0, block_id)
            assert is_new == (block_id not in known)
            assert known.setdefault(block_id, entry) == entry
        elif block_id in known:
            remove(table, 0, known.pop(block_id))
        assert len(set(known.values())) == len(known)
        for other in range(-3, 41):
            assert find(table, 0, other) == known.get(other, NONE)
        assert table.num_spare[0] == table.ids.shape[1] - len(known)
    assert find(table, 1, 7) == 0
    assert table.num_spare[1] == table.ids.shape[1] - 1


def order(lists: Recency, e: int, t: int) -> list[int]:
    """A list from its oldest to its newest entry, read in both directions."""
    entries, entry = [], int(lists.ends[e, t]["oldest"])
    while entry != NOBODY:
        entries.append(entry)
        entry = int(lists.links[e, entry, t]["newer"])
    back, entry = [], int(lists.ends[e, t]["newest"])
    while entry != NOBODY:
        back.append(entry)
        entry = int(lists.links[e, entry, t]["older"])
    assert back == entries[::-1]
    assert lists.ends[e, t]["size"] == len(entries)
    return entries


@given(st.lists(st.tuples(st.sampled_from("tdp"), st.integers(0, 5), st.integers(0, 1))))
def test_recency_is_an_order_of_last_use(steps: list[tuple[str, int, int]]) -> None:
    lists = recency(1, 6, 2)
    expected: list[list[int]] = [[], []]
    for step, entry, t in steps:
        if step == "t":
            touch(lists, 0, t, entry)
            expected[t] = [other for other in expected[t] if other != entry] + [entry]
        elif step == "d" and entry in expected[t]:
            drop(lists, 0, t, entry)
            expected[t].remove(entry)
        elif step == "p" and expected[t] and entry not in expected[t]:
            put_after(lists, 0, t, entry, expected[t][0])
            expected[t].insert(1, entry)
        for u in range(2):
            assert order(lists, 0, u) == expected[u]
            assert [contains(lists, 0, u, k) for k in range(6)] == [
                k in expected[u] for k in range(6)
            ]
    larger = with_capacity(lists, 9)
    assert [order(larger, 0, u) for u in range(2)] == expected
    assert not np.any([contains(larger, 0, 0, k) for k in range(6, 9)])


def test_what_belongs_to_entries_grows_with_them() -> None:
    rows = np.arange(12).reshape(2, 2, 3)
    larger = widened(rows, 4)
    assert larger.shape == (2, 4, 3)
    assert (larger[:, :2] == rows).all()
    assert not larger[:, 2:].any()
