"""The table against a dictionary."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixgym.baselines.dynamo.run_tree import (
    NONE,
    insert,
    prefix_blocks,
    run_tree,
    set_number,
    with_room,
)

INSTANCES = 3
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
ACTIONS = st.lists(st.tuples(PATHS, st.integers(0, INSTANCES - 1), st.booleans()), max_size=60)


def ids_of(path: tuple[int, ...]) -> list[int]:
    """An id for each block: the path that leads to it, read as a number."""
    return [int("".join(str(x + 1) for x in path[: k + 1])) for k in range(len(path))]


@settings(max_examples=60, deadline=None)
@given(ACTIONS, st.sampled_from([0, 62, 1000, 1100]))
def test_like_a_dictionary(actions: list[tuple[tuple[int, ...], int, bool]], crowd: int) -> None:
    tree = run_tree(1, INSTANCES)

    def use(ids: list[int], instance: int) -> int:
        """Count a prompt up on an instance; the run that it ends with."""
        nonlocal tree
        tree = with_room(tree, len(ids))
        run = last = insert(tree, 0, np.array(ids))
        while run != NONE:
            set_number(tree, 0, run, instance, int(tree.numbers[0, run, instance]) + 1)
            run = int(tree.runs[0, run]["before"])
        return last

    def give_back(run: int, instance: int) -> None:
        """Count the prompt that ends with the run down again."""
        while run != NONE:
            before = int(tree.runs[0, run]["before"])
            set_number(tree, 0, run, instance, int(tree.numbers[0, run, instance]) - 1)
            run = before

    counts: dict[tuple[int, int], int] = {}
    live: list[tuple[list[int], int, int]] = []
    for number in range(crowd):  # others, so that the table grows while it is in use
        use([10**9 + number], 0)
    for path, instance, up in actions:
        if up or not live:
            ids, change = ids_of(path), 1
            live.append((ids, instance, use(ids, instance)))
        else:
            ids, instance, last = live.pop(len(path) % len(live))
            change = -1
            give_back(last, instance)
        for block_id in ids:
            counts[block_id, instance] = counts.get((block_id, instance), 0) + change
        assert tree.trees["num_blocks"] == crowd + len({b for (b, _), n in counts.items() if n})
        answer = np.empty(INSTANCES, np.int64)
        prompt = np.array(ids_of(path))
        prefix_blocks(tree, 0, prompt, answer)
        for i in range(INSTANCES):
            held = [counts.get((int(b), i), 0) > 0 for b in prompt]
            assert answer[i] == [*held, False].index(False)
