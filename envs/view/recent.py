"""What happened in a sliding window: a log for each environment, from which the oldest falls out.

A ring buffer of records in order of time. `append` adds one, `first` and `drop_first` are for the
user's loop over what has left the window, in which it takes back what the record added to its sums.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import Record, kernel

RECORD = np.dtype(
    [
        ("time", np.float64),  # s
        ("amount", np.int64),  # of what the log is about
        ("instance", np.int32),
        ("node", np.int32),  # of a prefix tree
    ],
    align=True,
)


class Recent(NamedTuple):
    """Logs of E environments with room for C records each."""

    records: NDArray[np.void]  # RECORD [E, C], from `head` on, around the end
    head: NDArray[np.int64]  # [E]
    size: NDArray[np.int64]  # [E]


def recent(num_envs: int, capacity: int = 256) -> Recent:
    """Empty logs."""
    return Recent(
        np.empty((num_envs, capacity), RECORD),
        np.zeros(num_envs, np.int64),
        np.zeros(num_envs, np.int64),
    )


def with_room(log: Recent, num_records: int) -> Recent:
    """The log itself, or one with the same records and room for `num_records` more."""
    records = log.records
    while int(log.size.max(initial=0)) + num_records > records.shape[1]:
        # Written twice, every ring is whole from its head on.
        records = np.hstack([records, records])
    return log._replace(records=records)


@kernel
def append(log: Recent, e: int, time: float, amount: int, instance: int, node: int) -> None:
    """Add a record, no earlier than the last one. There must be room."""
    record = log.records[e, (log.head[e] + log.size[e]) % log.records.shape[1]]
    record["time"] = time
    record["amount"] = amount
    record["instance"] = instance
    record["node"] = node
    log.size[e] += 1


@kernel
def first(log: Recent, e: int) -> Record:
    """The oldest record; there must be one."""
    return log.records[e, log.head[e]]


@kernel
def drop_first(log: Recent, e: int) -> None:
    """Forget the oldest record."""
    log.head[e] = (log.head[e] + 1) % log.records.shape[1]
    log.size[e] -= 1
