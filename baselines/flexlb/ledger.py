"""FlexLB's inflight ledger: the batches that it dispatched to a worker, and how long they take.

    T_inflight = max(0, Σ max(0, T̂_b) - max(0, now - min progressBase_b)) over the worker's batches

as if they ran one after the other: a worker that runs two at a time is overestimated. progressBase
is the time from which a batch makes progress: when it left, then the latest status poll that saw it
waiting, then for good the first that saw a member run. Predictions are made anew from the members
that are left.

What differs from FlexLB: a request counts as done with its first token, which is when a prefill
worker is done with it; the value is not memoised for 2 ms; nothing is evicted for not having been
seen for 300 s: a request whose end is never told (`clients.leak`) stays until its slot is used
again. What a batch took, to learn from, is the longest time of its members from start to first
token, unless one of them failed or was cancelled before it. FlexLB has it from the engine's clock;
here the start is when the router could know of it, late by up to the scenario's
`knowledge.telemetry.interval`, and a prefill that is over by then tells nothing.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §0, §1.4; FlexLB `PrefillEndpoint`,
`BatchInflight`.
"""

import math

import numpy as np

from prefixgym.baselines.flexlb.batch_features import NUM_FEATURES, change_features
from prefixgym.baselines.flexlb.books import ABSENT, ALONE, IN_BATCH, NONE, Books, clock_ms
from prefixgym.baselines.flexlb.learning_predictor import learn
from prefixgym.baselines.flexlb.prefill_predictor import LEARNING, predict_ms
from prefixgym.envs.jit import kernel


@kernel
def open_entry(b: Books, e: int, i: int, now: int) -> int:
    """A new entry of worker i without members, committed at ms `now`; its number."""
    b.num_free[e] -= 1
    k = b.free_entries[e, b.num_free[e]]
    entry, endpoint = b.entries[e, k], b.endpoints[e, i]
    entry.predicted = 0
    entry.progress_base = now
    entry.execution = 0
    entry.members = 0
    entry.running_members = 0
    entry.running = 0
    entry.memberless = 0
    entry.eligible = 1
    entry.instance = i
    entry.next = endpoint.first_entry
    endpoint.first_entry = k
    endpoint.entries += 1
    for f in range(NUM_FEATURES):
        b.features[e, k, f] = 0.0
    return int(k)


@kernel
def commit_alone(b: Books, e: int, i: int, q: int, predicted: int, now: int) -> None:
    """Request q goes to worker i without a batcher: an entry without members."""
    k = open_entry(b, e, i, now)
    b.entries[e, k].memberless = 1
    b.entries[e, k].predicted = predicted
    member = b.members[e, q]
    member.state = ALONE
    member.instance = i
    member.entry = k


@kernel
def join_entry(b: Books, predictor: int, e: int, k: int, q: int) -> None:
    """Request q leaves as a member of entry k, whose batch is predicted anew."""
    entry, member = b.entries[e, k], b.members[e, q]
    member.state = IN_BATCH
    member.entry = k
    entry.members += 1
    b.endpoints[e, entry.instance].members += 1
    change_features(b.features[e, k], member.prompt, member.hit, 1)
    for f in range(NUM_FEATURES):
        b.original_features[e, k, f] = b.features[e, k, f]
    entry.predicted = predict_ms(predictor, b.parameters[e, entry.instance], b.features[e, k])


@kernel
def leave_entry(b: Books, predictor: int, e: int, q: int, succeeded: bool, time: float) -> None:
    """Request q is done at `time` (s): with an answer, or `succeeded` False without one."""
    member = b.members[e, q]
    k = member.entry
    entry = b.entries[e, k]
    endpoint = b.endpoints[e, entry.instance]
    if member.state == ALONE:
        endpoint.reported_alone -= member.reported
        _close_entry(b, e, k)
    else:
        entry.members -= 1
        endpoint.members -= 1
        entry.running_members -= member.running
        if not succeeded:
            entry.eligible = 0
        elif not math.isnan(member.started):
            entry.execution = max(entry.execution, clock_ms(time - member.started))
        if entry.members > 0:
            change_features(b.features[e, k], member.prompt, member.hit, -1)
            entry.predicted = predict_ms(
                predictor, b.parameters[e, entry.instance], b.features[e, k]
            )
        else:
            _close_entry(b, e, k)
            _learn_from(b, predictor, e, k)
    member.state = ABSENT


@kernel
def _close_entry(b: Books, e: int, k: int) -> None:
    """Take entry k off its worker's books."""
    endpoint = b.endpoints[e, b.entries[e, k].instance]
    if endpoint.first_entry == k:
        endpoint.first_entry = b.entries[e, k].next
    else:
        before = endpoint.first_entry
        while b.entries[e, before].next != k:
            before = b.entries[e, before].next
        b.entries[e, before].next = b.entries[e, k].next
    endpoint.entries -= 1
    if endpoint.open_entry == k:
        endpoint.open_entry = NONE
    b.free_entries[e, b.num_free[e]] = k
    b.num_free[e] += 1


@kernel
def _learn_from(b: Books, predictor: int, e: int, k: int) -> None:
    """The last member of entry k is gone: its batch as dispatched may be a sample."""
    entry = b.entries[e, k]
    i = entry.instance
    if predictor == LEARNING and entry.eligible and entry.execution > 0:
        learn(
            b.parameters[e, i],
            b.gradients[e, i],
            b.moments[e, i],
            b.step_counts[e, i : i + 1],
            b.original_features[e, k],
            float(entry.execution),
        )


@kernel
def note_status(b: Books, e: int, i: int, poll: int) -> None:
    """The status poll of ms `poll` has told which members run on worker i."""
    k = b.endpoints[e, i].first_entry
    while k != NONE:
        entry = b.entries[e, k]
        if entry.running_members == 0:
            entry.running = 0
        elif entry.running == 0:
            entry.progress_base = max(entry.progress_base, poll)
            entry.running = 1
        k = entry.next


@kernel
def inflight_ms(b: Books, status_poll_ms: int, e: int, i: int, now: int) -> int:
    """T_inflight of worker i at ms `now`.

    A batch that waits in the engine is seen waiting by every poll, which moves its progressBase to
    the latest one. Entries without members are not told of, theirs stays when they were committed.
    """
    k = b.endpoints[e, i].first_entry
    if k == NONE:
        return 0
    last_poll = now // status_poll_ms * status_poll_ms
    predicted, earliest = 0, np.iinfo(np.int64).max
    while k != NONE:
        entry = b.entries[e, k]
        base = entry.progress_base
        if entry.running == 0 and entry.memberless == 0:
            base = max(base, last_poll)
        predicted += max(0, entry.predicted)
        earliest = min(earliest, base)
        k = entry.next
    return max(0, predicted - max(0, now - earliest))
