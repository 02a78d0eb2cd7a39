"""What Dynamo's router has in flight: unique blocks, prompt tokens in prefill, requests.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §2.4; read in ai-dynamo/dynamo
`lib/kv-router/src/sequences` and checked with ai-dynamo-runtime 1.6.1.

A request is booked at its selection and freed when it ends: finished, failed or cancelled. Until
its first token it counts with the prompt tokens that were not cached when it was booked, at full
value; a first token that is never seen counts as seen at the end. Its full blocks count from
booking to end, so in the prefill phase too; blocks that live requests of one worker share count
once. A partial last block is not tracked. A booking whose end is never told (dynamo#10331, here
`clients.leak`) stays; the real tracker drops it after 3600 s in one version, 5 minutes in the docs.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.dynamo.run_tree import (
    NONE,
    RunTree,
    insert,
    prefix_blocks,
    run_tree,
    set_number,
    with_room,
)
from prefixgym.baselines.full_blocks import full_blocks
from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.view.view import ENDED, FIRST_TOKEN, View

WORKER = np.dtype(
    [
        ("prefill_tokens", np.int64),  # booked for requests without a first token
        ("blocks", np.int64),  # different full blocks of the requests in flight
        ("requests", np.int64),  # in flight
    ],
    align=True,
)
"""Load of an instance."""

_BOOKING = np.dtype(
    [
        ("worker", np.int32),  # the instance
        ("last", np.int32),  # run that ends with the last full block, NONE without one
        ("prefill_tokens", np.int64),  # what still counts as prefill
    ],
    align=True,
)


class ActiveSequences:
    """Bookings of E environments with N instances.

    Attributes:
        workers: WORKER records, shape [E, N].
    """

    def __init__(self, num_envs: int, num_instances: int, block_size: int) -> None:
        self.workers = np.zeros((num_envs, num_instances), WORKER)
        self._block_size = block_size
        # The numbers say how many live requests have a run on an instance.
        self._tree = run_tree(num_envs, num_instances)
        self._bookings = np.empty((num_envs, 0), _BOOKING)

    def hear(self, view: View) -> None:
        """Take in first tokens and ends."""
        _hear(view.events, view.num_events, self._bookings, self.workers, self._tree)

    def book(
        self, view: View, chosen: NDArray[np.int64], prefill_tokens: NDArray[np.int64]
    ) -> None:
        """Book the current requests.

        Args:
            view: the decision.
            chosen: instance of each request, [E]; N (rejected) is not booked.
            prefill_tokens: prompt tokens that have to be computed, [E].
        """
        if self._bookings.shape[1] < view.num_slots:
            self._bookings = widened(self._bookings, view.num_slots)
        self._tree = with_room(self._tree, view.block_ids.shape[1])
        _book(
            view.requests,
            view.block_ids,
            chosen,
            prefill_tokens,
            self._block_size,
            self._bookings,
            self.workers,
            self._tree,
        )

    def potential_blocks(self, view: View, blocks: NDArray[np.int64]) -> None:
        """Write the unique blocks that each instance has with the current request, [E, N]."""
        _potential_blocks(
            view.requests, view.block_ids, self._block_size, self.workers, self._tree, blocks
        )


@kernel
def _hear(
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    bookings: NDArray[np.void],
    workers: NDArray[np.void],
    tree: RunTree,
) -> None:
    for e in range(len(num_events)):
        for k in range(num_events[e]):
            event = events[e, k]
            if event["kind"] < FIRST_TOKEN:
                continue
            booking = bookings[e, event["slot"]]
            i = booking["worker"]
            worker = workers[e, i]
            worker["prefill_tokens"] -= booking["prefill_tokens"]
            booking["prefill_tokens"] = 0
            if event["kind"] >= ENDED:
                worker["requests"] -= 1
                run = booking["last"]
                while run != NONE:
                    before, num_blocks = (
                        tree.runs[e, run]["before"],
                        tree.runs[e, run]["num_blocks"],
                    )
                    left = tree.numbers[e, run, i] - 1
                    if left == 0:
                        worker["blocks"] -= num_blocks
                    set_number(tree, e, run, i, left)
                    run = before


@kernel
def _book(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    chosen: NDArray[np.int64],
    prefill_tokens: NDArray[np.int64],
    block_size: int,
    bookings: NDArray[np.void],
    workers: NDArray[np.void],
    tree: RunTree,
) -> None:
    for e in range(len(chosen)):
        i = chosen[e]
        if i == workers.shape[1]:
            continue
        request, worker = requests[e], workers[e, i]
        worker["prefill_tokens"] += prefill_tokens[e]
        worker["requests"] += 1
        run = insert(tree, e, block_ids[e, : full_blocks(request, block_size)])
        booking = bookings[e, request["slot"]]
        booking["worker"] = i
        booking["last"] = run
        booking["prefill_tokens"] = prefill_tokens[e]
        while run != NONE:
            live = tree.numbers[e, run, i]
            if live == 0:
                worker["blocks"] += tree.runs[e, run]["num_blocks"]
            set_number(tree, e, run, i, live + 1)
            run = tree.runs[e, run]["before"]


@kernel
def _potential_blocks(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    block_size: int,
    workers: NDArray[np.void],
    tree: RunTree,
    blocks: NDArray[np.int64],
) -> None:
    for e in range(len(blocks)):
        request = requests[e]
        full = full_blocks(request, block_size)
        prefix_blocks(tree, e, block_ids[e, :full], blocks[e])
        for i in range(blocks.shape[1]):
            blocks[e, i] = workers[e, i]["blocks"] + full - blocks[e, i]
