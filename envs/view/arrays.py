"""The view's state: what the router knows, in arrays with leading axes [environment, instance]."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import to_ticks
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.memory import widened, zeros_together
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
        ("next_report", np.int64),  # ticks
        ("next_poll", np.int64),  # ticks
        ("backlog", np.int64),  # ticks of prefill booked; `backlog_seconds` before rounding
    ],
    align=True,
)

INTERVALS = np.dtype([("report", np.int64), ("poll", np.int64)], align=True)


class ViewArrays(NamedTuple):
    """All arrays of the router's knowledge. E environments, N instances, Q flights, B blocks."""

    intervals: NDArray[np.void]  # INTERVALS [1], ticks; 0 = immediate
    requests: NDArray[np.void]  # REQUEST_VIEW [E]
    block_ids: NDArray[np.int64]  # [E, B]
    instances: NDArray[np.void]  # INSTANCE_VIEW [E, N]
    sources: NDArray[np.void]  # SOURCE [E, N]
    bookings: NDArray[np.void]  # BOOKING [E, Q]
    depths: NDArray[np.int64]  # [E, N]: scratch of the index
    events: NDArray[np.void]  # EVENT_VIEW [E, 4 Q]
    num_events: NDArray[np.int64]  # [E]
    holds: NDArray[np.void]  # HOLD [E, N]
    queues: NDArray[np.void]  # QUEUE [E, N]
    batches: NDArray[np.int32]  # [E, N, MOST_BATCHES]: members of a batch without a first token


def report_interval(knowledge: Knowledge) -> float:
    """s between two snapshots of an instance; 0 if the router always knows the truth."""
    return knowledge.index.snapshots.interval if knowledge.index.source == "snapshots" else 0.0


def allocate(
    knowledge: Knowledge, num_envs: int, num_instances: int, *, num_flights: int, num_blocks: int
) -> ViewArrays:
    """Arrays for `num_envs` views; `reset_view` must run before their first use."""
    intervals = np.zeros(1, INTERVALS)
    intervals["report"] = to_ticks(report_interval(knowledge))
    intervals["poll"] = to_ticks(knowledge.telemetry.interval)
    arrays = zeros_together(
        {
            "requests": ((num_envs,), REQUEST_VIEW),
            "instances": ((num_envs, num_instances), INSTANCE_VIEW),
            "sources": ((num_envs, num_instances), SOURCE),
            "depths": ((num_envs, num_instances), np.int64),
            "block_ids": ((num_envs, num_blocks), np.int64),
            "bookings": ((num_envs, num_flights), BOOKING),
            "events": ((num_envs, 4 * num_flights), EVENT_VIEW),
            "num_events": ((num_envs,), np.int64),
            "holds": ((num_envs, num_instances), HOLD),
            "queues": ((num_envs, num_instances), QUEUE),
            "batches": ((num_envs, num_instances, MOST_BATCHES), np.int32),
        }
    )
    arrays["block_ids"][:] = -1
    return ViewArrays(intervals=intervals, **arrays)


def show(cluster: ClusterSpec, arrays: ViewArrays) -> View:
    """What a router gets to see of `arrays`."""
    return View(
        cluster,
        arrays.requests,
        arrays.block_ids,
        arrays.instances,
        arrays.events,
        arrays.num_events,
        arrays.holds,
        num_slots=arrays.bookings.shape[1],
    )


def grow(arrays: ViewArrays, num_flights: int, num_blocks: int) -> ViewArrays:
    """The same state with room for more flights, or for longer prompts."""
    block_ids = np.full((len(arrays.block_ids), num_blocks), -1, np.int64)
    block_ids[:, : arrays.block_ids.shape[1]] = arrays.block_ids
    return arrays._replace(
        bookings=widened(arrays.bookings, num_flights),
        events=widened(arrays.events, 4 * num_flights),
        block_ids=block_ids,
    )
