"""AIBrix's block table: which pods were sent which blocks, for all pods in one LRU.

The gateway hashes a prompt's text in chained blocks of `block_size` characters and remembers for
each block the pods that got it. The table holds `block_number` blocks in all; those of a prompt are
put in from head to tail, so its head is the first to go. A block that was not put in for
`ttl` seconds is dropped by a sweep each second. Looking up refreshes nothing.

Here an entry is one block of the simulator, which stands for many of the gateway's: shares are
counted in the gateway's blocks, the table holds as many tokens as the real one
(block_number · block_size / chars_per_token, at least one block), and text matches by whole blocks
of the simulator. A prompt shorter than one of the gateway's blocks is not remembered.

Source: `routers_sglang_vllm_aibrix_llmd.md` §3.7; read in aibrix
`pkg/utils/prefixcacheindexer/hash.go` at 0871c212.
"""

import math
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
from prefixgym.envs.view.recency import NOBODY, Recency, drop, recency, touch, with_capacity

NO_MATCH = -1
_SWEEP_INTERVAL = 1.0  # s
_START_CAPACITY = 256


class PrefixTable(NamedTuple):
    """Tables of E environments with N pods; C blocks fit before they grow."""

    ids: IdTable
    order: Recency  # one list: by the last time the block was put in
    put_at: NDArray[np.float64]  # [E, C], s
    pods: NDArray[np.bool_]  # [E, C, N]: who was sent the block


class TableSize(NamedTuple):
    """How the table and the prompts are measured."""

    capacity: int  # blocks of the simulator
    ttl: float  # s
    block_tokens: int  # tokens in a block of the simulator
    hashed_tokens: float  # tokens in a block of the gateway


def prefix_table(num_envs: int, num_pods: int) -> PrefixTable:
    """Empty tables."""
    return PrefixTable(
        id_table(num_envs, _START_CAPACITY),
        recency(num_envs, _START_CAPACITY, 1),
        np.zeros((num_envs, _START_CAPACITY)),
        np.zeros((num_envs, _START_CAPACITY, num_pods), np.bool_),
    )


def table_size(
    block_number: int, block_size: int, ttl_minutes: float, chars_per_token: float, tokens: int
) -> TableSize:
    """The table's size in blocks of `tokens` tokens; the rest are the gateway's settings."""
    hashed_tokens = block_size / chars_per_token
    capacity = max(1, math.floor(block_number * hashed_tokens / tokens))
    return TableSize(capacity, 60 * ttl_minutes, tokens, hashed_tokens)


def with_room(table: PrefixTable, num_ids: int, size: TableSize) -> PrefixTable:
    """The table itself, or a larger one into which prompts of `num_ids` ids can be put."""
    # Above its size a table needs no more: it drops a block for every one that it takes.
    while table.ids.num_spare.min() < num_ids and table.ids.ids.shape[1] <= size.capacity:
        ids = doubled(table.ids)
        capacity = ids.ids.shape[1]
        table = PrefixTable(
            ids,
            with_capacity(table.order, capacity),
            widened(table.put_at, capacity),
            widened(table.pods, capacity),
        )
    return table


@kernel
def hashed_blocks(size: TableSize, prompt_tokens: int) -> int:
    """Whole blocks of the gateway in so many tokens."""
    return math.floor(prompt_tokens / size.hashed_tokens)


@kernel
def match_percent(
    table: PrefixTable,
    size: TableSize,
    e: int,
    prompt: NDArray[np.int64],
    prompt_tokens: int,
    ready: NDArray[np.bool_],
    percent: NDArray[np.int64],
) -> None:
    """How much of the prompt each ready pod was sent: a pod stays while it has every block.

        percent[pod] = floor(100 · blocks matched / blocks of the prompt), or NO_MATCH

    Args:
        table: the tables.
        size: their size.
        e: the environment.
        prompt: block ids.
        prompt_tokens: tokens of the prompt.
        ready: the pods to look for, bool [N]; afterwards those that were sent all of it.
        percent: the result, int64 [N].
    """
    percent[:] = NO_MATCH
    total = hashed_blocks(size, prompt_tokens)
    if total == 0:
        return
    for k in range(len(prompt)):
        entry = find(table.ids, e, prompt[k])
        if entry == NONE:
            return
        tokens = min((k + 1) * size.block_tokens, prompt_tokens)
        share = hashed_blocks(size, tokens) * 100 // total
        is_held = False
        for pod in range(len(ready)):
            ready[pod] = ready[pod] and table.pods[e, entry, pod]
            if ready[pod]:
                percent[pod] = share
                is_held = True
        if not is_held:
            return


@kernel
def sweep(table: PrefixTable, size: TableSize, e: int, now: float) -> None:
    """Drop the blocks that the sweep of the last whole second found too old."""
    last_sweep = math.floor(now / _SWEEP_INTERVAL) * _SWEEP_INTERVAL
    oldest = table.order.ends[e, 0]["oldest"]
    while oldest != NOBODY and last_sweep - table.put_at[e, oldest] > size.ttl:
        _forget(table, e, oldest)
        oldest = table.order.ends[e, 0]["oldest"]


@kernel
def put(
    table: PrefixTable,
    size: TableSize,
    e: int,
    prompt: NDArray[np.int64],
    prompt_tokens: int,
    pod: int,
    now: float,
) -> None:
    """Remember that `pod` was sent the prompt. `with_room` has to have made room."""
    if hashed_blocks(size, prompt_tokens) == 0:
        return
    for k in range(len(prompt)):
        entry, is_new = find_or_add(table.ids, e, prompt[k])
        if is_new:
            table.pods[e, entry, :] = False
        table.pods[e, entry, pod] = True
        table.put_at[e, entry] = now
        touch(table.order, e, 0, entry)
        if table.order.ends[e, 0]["size"] > size.capacity:
            _forget(table, e, table.order.ends[e, 0]["oldest"])


@kernel
def _forget(table: PrefixTable, e: int, entry: int) -> None:
    drop(table.order, e, 0, entry)
    remove(table.ids, e, entry)
