"""FlexLB's default batcher, `fixed_window`: a batch leaves when it is full or its first member old.

It leaves with `flexlb_batch_size_max` requests, or when the first has waited
`flexlb_batch_fixed_wait_ms`, or at once if its predicted time has reached
`flexlb_batch_predict_threshold_ms` (0: never). A batch is cut before the member with which the
longest prompt times the number of members is no longer below `flexlb_batch_max_capacity`.

What differs from FlexLB, whose loop looks every millisecond: where the queue is longer than a batch
(only if batches in flight are limited, or a batch was cut) what stays behind leaves as soon as it
may, not after a window of its own; nothing held is dropped for waiting 5 s; the engine's free KV
does not cut a batch.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §1.5; FlexLB `FixedWindowBatcherAlgorithm`.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.flexlb.batch_features import change_features
from prefixgym.baselines.flexlb.books import NONE, Books
from prefixgym.baselines.flexlb.prefill_predictor import predict_ms
from prefixgym.envs.jit import Record, kernel


@kernel
def window_wait_ms(queued: int, head_age: int, size_max: int, window: int) -> int:
    """How long a new request would wait, ms.

    Args:
        queued: requests in the queue.
        head_age: ms that the first of them has waited.
        size_max: `flexlb_batch_size_max`.
        window: `flexlb_batch_fixed_wait_ms`.
    """
    if size_max <= 1:
        return 0
    if queued == 0:
        return window
    if queued % size_max == size_max - 1:
        return 0  # the new request completes a batch
    if queued < size_max:
        return max(0, window - head_age)
    return window  # an upper bound


@kernel
def order_window(
    b: Books,
    predictor: int,
    size_max: int,
    window: int,
    predict_threshold: int,
    capacity: int,
    scratch: NDArray[np.float64],
    e: int,
    i: int,
    hold: Record,
    now: float,
) -> None:
    """Write into `hold` (HOLD) when worker i's queue, which has just grown, leaves."""
    endpoint = b.endpoints[e, i]
    for f in range(len(scratch)):
        scratch[f] = 0.0
    members, longest, k = 0, 0, endpoint.first_queued
    while k != NONE and members < size_max:
        member = b.members[e, k]
        longest = max(longest, member.prompt)
        if members > 0 and longest * (members + 1) >= capacity:
            break
        members += 1
        change_features(scratch, member.prompt, member.hit, 1)
        k = member.next
    hold.size = endpoint.batch_limit = members
    hold.release = b.members[e, endpoint.first_queued].enqueued + window / 1000.0
    full = endpoint.queued >= size_max
    if full or (
        predict_threshold > 0
        and predict_ms(predictor, b.parameters[e, i], scratch) >= predict_threshold
    ):
        hold.release = now
