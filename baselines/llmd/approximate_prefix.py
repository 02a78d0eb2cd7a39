"""llm-d's approximate prefix index: what the router itself sent where, an LRU for each pod.

Nobody reports back: entries are made and refreshed only when a request is sent. A prompt's blocks
are put in from head to tail, so the LRU drops the head of a prefix first, and with it the use of
the rest. A pod is counted for every block that it has, as long as any pod has it: also when it
lacks an earlier one. An entry counts from the next moment on: the real router adds them while it
sends, so equal prompts that arrive together do not see each other.

Pods that are not there are forgotten, every two minutes.

(Left out: a prompt with more blocks than a pod's LRU holds leaves entries behind in the real index
that nothing removes.)

Source: `routers_sglang_vllm_aibrix_llmd.md` §4.2; read in llm-d-router
`pkg/epp/framework/plugins/requestcontrol/dataproducer/approximateprefix/indexer.go` at 8998b3a5.
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
from prefixgym.envs.view.recency import Recency, contains, drop, recency, touch, with_capacity

_START_CAPACITY = 512


class ApproximatePrefix(NamedTuple):
    """Indexes of E environments with N pods; C blocks fit before they grow."""

    ids: IdTable
    order: Recency  # a list for each pod: its blocks by the last time they were sent
    since: NDArray[np.float64]  # [E, C, N], s: when the pod got the block
    num_pods: NDArray[np.int32]  # [E, C]: pods that have the block
    capacity: NDArray[np.int64]  # [N]: blocks of a pod


def approximate_prefix(num_envs: int, capacity: NDArray[np.int64]) -> ApproximatePrefix:
    """Empty indexes for pods that hold `capacity` blocks, int64 [N]."""
    num_pods = len(capacity)
    return ApproximatePrefix(
        id_table(num_envs, _START_CAPACITY),
        recency(num_envs, _START_CAPACITY, num_pods),
        np.zeros((num_envs, _START_CAPACITY, num_pods)),
        np.zeros((num_envs, _START_CAPACITY), np.int32),
        capacity,
    )


def with_room(index: ApproximatePrefix, num_ids: int) -> ApproximatePrefix:
    """The index itself, or a larger one that takes `num_ids` more blocks everywhere."""
    while index.ids.num_spare.min() < num_ids:
        ids = doubled(index.ids)
        capacity = ids.ids.shape[1]
        index = index._replace(
            ids=ids,
            order=with_capacity(index.order, capacity),
            since=widened(index.since, capacity),
            num_pods=widened(index.num_pods, capacity),
        )
    return index


@kernel
def match_tokens(
    index: ApproximatePrefix,
    e: int,
    prompt: NDArray[np.int64],
    prompt_tokens: int,
    block_size: int,
    now: float,
    matched: NDArray[np.int64],
) -> None:
    """Tokens of the prompt's blocks that each pod was sent before `now`, into `matched` [N]."""
    matched[:] = 0
    for k in range(len(prompt)):
        entry = find(index.ids, e, prompt[k])
        if entry == NONE:
            return
        tokens = min(block_size, prompt_tokens - k * block_size)
        is_held = False
        for pod in range(len(matched)):
            if contains(index.order, e, pod, entry) and index.since[e, entry, pod] < now:
                matched[pod] += tokens
                is_held = True
        if not is_held:
            return


@kernel
def add(index: ApproximatePrefix, e: int, prompt: NDArray[np.int64], pod: int, now: float) -> None:
    """`pod` is sent the prompt. `with_room` has to have made room."""
    for k in range(len(prompt)):
        entry, is_new = find_or_add(index.ids, e, prompt[k])
        if is_new:
            index.num_pods[e, entry] = 0
        if not contains(index.order, e, pod, entry):
            index.num_pods[e, entry] += 1
            index.since[e, entry, pod] = now
        touch(index.order, e, pod, entry)
        if index.order.ends[e, pod]["size"] > index.capacity[pod]:
            _drop_oldest(index, e, pod)


@kernel
def forget(index: ApproximatePrefix, e: int, pod: int) -> None:
    """All that the pod was sent."""
    while index.order.ends[e, pod]["size"] > 0:
        _drop_oldest(index, e, pod)


@kernel
def _drop_oldest(index: ApproximatePrefix, e: int, pod: int) -> None:
    oldest = index.order.ends[e, pod]["oldest"]
    drop(index.order, e, pod, oldest)
    index.num_pods[e, oldest] -= 1
    if index.num_pods[e, oldest] == 0:
        remove(index.ids, e, oldest)
