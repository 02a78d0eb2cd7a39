"""Dynamo's KV router without KV events: it believes its own decisions for a while.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §2.8; read in ai-dynamo/dynamo
`lib/kv-router/src/indexer/pruning.rs` at 18bcdc90, checked with ai-dynamo-runtime 1.6.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.dynamo.kv_router import Dynamo
from prefixgym.baselines.dynamo.run_tree import (
    NONE,
    RunTree,
    insert,
    prefix_blocks,
    run_tree,
    set_number,
    split,
    with_room,
)
from prefixgym.baselines.full_blocks import full_blocks
from prefixgym.baselines.router import NOWHERE, register
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View

_DECISION = np.dtype(
    [
        ("time", np.float64),  # s
        ("last", np.int32),  # run that ends with the prompt's last block that is still in the index
        ("worker", np.int32),  # the instance
    ],
    align=True,
)
_START_DECISIONS = 256


@register
@dataclass
class DynamoApproximate(Dynamo):
    """`dynamo` with `--no-kv-events`: overlap comes from its own decisions of the last two minutes.

    Every decision puts the prompt's full blocks into the index under the chosen instance, for
    router_ttl_secs from now; blocks that are there already start anew. When the index holds more
    than router_max_tree_size blocks, those that would expire first go, of one decision the last
    block first, until that times router_prune_target_ratio are left. What the engines evict, or
    cache for the first time during decoding, is not seen. An instance that is not there any more
    loses all its blocks (`remove_worker` of Dynamo's indexers).

    Attributes:
        router_ttl_secs: seconds.
        router_max_tree_size: blocks of the cluster; one on two instances counts twice.
        router_prune_target_ratio: share that is kept, above 0 to 1.
    """

    name = "dynamo_approximate"
    source = "NVIDIA Dynamo 1.6.1, KV router without KV events (§2.8)"
    knows = ("history", "ledger", "telemetry")

    router_ttl_secs: float = 120.0
    router_max_tree_size: int = 2**20
    router_prune_target_ratio: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("router_ttl_secs", 0 < self.router_ttl_secs < math.inf, "above 0 and finite")
        self.require("router_max_tree_size", self.router_max_tree_size >= 0, "at least 0")
        share = self.router_prune_target_ratio
        self.require("router_prune_target_ratio", 0 < share <= 1, "above 0 to 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing in flight, an empty index."""
        super().reset(cluster, seeds)
        # The number of a run on an instance is that of the latest decision that sent it there.
        self._index = run_tree(len(seeds), len(cluster.instances))
        self._sizes = np.zeros(len(seeds), np.int64)
        # Whether an instance may have blocks in the index.
        self._has_blocks = np.zeros((len(seeds), len(cluster.instances)), np.bool_)
        # A ring buffer: decisions `_first` to `_next`, the latter left out, have blocks left.
        self._decisions = np.empty((len(seeds), _START_DECISIONS), _DECISION)
        self._first = np.ones(len(seeds), np.int64)
        self._next = np.ones(len(seeds), np.int64)

    def hear(self, view: View) -> None:
        """What has come back, who is gone, and what has expired."""
        super().hear(view)
        _forget_absent(view.instances, self._has_blocks, self._sizes, self._index)
        _expire(
            view.requests,
            self.router_ttl_secs,
            self._decisions,
            self._first,
            self._next,
            self._sizes,
            self._index,
        )

    def _find_overlap(self, view: View) -> None:
        _overlap(view.requests, view.block_ids, self._block_size, self._index, self._overlap_blocks)

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Book the requests, and believe that their prompts are cached."""
        super().commit(view, chosen)
        self.overhear(view.requests, view.block_ids, chosen)

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Believe that their prompts are cached as well."""
        self._index = with_room(self._index, block_ids.shape[1])
        if (self._next - self._first).max() == self._decisions.shape[1]:
            # A decision is at its number modulo the capacity; doubled, it is there, too.
            self._decisions = np.hstack([self._decisions, self._decisions])
        _insert(
            requests,
            block_ids,
            chosen,
            self._block_size,
            self.router_max_tree_size,
            math.floor(self.router_max_tree_size * self.router_prune_target_ratio),
            self._decisions,
            self._first,
            self._next,
            self._sizes,
            self._has_blocks,
            self._index,
        )


@kernel
def _forget_absent(
    instances: NDArray[np.void],
    has_blocks: NDArray[np.bool_],
    sizes: NDArray[np.int64],
    index: RunTree,
) -> None:
    for e in range(instances.shape[0]):
        for i in range(instances.shape[1]):
            if not has_blocks[e, i] or instances[e, i]["available"] != 0:
                continue
            has_blocks[e, i] = False
            for run in range(index.runs.shape[1]):
                num_blocks = index.runs[e, run]["num_blocks"]
                if num_blocks > 0 and index.numbers[e, run, i] != 0:
                    sizes[e] -= num_blocks
                    set_number(index, e, run, i, 0)


@kernel
def _overlap(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    block_size: int,
    index: RunTree,
    overlap_blocks: NDArray[np.int64],
) -> None:
    for e in range(len(overlap_blocks)):
        full = full_blocks(requests[e], block_size)
        prefix_blocks(index, e, block_ids[e, :full], overlap_blocks[e])


@kernel
def _drop_oldest(
    e: int,
    most_blocks: int,
    decisions: NDArray[np.void],
    first: NDArray[np.int64],
    sizes: NDArray[np.int64],
    index: RunTree,
) -> None:
    """Take out the blocks of the oldest decision that no later one has renewed, the last first.

    Stops early when the index has no more than `most_blocks`.
    """
    oldest = decisions[e, first[e] % decisions.shape[1]]
    run, i = oldest["last"], oldest["worker"]
    # What is before a run that was renewed was renewed with it.
    while run != NONE and index.numbers[e, run, i] == first[e]:
        if sizes[e] <= most_blocks:
            oldest["last"] = run
            return
        before, num_blocks = index.runs[e, run]["before"], index.runs[e, run]["num_blocks"]
        if sizes[e] - num_blocks < most_blocks:  # only its last blocks have to go
            kept = most_blocks - (sizes[e] - num_blocks)
            before = split(index, e, run, kept)
            num_blocks -= kept
        set_number(index, e, run, i, 0)
        sizes[e] -= num_blocks
        run = before
    first[e] += 1


@kernel
def _expire(
    requests: NDArray[np.void],
    ttl: float,
    decisions: NDArray[np.void],
    first: NDArray[np.int64],
    after_last: NDArray[np.int64],
    sizes: NDArray[np.int64],
    index: RunTree,
) -> None:
    for e in range(len(requests)):
        now = requests[e]["time"]
        while first[e] < after_last[e]:
            if decisions[e, first[e] % decisions.shape[1]]["time"] + ttl > now:
                break
            _drop_oldest(e, 0, decisions, first, sizes, index)


@kernel
def _insert(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    chosen: NDArray[np.int64],
    block_size: int,
    max_tree_size: int,
    target_size: int,
    decisions: NDArray[np.void],
    first: NDArray[np.int64],
    after_last: NDArray[np.int64],
    sizes: NDArray[np.int64],
    has_blocks: NDArray[np.bool_],
    index: RunTree,
) -> None:
    for e in range(len(chosen)):
        i, full = chosen[e], full_blocks(requests[e], block_size)
        if i == index.numbers.shape[2] or i == NOWHERE or full == 0:
            continue
        number = after_last[e]
        run = insert(index, e, block_ids[e, :full])
        decision = decisions[e, number % decisions.shape[1]]
        decision["time"] = requests[e]["time"]
        decision["last"] = run
        decision["worker"] = i
        after_last[e] += 1
        has_blocks[e, i] = True
        while run != NONE:
            if index.numbers[e, run, i] == 0:
                sizes[e] += index.runs[e, run]["num_blocks"]
            set_number(index, e, run, i, number)
            run = index.runs[e, run]["before"]
        if sizes[e] > max_tree_size:
            while sizes[e] > target_size:
                _drop_oldest(e, target_size, decisions, first, sizes, index)
