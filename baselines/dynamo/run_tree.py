"""Numbers kept for each (block, instance): what bookings and approximate indexes are made of.

A radix tree over block ids whose edges ("runs") are blocks that all prompts so far share. A run has
a number for each instance, 0 where the instance has nothing to do with it. A run is found by its
first id, as an id stands for its block and everything before it, so a prompt costs a lookup a run,
not a block. The index of a run stays the same until it is removed; a split gives the old index to
the lower half, so what ended with a run still does.

Whoever uses the tree keeps prefixes whole: where a number is not 0, those of the runs before it on
the same instance are not 0 either.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import mix64

NONE = -1

RUN = np.dtype(
    [
        ("first", np.int64),  # place of its first id in `RunTree.ids`
        ("num_blocks", np.int32),  # 0 if the run is not in use
        ("before", np.int32),  # the run before it, NONE at a prompt's beginning
        ("holders", np.int32),  # instances that have a number other than 0
    ],
    align=True,
)

TREE = np.dtype(
    [
        ("num_runs", np.int64),
        ("num_blocks", np.int64),  # in these runs
        ("end", np.int64),  # of the used part of `RunTree.ids`, which has gaps
    ],
    align=True,
)


class RunTree(NamedTuple):
    """Trees of E environments with N instances, and room for C runs and P blocks in each."""

    trees: NDArray[np.void]  # TREE [E]
    runs: NDArray[np.void]  # RUN [E, C]
    numbers: NDArray[np.int32]  # [E, C, N]; write with `set_number`
    ids: NDArray[np.int64]  # [E, P]
    slots: NDArray[np.int32]  # [E, 2 C]: hash table from a run's first id to the run
    spare: NDArray[np.int32]  # [E, C]: a stack of C - num_runs runs that are not in use


def run_tree(num_envs: int, num_instances: int) -> RunTree:
    """Empty trees."""
    num_runs, num_blocks = 64, 1024
    return RunTree(
        np.zeros(num_envs, TREE),
        np.zeros((num_envs, num_runs), RUN),
        np.empty((num_envs, num_runs, num_instances), np.int32),
        np.empty((num_envs, num_blocks), np.int64),
        np.full((num_envs, 2 * num_runs), NONE, np.int32),
        np.tile(np.arange(num_runs - 1, -1, -1, dtype=np.int32), (num_envs, 1)),
    )


def with_room(tree: RunTree, num_ids: int) -> RunTree:
    """The tree itself, or one with the same runs and room to insert `num_ids` ids everywhere."""
    capacity = tree.runs.shape[1]
    if capacity - tree.trees["num_runs"].max() < 3:  # a new run and two splits
        runs = np.hstack([tree.runs, np.zeros_like(tree.runs)])
        numbers = np.hstack([tree.numbers, tree.numbers])  # what the new half holds does not matter
        slots = np.empty((len(runs), 4 * capacity), np.int32)
        spare = np.empty((len(runs), 2 * capacity), np.int32)
        tree = RunTree(tree.trees, runs, numbers, tree.ids, slots, spare)
        _index(tree)
    places = tree.ids.shape[1]
    if places - tree.trees["end"].max() < num_ids:
        while places - tree.trees["num_blocks"].max() < max(num_ids, places // 4):
            places *= 2
        ids = np.empty((len(tree.ids), places), np.int64)
        _gather(tree, ids)
        tree = tree._replace(ids=ids)
    return tree


@kernel
def _index(tree: RunTree) -> None:
    """Fill `slots` and `spare` anew."""
    capacity = tree.runs.shape[1]
    for e in range(len(tree.trees)):
        for slot in range(2 * capacity):
            tree.slots[e, slot] = NONE
        num_spare = 0
        for run in range(capacity - 1, -1, -1):
            if tree.runs[e, run]["num_blocks"] == 0:
                tree.spare[e, num_spare] = run
                num_spare += 1
            else:
                tree.slots[e, _slot(tree, e, tree.ids[e, tree.runs[e, run]["first"]])] = run


@kernel
def _gather(tree: RunTree, ids: NDArray[np.int64]) -> None:
    """Copy the ids in use to `ids`, without gaps."""
    for e in range(len(tree.trees)):
        end = 0
        for r in range(tree.runs.shape[1]):
            run = tree.runs[e, r]
            first = run["first"]
            for k in range(run["num_blocks"]):
                ids[e, end + k] = tree.ids[e, first + k]
            run["first"] = end
            end += run["num_blocks"]
        tree.trees[e]["end"] = end


@kernel
def _slot(tree: RunTree, e: int, first_id: int) -> int:
    """Where the run that begins with `first_id` is, or would be, in the hash table."""
    mask = tree.slots.shape[1] - 1
    slot = int(np.int64(mix64(np.uint64(first_id)) & np.uint64(mask)))
    while True:
        run = tree.slots[e, slot]
        if run == NONE or tree.ids[e, tree.runs[e, run]["first"]] == first_id:
            return slot
        slot = (slot + 1) & mask


@kernel
def _shared(tree: RunTree, e: int, run: int, prompt: NDArray[np.int64], depth: int) -> int:
    """How many leading blocks of the run the prompt has from `depth` on."""
    first = tree.runs[e, run]["first"]
    most = min(tree.runs[e, run]["num_blocks"], len(prompt) - depth)
    shared = 1  # the first id is how the run was found
    while shared < most and tree.ids[e, first + shared] == prompt[depth + shared]:
        shared += 1
    return shared


@kernel
def prefix_blocks(
    tree: RunTree, e: int, prompt: NDArray[np.int64], blocks: NDArray[np.int64]
) -> None:
    """Write for each instance how many leading blocks of `prompt` have a number there, [N]."""
    blocks[:] = 0
    depth = 0
    while depth < len(prompt):
        run = tree.slots[e, _slot(tree, e, prompt[depth])]
        if run == NONE:
            break
        shared = _shared(tree, e, run, prompt, depth)
        depth += shared
        for i in range(len(blocks)):
            if tree.numbers[e, run, i] != 0:
                blocks[i] = depth
        if shared < tree.runs[e, run]["num_blocks"]:
            break


@kernel
def insert(tree: RunTree, e: int, prompt: NDArray[np.int64]) -> int:
    """The run that ends with the prompt's last block, NONE if it has none.

    `with_room` has to have made room. A new run has no numbers; it has to get one.
    """
    last, depth = NONE, 0
    while depth < len(prompt):
        slot = _slot(tree, e, prompt[depth])
        run = tree.slots[e, slot]
        if run == NONE:
            run = _new_run(tree, e, tree.trees[e]["end"], len(prompt) - depth, last)
            for k in range(len(prompt) - depth):
                tree.ids[e, tree.trees[e]["end"] + k] = prompt[depth + k]
            tree.trees[e]["end"] += len(prompt) - depth
            tree.trees[e]["num_blocks"] += len(prompt) - depth
            tree.slots[e, slot] = run
            return run
        shared = _shared(tree, e, run, prompt, depth)
        if shared < tree.runs[e, run]["num_blocks"]:
            run = split(tree, e, run, shared)
        last = run
        depth += shared
    return last


@kernel
def _new_run(tree: RunTree, e: int, first: int, num_blocks: int, before: int) -> int:
    index = int(tree.spare[e, tree.runs.shape[1] - tree.trees[e]["num_runs"] - 1])
    tree.trees[e]["num_runs"] += 1
    run = tree.runs[e, index]
    run["first"] = first
    run["num_blocks"] = num_blocks
    run["before"] = before
    run["holders"] = 0
    for i in range(tree.numbers.shape[2]):
        tree.numbers[e, index, i] = 0
    return index


@kernel
def split(tree: RunTree, e: int, run: int, num_blocks: int) -> int:
    """Give the first `num_blocks` blocks of a run, not all, a run of their own, and return that."""
    lower = tree.runs[e, run]
    slot = _slot(tree, e, tree.ids[e, lower["first"]])
    upper = _new_run(tree, e, lower["first"], num_blocks, lower["before"])
    tree.runs[e, upper]["holders"] = lower["holders"]
    for i in range(tree.numbers.shape[2]):
        tree.numbers[e, upper, i] = tree.numbers[e, run, i]
    lower["first"] += num_blocks
    lower["num_blocks"] -= num_blocks
    lower["before"] = upper
    tree.slots[e, slot] = upper
    tree.slots[e, _slot(tree, e, tree.ids[e, lower["first"]])] = run
    return upper


@kernel
def set_number(tree: RunTree, e: int, run: int, i: int, number: int) -> None:
    """Give instance i its number for a run; a run without numbers is removed."""
    row = tree.runs[e, run]
    if tree.numbers[e, run, i] == 0:
        row["holders"] += 1
    tree.numbers[e, run, i] = number
    if number == 0:
        row["holders"] -= 1
        if row["holders"] == 0:
            _remove(tree, e, run)


@kernel
def _remove(tree: RunTree, e: int, index: int) -> None:
    run = tree.runs[e, index]
    mask = tree.slots.shape[1] - 1
    gap = _slot(tree, e, tree.ids[e, run["first"]])
    slot = gap
    while True:  # linear probing: whoever was pushed past the gap moves back into it
        slot = (slot + 1) & mask
        other = tree.slots[e, slot]
        if other == NONE:
            break
        first_id = tree.ids[e, tree.runs[e, other]["first"]]
        home = int(np.int64(mix64(np.uint64(first_id)) & np.uint64(mask)))
        if ((slot - home) & mask) >= ((slot - gap) & mask):
            tree.slots[e, gap] = other
            gap = slot
    tree.slots[e, gap] = NONE
    tree.trees[e]["num_runs"] -= 1
    tree.trees[e]["num_blocks"] -= run["num_blocks"]
    run["num_blocks"] = 0
    tree.spare[e, tree.runs.shape[1] - tree.trees[e]["num_runs"] - 1] = index
