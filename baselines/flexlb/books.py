"""What a FlexLB keeps on its workers: requests in hand, batches in flight, queues, predictors.

Times are whole milliseconds of the router's clock, as in FlexLB, unless said.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.flexlb.batch_features import NUM_FEATURES
from prefixgym.baselines.flexlb.learning_predictor import (
    INITIAL_PARAMETERS,
    NUM_PARAMETERS,
    STEP_COUNT,
)
from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened

NONE = -1
"""No request, no entry."""

ABSENT, QUEUED, IN_BATCH, ALONE = range(4)
"""Where a request is: nowhere, in a batcher's queue, member of an entry, an entry of its own."""

MEMBER = np.dtype(
    [
        ("prompt", np.int64),  # tokens
        ("hit", np.int64),  # tokens that the router believed cached when it chose
        ("latest_start", np.int64),  # ms: key of a slo_budget queue
        ("enqueued", np.float64),  # s
        ("started", np.float64),  # s, when the engine took it up; NaN until that is known
        ("state", np.int32),
        ("instance", np.int32),
        ("entry", np.int32),
        ("next", np.int32),  # in the batcher's queue
        ("running", np.int32),  # 1 once a status report said so
        ("reported", np.int32),  # 1 once a status report named it
    ],
    align=True,
)
"""A routed request, by its slot, until its first token."""

ENTRY = np.dtype(
    [
        ("predicted", np.int64),  # ms
        ("progress_base", np.int64),  # ms; while no member runs, see `ledger.inflight_ms`
        ("execution", np.int64),  # ms: longest of the members that are done
        ("members", np.int32),
        ("running_members", np.int32),
        ("running", np.int32),
        ("memberless", np.int32),
        ("eligible", np.int32),  # 1 while no member has failed: it may be learnt from
        ("instance", np.int32),
        ("next", np.int32),  # entry of the same worker
    ],
    align=True,
)
"""A batch in the inflight ledger, or a lone request (`memberless`)."""

ENDPOINT = np.dtype(
    [
        ("first_entry", np.int32),
        ("entries", np.int32),
        ("members", np.int32),  # Σ members of its entries
        ("reported_alone", np.int32),  # lone requests that status reports have named
        ("closed", np.int32),  # 1 while it has too much pending, with hysteresis
        ("first_queued", np.int32),
        ("last_queued", np.int32),
        ("queued", np.int32),
        ("open_entry", np.int32),  # the latest batch, while more of it may come
        ("batch_limit", np.int32),  # members of a batch under the orders that stand
        ("open_time", np.float64),  # s: departure of the latest batch
        ("last_dispatch", np.int64),  # ms, NONE before the first
        ("dispatch_interval", np.float64),  # ms, sliding average; 0 before the second dispatch
        ("last_offer", np.int64),  # ms: latest arrival in the queue, NONE before the first
        ("arrival_interval", np.float64),  # ms, sliding average; 0 before the second arrival
        ("last_selected", np.int64),  # µs
    ],
    align=True,
)
"""A worker."""

REPORT = np.dtype(
    [
        ("time", np.float64),  # s
        ("due", np.int64),  # ms: the status poll that tells of it
        ("slot", np.int32),  # NONE: it has been taken in already
        ("instance", np.int32),
        ("kind", np.int32),  # as in EVENT_VIEW
    ],
    align=True,
)
"""What has happened on a worker and no status poll has told yet."""


class Books(NamedTuple):
    """Of E environments with N workers and S slots."""

    last_index: NDArray[np.int64]  # [E]: number of the last decision made, NONE before the first
    last_choice: NDArray[np.int64]  # [E]
    members: NDArray[np.void]  # MEMBER [E, S]
    entries: NDArray[np.void]  # ENTRY [E, S]
    features: NDArray[np.float64]  # of the members an entry still has, [E, S, NUM_FEATURES]
    original_features: NDArray[np.float64]  # of an entry as dispatched, [E, S, NUM_FEATURES]
    free_entries: NDArray[np.int32]  # a stack, [E, S]
    num_free: NDArray[np.int64]  # [E]
    endpoints: NDArray[np.void]  # ENDPOINT [E, N]
    reports: NDArray[np.void]  # REPORT [E, R], in order of `due`
    num_reports: NDArray[np.int64]  # [E]
    parameters: NDArray[np.float64]  # of each worker's predictor, [E, N, 9]
    gradients: NDArray[np.float64]  # [E, N, 9]
    moments: NDArray[np.float64]  # [E, N, 2, 9]
    step_counts: NDArray[np.void]  # STEP_COUNT [E, N]


def empty_books(num_envs: int, num_instances: int) -> Books:
    """Nothing in flight, untrained predictors; no slots, see `grow`."""
    endpoints = np.zeros((num_envs, num_instances), ENDPOINT)
    for link in ("first_entry", "first_queued", "last_queued", "open_entry"):
        endpoints[link] = NONE
    for time in ("last_dispatch", "last_offer"):
        endpoints[time] = NONE
    per_worker = (num_envs, num_instances)
    return Books(
        last_index=np.full(num_envs, NONE),
        last_choice=np.full(num_envs, NONE),
        members=np.zeros((num_envs, 0), MEMBER),
        entries=np.zeros((num_envs, 0), ENTRY),
        features=np.zeros((num_envs, 0, NUM_FEATURES)),
        original_features=np.zeros((num_envs, 0, NUM_FEATURES)),
        free_entries=np.zeros((num_envs, 0), np.int32),
        num_free=np.zeros(num_envs, np.int64),
        endpoints=endpoints,
        reports=np.zeros((num_envs, 0), REPORT),
        num_reports=np.zeros(num_envs, np.int64),
        parameters=np.tile(np.array(INITIAL_PARAMETERS), (*per_worker, 1)),
        gradients=np.zeros((*per_worker, NUM_PARAMETERS)),
        moments=np.zeros((*per_worker, 2, NUM_PARAMETERS)),
        step_counts=np.zeros(per_worker, STEP_COUNT),
    )


def grow(books: Books, num_slots: int, num_events: NDArray[np.int64]) -> Books:
    """The same books with room for `num_slots` requests, and for `num_events` [E] more reports."""
    old = books.members.shape[1]
    if num_slots > old:
        books = books._replace(
            members=widened(books.members, num_slots),
            entries=widened(books.entries, num_slots),
            features=_more_rows(books.features, num_slots),
            original_features=_more_rows(books.original_features, num_slots),
            free_entries=widened(books.free_entries, num_slots),
        )
        _free(books, old)
    reports = int((books.num_reports + num_events).max())
    if reports > books.reports.shape[1]:
        books = books._replace(reports=widened(books.reports, 2 * reports))
    return books


def _more_rows(rows: NDArray[np.float64], num_rows: int) -> NDArray[np.float64]:
    more = np.zeros((len(rows), num_rows, rows.shape[2]))
    more[:, : rows.shape[1]] = rows
    return more


@kernel
def _free(books: Books, first: int) -> None:
    """Put the entries from number `first` on, which are new, on the stack."""
    for e in range(len(books.num_free)):
        for entry in range(books.entries.shape[1] - 1, first - 1, -1):
            books.free_entries[e, books.num_free[e]] = entry
            books.num_free[e] += 1


@kernel
def is_made(b: Books, e: int, index: int) -> bool:
    """Whether decision number `index` is shown again: an episode is over, others of the batch not.

    What the router has heard and done with it must not happen twice.
    """
    return b.last_index[e] == index


@kernel
def clock_ms(seconds: float) -> int:
    """What a clock of whole milliseconds shows; decimal times in seconds lose nothing."""
    return int(seconds * 1000.0 + 1e-6)
