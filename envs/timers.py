"""Moments that are known in advance: faults begin and end, clients lose patience, and the like.

For each environment a heap of DUE records; what they do is in `prefixgym.envs.incidents`. At one
instant they go off in the order in which they were set, but a draining instance whose last request
has ended leaves before.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clients import Clients
from prefixgym.envs.clock import NEVER, to_ticks
from prefixgym.envs.cluster.faults import Autoscaler, Fault, check_faults
from prefixgym.envs.heap import DUE
from prefixgym.envs.memory import widened

KINDS = ("restart", "crash", "drain", "join", "slow", "flush", "silence")
RESTART, CRASH, DRAIN, JOIN, SLOW, FLUSH, SILENCE = range(len(KINDS))

# What a timer is about, and what its `index` and `check` are.
BEGINNING = 0  # of a fault: its number
END = 1  # of a fault: its number
GRACE = 2  # of a draining instance: its number, its incarnation
RETURN = 3  # of an instance that is down: its number, its incarnation
FINDING = 4  # that an instance is lost: its number and the router's, its incarnation
RECOVERY = 5  # that it is back: the same
TIMEOUT = 6  # of a request: its flight
CANCELLATION = 7  # of a request: the same
AUTOSCALING = 8

FAULT = np.dtype(
    [
        ("begin", np.int64),  # ticks
        ("lasts", np.int64),  # ticks, NEVER if it does not end
        ("grace", np.int64),  # ticks
        ("factor", np.float64),
        ("kind", np.int32),
        ("instance", np.int32),
    ],
    align=True,
)
"""A fault of one instance."""

AUTOSCALER = np.dtype(
    [
        ("interval", np.int64),  # ticks; 0: there is none
        ("startup", np.int64),  # ticks
        ("grace", np.int64),  # ticks
        ("high", np.float64),
        ("low", np.float64),
        ("first", np.int64),
        ("least", np.int64),
    ],
    align=True,
)

CLIENTS = np.dtype(
    [
        ("timeout", np.int64),  # ticks, NEVER if they wait for ever
        ("cancel", np.float64),  # share
        ("cancel_after", np.float64),  # s
        ("leak", np.float64),  # share
        ("retries", np.int64),
        ("retry_delay", np.int64),  # ticks
    ],
    align=True,
)


class TimerArrays(NamedTuple):
    """E environments, F faults of single instances, N instances."""

    due: NDArray[np.void]  # DUE [E, T], a heap of `EPISODE.num_timers`
    serial: NDArray[np.int64]  # [E]: timers made so far
    faults: NDArray[np.void]  # FAULT [F]
    taken: NDArray[np.int64]  # [E, F]: incarnation that a fault began, NONE if it did not begin
    drains: NDArray[np.int64]  # [E, N]: fault that an instance drains by, NONE: the autoscaler
    starting: NDArray[np.int32]  # [E, N]: 1 if the autoscaler has started the instance
    autoscaler: NDArray[np.void]  # AUTOSCALER [1]
    clients: NDArray[np.void]  # CLIENTS [1]


def allocate(
    faults: Sequence[Fault],
    autoscaler: Autoscaler | None,
    clients: Clients,
    num_envs: int,
    num_instances: int,
    num_routers: int,
    num_flights: int,
) -> TimerArrays:
    """Arrays for `num_envs` environments with so many routers each.

    Raises:
        ValueError: an instance that is not there is named, or an autoscaler has more than there are
            or meets a join.
    """
    check_faults(faults, autoscaler, num_instances)
    single = [
        (fault, instance, fault.at + k * fault.stagger)
        for fault in faults
        for k, instance in enumerate(fault.instances or range(num_instances))
    ]
    records = np.zeros(len(single), FAULT)
    for record, (fault, instance, at) in zip(records, single, strict=True):
        record["begin"] = to_ticks(at)
        record["lasts"] = NEVER if fault.lasts is None else to_ticks(fault.lasts)
        record["grace"] = to_ticks(fault.grace)
        record["factor"] = fault.factor
        record["kind"] = KINDS.index(fault.kind)
        record["instance"] = instance
    scaling = np.zeros(1, AUTOSCALER)
    if autoscaler is not None:
        for name in ("interval", "startup", "grace"):
            scaling[name] = to_ticks(getattr(autoscaler, name))
        for name in ("high", "low", "first", "least"):
            scaling[name] = getattr(autoscaler, name)
    behaviour = np.zeros(1, CLIENTS)
    behaviour["timeout"] = NEVER if clients.timeout is None else to_ticks(clients.timeout)
    behaviour["retry_delay"] = to_ticks(clients.retry_delay)
    for name in ("cancel", "cancel_after", "leak", "retries"):
        behaviour[name] = getattr(clients, name)
    return TimerArrays(
        due=np.zeros((num_envs, _room(records, scaling[0], num_routers, num_flights)), DUE),
        serial=np.zeros(num_envs, np.int64),
        faults=records,
        taken=np.zeros((num_envs, len(records)), np.int64),
        drains=np.zeros((num_envs, num_instances), np.int64),
        starting=np.zeros((num_envs, num_instances), np.int32),
        autoscaler=scaling,
        clients=behaviour,
    )


def _room(faults: NDArray[np.void], scaling: np.void, num_routers: int, num_flights: int) -> int:
    """Most timers at once: of faults, of the autoscaler and of flights.

    A fault has a beginning and an end, and may have a grace, which can end early, a return, and
    findings and recoveries of every router. The autoscaler makes a grace or a startup a turn, and
    its next turn.
    """
    of_scaling = 0
    if scaling["interval"] > 0:
        of_scaling = 4 + int((scaling["grace"] + scaling["startup"]) // scaling["interval"])
    return len(faults) * (5 + 2 * num_routers) + of_scaling + 2 * num_flights


def grow(arrays: TimerArrays, more_flights: int) -> TimerArrays:
    """The same with room for the timers of so many more flights."""
    return arrays._replace(due=widened(arrays.due, arrays.due.shape[1] + 2 * more_flights))
