"""The view's state: what routers know, in arrays with leading axes [router, instance].

A *router* here is one replica in one environment: that of environment e and replica r has row
e·R + r. What is shown at a decision is the row of the replica that the request has reached. With
one replica the two are the same memory.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from prefixgym.envs.clock import to_ticks
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened, zeros_together
from prefixgym.envs.rng import stream_key
from prefixgym.envs.view.index import arrays as index_arrays
from prefixgym.envs.view.index.arrays import IndexArrays
from prefixgym.envs.view.knowledge import Knowledge
from prefixgym.envs.view.view import (
    EVENT_VIEW,
    HOLD,
    INSTANCE_VIEW,
    MOST_BATCHES,
    REQUEST_VIEW,
    View,
)

BOOKING = np.dtype(
    [
        ("ticks", np.int64),
        ("routed", np.int64),  # ticks
        (
            "expected",
            np.int64,
        ),  # ticks booked there when it was routed, its own included
        ("tokens", np.int32),
        ("open", np.int32),  # 1 until its first token
        ("started", np.int32),  # 1 if it is in a batch and no poll has told so yet
        ("batch", np.int32),  # its batch's place in `batches`, NONE if that is not counted
    ],
    align=True,
)
"""What the ledger booked for a flight's prefill, and what it has heard of it."""

QUEUE = np.dtype(
    [
        ("head", np.int32),  # flights held, linked by FLIGHT.next
        ("tail", np.int32),
    ],
    align=True,
)
"""The router's own queue for an instance."""

SOURCE = np.dtype(
    [
        ("next_poll", np.int64),  # ticks
        ("turn", np.int64),  # ticks at which it would be without jitter
        ("polls", np.int64),  # so far
        ("backlog", np.int64),  # ticks of prefill booked; `backlog_seconds` before rounding
        ("found_lost", np.int64),  # epoch in which it was found to be down, 0: never
    ],
    align=True,
)

SETTINGS = np.dtype(
    [
        ("replicas", np.int64),  # R
        ("shared_index", np.int64),
        ("indexed", np.int64),  # 1 if the index is made from messages, 0 if it is the truth
        ("poll", np.int64),  # ticks between polls, 0: always up to date
        ("jitter", np.int64),  # ticks
        ("loss", np.float64),  # share of polls
        ("load_sync", np.int64),  # ticks, 0: never
        ("health", np.int64),  # ticks between checks
        ("failures", np.int64),
        ("forget_down", np.int64),
    ],
    align=True,
)

LEDGER = np.dtype(
    [
        ("requests", np.int64),
        ("prefill_requests", np.int64),
        ("prefill_tokens", np.int64),
        ("context_tokens", np.int64),
        ("backlog", np.int64),  # ticks
    ],
    align=True,
)
"""What a router told the others of an instance at the last exchange."""


class ViewArrays(NamedTuple):
    """All arrays of the routers' knowledge. E environments, W = E·R routers, N instances."""

    settings: NDArray[np.void]  # SETTINGS [1]
    shares: NDArray[np.float64]  # [R], cumulated shares of the traffic
    requests: NDArray[np.void]  # REQUEST_VIEW [E]
    block_ids: NDArray[np.int64]  # [E, B]
    depths: NDArray[np.int64]  # [E, N]: scratch of the index
    bookings: NDArray[np.void]  # BOOKING [E, Q]
    instances: NDArray[np.void]  # INSTANCE_VIEW [W, N]
    sources: NDArray[np.void]  # SOURCE [W, N]
    events: NDArray[np.void]  # EVENT_VIEW [W, 5 Q]
    num_events: NDArray[np.int64]  # [W]
    holds: NDArray[np.void]  # HOLD [W, N]
    queues: NDArray[np.void]  # QUEUE [W, N]
    batches: NDArray[np.int32]  # [W, N, MOST_BATCHES]: members of a batch without a first token
    board: NDArray[np.void]  # LEDGER [W, N]
    next_sync: NDArray[np.int64]  # [E], ticks
    remembered: NDArray[np.int64]  # [W], ticks: up to when experience has faded
    keys: NDArray[np.uint64]  # [W], of random draws
    known: IndexArrays  # its index of cached blocks
    forgotten: NDArray[np.int32]  # [W, N]: 1 if the index has yet to forget the instance
    unpresented: NDArray[np.int32]  # [E]: 1 if the index has yet to be asked about the request
    # What is shown at a decision: `instances`, `events`, `num_events` and `holds` of its replica.
    shown_instances: NDArray[np.void]  # [E, N]
    shown_events: NDArray[np.void]  # [E, 5 Q]
    num_shown: NDArray[np.int64]  # [E]
    shown_holds: NDArray[np.void]  # [E, N]


_SHOWN = {
    "shown_instances": "instances",
    "shown_events": "events",
    "num_shown": "num_events",
    "shown_holds": "holds",
}
"""What is shown, and what it is taken from."""

REPLICA_KEY = stream_key(0, 7)
"""Which replica a request reaches is the same in every environment, so that a batch of environments
can be routed by one router at a time."""


def allocate(
    knowledge: Knowledge,
    cluster: ClusterSpec,
    num_envs: int,
    *,
    num_flights: int,
    num_blocks: int,
    journal: int,
) -> ViewArrays:
    """Arrays for `num_envs` views; `reset_view` must run before their first use."""
    replicas, telemetry = knowledge.replicas, knowledge.telemetry
    settings = np.zeros(1, SETTINGS)
    settings["replicas"] = replicas.count
    settings["shared_index"] = replicas.shared_index
    settings["indexed"] = knowledge.index.source != "engine"
    settings["poll"] = to_ticks(telemetry.interval)
    settings["jitter"] = to_ticks(telemetry.jitter)
    settings["loss"] = telemetry.loss
    settings["load_sync"] = to_ticks(replicas.load_sync)
    settings["health"] = to_ticks(knowledge.health.interval)
    settings["failures"] = knowledge.health.failures
    settings["forget_down"] = knowledge.index.forget_down
    shares = np.array(replicas.shares or [1.0] * replicas.count)
    num_instances, num_routers = len(cluster.instances), num_envs * replicas.count
    grid = (num_routers, num_instances)
    own: dict[str, tuple[tuple[int, ...], DTypeLike]] = {
        "instances": (grid, INSTANCE_VIEW),
        "events": ((num_routers, 5 * num_flights), EVENT_VIEW),
        "num_events": ((num_routers,), np.int64),
        "holds": (grid, HOLD),
    }
    rest: dict[str, tuple[tuple[int, ...], DTypeLike]] = {
        "requests": ((num_envs,), REQUEST_VIEW),
        "sources": (grid, SOURCE),
        "depths": ((num_envs, num_instances), np.int64),
        "block_ids": ((num_envs, num_blocks), np.int64),
        "bookings": ((num_envs, num_flights), BOOKING),
        "queues": (grid, QUEUE),
        "batches": ((*grid, MOST_BATCHES), np.int32),
        "board": (grid, LEDGER),
        "next_sync": ((num_envs,), np.int64),
        "remembered": ((num_routers,), np.int64),
        "forgotten": (grid, np.int32),
        "unpresented": ((num_envs,), np.int32),
        "keys": ((num_routers,), np.uint64),
    }
    arrays = zeros_together(own | rest)
    arrays["block_ids"][:] = -1
    for shown, source in _SHOWN.items():
        arrays[shown] = arrays[source]
        if replicas.count > 1:
            shape, dtype = own[source]
            arrays[shown] = np.zeros((num_envs, *shape[1:]), dtype)
    return ViewArrays(
        settings=settings,
        shares=np.cumsum(shares) / shares.sum(),
        known=index_arrays.allocate(
            knowledge.index,
            num_envs,
            1 if replicas.shared_index else replicas.count,
            num_instances,
            num_blocks=sum(cluster.kv_blocks(i) for i in range(num_instances)),
            journal=journal,
            block_size=cluster.block_size,
        ),
        **arrays,
    )


def show(cluster: ClusterSpec, arrays: ViewArrays) -> View:
    """What a router gets to see of `arrays`."""
    return View(
        cluster,
        arrays.requests,
        arrays.block_ids,
        arrays.shown_instances,
        arrays.shown_events,
        arrays.num_shown,
        arrays.shown_holds,
        num_slots=arrays.bookings.shape[1],
    )


def grow(arrays: ViewArrays, num_flights: int, num_blocks: int) -> ViewArrays:
    """The same state with room for more flights, or for longer prompts."""
    block_ids = np.full((len(arrays.block_ids), num_blocks), -1, np.int64)
    block_ids[:, : arrays.block_ids.shape[1]] = arrays.block_ids
    events = widened(arrays.events, 5 * num_flights)
    return arrays._replace(
        bookings=widened(arrays.bookings, num_flights),
        events=events,
        shown_events=events
        if arrays.shown_events is arrays.events
        else widened(arrays.shown_events, 5 * num_flights),
        block_ids=block_ids,
    )


@kernel
def router_row(v: ViewArrays, e: int, replica: int) -> int:
    """The row of a replica of environment e."""
    return e * v.settings[0].replicas + replica


@kernel
def index_row(v: ViewArrays, e: int, replica: int) -> int:
    """The row of its index."""
    return e if v.settings[0].shared_index else router_row(v, e, replica)
