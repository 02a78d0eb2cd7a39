"""The engine: continuous batching in the manner of vLLM V1, driven by events.

Rules of a step (vLLM V1 scheduler, `v1/core/sched`):

- Running requests come first, in order of admission: one token each for those that decode, a chunk
  of prompt for one that prefills, within one token budget.
- If a running request finds no free block, the request admitted last is preempted: its blocks are
  released, it goes to the front of the queue and later computes its tokens again.
- Then, unless something was preempted, waiting requests are admitted first come first served while
  the budget and the sequence limit allow and the whole prompt fits into free blocks
  (`scheduler_reserve_full_isl`, on by default since 2026). Cached leading blocks are reused, but at
  least one token is always computed.
- A full prompt block can be found by others from the step that computes it on; a block filled by
  decoding, once it is full.

Only a request's last chunk of prompt can be partial, so the batch is always decoding requests
followed by prefilling ones. While all decode, the composition stays the same until one ends or
needs a block, and step times are an arithmetic series: the engine leaps there at once. An arrival
shortens the leap to the end of the step in progress.

A request that is to be decoded elsewhere leaves the batch with its prefill, and keeps its blocks
until its KV has been moved (`transfers`). There it waits like others for room for all of its KV.
Once admitted it decodes at once and its first token is out: it computes nothing, unless it is
preempted.

Deviations: when two requests compute the same block at the same time, only the first copy is
findable (vLLM keeps both); a block filled by decoding is findable one step later than in vLLM;
there is no reserved null block, no watermark (0 by default) and no asynchronous scheduling.
"""

import numpy as np

from prefixgym.envs.clock import NEVER
from prefixgym.envs.cluster.block_cache import find_slot, remove_from_lru, reset_cache
from prefixgym.envs.cluster.block_index import reset_index
from prefixgym.envs.cluster.journal import reset_journal
from prefixgym.envs.cluster.request_blocks import (
    publish_blocks,
    release_blocks,
    take_block,
    tokens_per_block,
)
from prefixgym.envs.cluster.state import (
    BATCHED,
    CANCELLED,
    DECODE_LEAP,
    DOWN,
    END,
    FAILED,
    FINISHED,
    FIRST_TOKEN,
    HANGING,
    IDLE,
    LOST,
    MIXED_STEP,
    MOVING,
    NEVER_DUE,
    NONE,
    PREFILLED,
    QUEUED,
    READY,
    REJECTED,
    SERVING,
    STARTED,
    ClusterArrays,
    settings_row,
)
from prefixgym.envs.cluster.step_time import (
    decode_base_ticks,
    decode_leap_ticks,
    longest_decode_leap,
    scale_cost,
    step_ticks,
)
from prefixgym.envs.jit import cold_kernel, kernel

_NO_STEP = np.iinfo(np.int64).max


# --- requests ---------------------------------------------------------------------------------


@kernel
def emit(c: ClusterArrays, e: int, q: int, kind: int, time: int) -> None:
    """Note what has happened to flight q, for the caller to take."""
    environment = c.environments[e]
    event = c.events[e, environment.num_events]
    event.time = time
    event.flight = q
    event.kind = kind
    environment.num_events += 1


@kernel
def _end_flight(c: ClusterArrays, e: int, i: int, q: int, time: int) -> None:
    """The last token of flight q is out."""
    flight = c.flights[e, q]
    flight.end = time
    computed = flight.prompt_tokens + flight.output_tokens - 1  # nothing is computed on the last
    publish_blocks(c, e, i, q, computed // tokens_per_block(c))
    release_blocks(c, e, i, q)
    if flight.gone:  # it was quicker than the news that nobody waits for it
        flight.gone = 0
        c.instances[e, i].leaving -= 1
    emit(c, e, q, END, time)


@cold_kernel
def _drop_leaving(c: ClusterArrays, e: int, i: int, time: int) -> None:
    """A step has ended: requests whose clients have gone meanwhile leave."""
    status, instance = c.status[e, i], c.instances[e, i]
    kept, decoding = 0, instance.decoding
    for b in range(status.running):
        q = c.running[e, i, b].flight
        flight = c.flights[e, q]
        if not flight.gone:
            _move_entry(c, e, i, b, kept)
            kept += 1
            continue
        if b < decoding:
            computed = _computed(c, e, i, b)
            instance.context -= computed
            instance.decoding -= 1
            publish_blocks(c, e, i, q, computed // tokens_per_block(c))
        else:
            status.prefilling_tokens -= flight.target - flight.computed
        release_blocks(c, e, i, q)
        _end_leaving(c, e, i, q, time)
    status.running = kept
    if instance.leaving > 0:  # some were preempted meanwhile
        q = instance.waiting_head
        while q != NONE:
            following = c.flights[e, q].next
            if c.flights[e, q].gone:
                unqueue(c, e, i, q)
                _end_leaving(c, e, i, q, time)
            q = following


@cold_kernel
def _end_leaving(c: ClusterArrays, e: int, i: int, q: int, time: int) -> None:
    c.instances[e, i].leaving -= 1
    end_cancelled(c, e, q, time)


@cold_kernel
def end_cancelled(c: ClusterArrays, e: int, q: int, time: int) -> None:
    """Flight q ends because its client has gone."""
    flight = c.flights[e, q]
    flight.gone = 0
    flight.status = CANCELLED
    flight.end = time
    emit(c, e, q, END, time)


@cold_kernel
def unqueue(c: ClusterArrays, e: int, i: int, q: int) -> None:
    """Take flight q out of instance i's queue."""
    status, instance = c.status[e, i], c.instances[e, i]
    before, other = NONE, instance.waiting_head
    while other != q:
        before, other = other, c.flights[e, other].next
    following = c.flights[e, q].next
    if before == NONE:
        instance.waiting_head = following
    else:
        c.flights[e, before].next = following
    if following == NONE:
        instance.waiting_tail = before
    status.waiting -= 1
    status.waiting_tokens -= c.flights[e, q].expected


@kernel
def _start_decoding(c: ClusterArrays, e: int, i: int, b: int) -> None:
    """The prefill of batch entry b is complete and its token is out: when does it stop again?"""
    entry, instance = c.running[e, i, b], c.instances[e, i]
    flight = c.flights[e, entry.flight]
    entry.chunk = 0
    entry.end_step = instance.steps + flight.output_tokens - flight.generated
    _find_event_step(c, e, i, b, flight.computed)
    instance.next_step = min(instance.next_step, entry.event_step)  # it may need a block at once
    instance.context += flight.computed
    instance.decoding += 1


@kernel
def _find_event_step(c: ClusterArrays, e: int, i: int, b: int, computed: int) -> None:
    """Set the step at which decoding entry b, with `computed` tokens now, ends or needs a block."""
    entry, instance = c.running[e, i, b], c.instances[e, i]
    room = c.flights[e, entry.flight].num_slots * tokens_per_block(c) - computed
    entry.event_step = min(entry.end_step, instance.steps + room)
    instance.next_step = min(instance.next_step, entry.event_step)


@kernel
def _computed(c: ClusterArrays, e: int, i: int, b: int) -> int:
    """Tokens of decoding entry b whose KV exists: all but the newest."""
    entry = c.running[e, i, b]
    flight = c.flights[e, entry.flight]
    left = entry.end_step - c.instances[e, i].steps
    return flight.prompt_tokens + flight.output_tokens - left - 1


@kernel
def _preempt_last(c: ClusterArrays, e: int, i: int) -> None:
    """The request admitted last gives up its blocks and waits at the front of the queue."""
    status, instance = c.status[e, i], c.instances[e, i]
    b = status.running - 1
    entry = c.running[e, i, b]
    q = entry.flight
    flight = c.flights[e, q]
    if b < instance.decoding:
        computed = _computed(c, e, i, b)
        flight.generated = computed + 1 - flight.prompt_tokens
        instance.context -= computed
        instance.decoding -= 1
        # A block that decoding has just filled is offered before it is given up.
        publish_blocks(c, e, i, q, computed // tokens_per_block(c))
    status.running = b
    release_blocks(c, e, i, q)
    flight.computed = 0
    flight.received = 0
    flight.target = flight.prompt_tokens + flight.generated
    flight.place = QUEUED
    flight.next = instance.waiting_head
    instance.waiting_head = q
    if instance.waiting_tail == NONE:
        instance.waiting_tail = q
    status.waiting += 1
    flight.expected = flight.target
    status.waiting_tokens += flight.expected
    instance.preemptions += 1


# --- steps ------------------------------------------------------------------------------------


@kernel
def _keep_running(c: ClusterArrays, e: int, i: int) -> bool:
    """Blocks for the next tokens of running requests. False if one had to be preempted for them."""
    status, instance = c.status[e, i], c.instances[e, i]
    block_size = tokens_per_block(c)
    preempted = False
    if instance.steps >= instance.next_step:
        instance.next_step = _NO_STEP
        b = 0
        while b < instance.decoding:
            entry = c.running[e, i, b]
            if entry.event_step != instance.steps:
                instance.next_step = min(instance.next_step, entry.event_step)
            else:
                while status.free_blocks == 0 and b < instance.decoding:
                    _preempt_last(c, e, i)
                    preempted = True
                if b >= instance.decoding:
                    break  # b itself was the last
                computed, q = _computed(c, e, i, b), c.running[e, i, b].flight
                publish_blocks(c, e, i, q, computed // block_size)
                take_block(c, e, i, q)
                _find_event_step(c, e, i, b, computed)
            b += 1
    if status.running > instance.decoding:  # a prompt is partly computed; it is the last entry
        entry = c.running[e, i, status.running - 1]
        flight = c.flights[e, entry.flight]
        limits = c.limits[settings_row(c, e), i]
        budget = limits.max_batched_tokens - instance.decoding
        entry.chunk = min(flight.target - flight.computed, budget)
        total = flight.computed + entry.chunk
        needed = (total + block_size - 1) // block_size - flight.num_slots
        if needed > status.free_blocks:
            _preempt_last(c, e, i)
            preempted = True
        else:
            for _ in range(needed):
                take_block(c, e, i, entry.flight)
            publish_blocks(c, e, i, entry.flight, total // block_size)
    return not preempted


@kernel
def _admit(c: ClusterArrays, e: int, i: int, budget: int, time: int) -> int:
    """Admit the first waiting request if blocks allow: the tokens it takes, 0 if it stays."""
    status, instance, slots = c.status[e, i], c.instances[e, i], c.slots[e, i]
    block_size = tokens_per_block(c)
    q = instance.waiting_head
    flight = c.flights[e, q]
    reusable = min(flight.cacheable, (flight.target - 1) // block_size)
    if flight.received:  # its blocks for the prompt, and for the token that it computes next
        reusable = min(flight.cacheable, flight.prompt_tokens // block_size)
    hits, unused = 0, 0
    while hits < reusable:
        slot = find_slot(slots, c.slot_table[e, i], c.flight_blocks[e, q, hits])
        if slot == NONE:
            break
        c.flight_slots[e, q, hits] = slot
        unused += slots[slot].users == 0
        hits += 1
    chunk = min(flight.target - hits * block_size, budget)
    if flight.received:
        chunk = flight.target - hits * block_size
    total = hits * block_size + chunk
    needed = (total + block_size - 1) // block_size - hits
    whole = (flight.target + block_size - 1) // block_size - hits
    if whole > status.free_blocks - unused:
        return 0
    for j in range(hits):
        slot = c.flight_slots[e, q, j]
        if slots[slot].users == 0:
            remove_from_lru(instance, slots, slot)
        slots[slot].users += 1
    status.free_blocks -= unused
    flight.num_slots = hits
    flight.published = hits
    for _ in range(needed):
        take_block(c, e, i, q)
    known = flight.prompt_tokens if flight.received else total
    publish_blocks(c, e, i, q, known // block_size)
    if flight.hit_tokens == NONE:
        flight.hit_tokens = hits * block_size
        emit(c, e, q, STARTED, time)
    flight.computed = hits * block_size
    flight.place = BATCHED
    instance.waiting_head = flight.next
    if instance.waiting_head == NONE:
        instance.waiting_tail = NONE
    status.waiting -= 1
    status.waiting_tokens -= flight.expected
    entry = c.running[e, i, status.running]
    entry.flight = q
    entry.chunk = chunk
    status.running += 1
    if flight.received:
        _go_on_decoding(c, e, i, q, time)
        return 1
    return chunk


@kernel
def _go_on_decoding(c: ClusterArrays, e: int, i: int, q: int, time: int) -> None:
    """Flight q, prefilled elsewhere, is the last entry of the batch: it decodes from now on."""
    status, instance, flight = c.status[e, i], c.instances[e, i], c.flights[e, q]
    for b in range(status.running - 1, instance.decoding, -1):
        _move_entry(c, e, i, b - 1, b)
    c.running[e, i, instance.decoding].flight = q
    flight.computed = flight.prompt_tokens
    flight.first_token = time
    emit(c, e, q, FIRST_TOKEN, time)
    _start_decoding(c, e, i, instance.decoding)


@kernel
def _start_step(c: ClusterArrays, e: int, i: int, time: int) -> None:
    """Compose the next step at `time` and find when the instance needs attention again."""
    status, instance, settings = c.status[e, i], c.instances[e, i], settings_row(c, e)
    limits, cost = c.limits[settings, i], c.cost[settings, i]
    if instance.factor != instance.next_factor:
        instance.factor = instance.next_factor
        scale_cost(c.nominal[settings, i], instance.factor, cost)
    first = instance.decoding
    undisturbed = _keep_running(c, e, i)
    # A step that preempts all there is takes no time: it is the next one that admits. Blocks that
    # are kept for transfers are the only reason for that.
    if undisturbed or status.running == 0:
        budget = limits.max_batched_tokens - instance.decoding
        for b in range(instance.decoding, status.running):
            budget -= c.running[e, i, b].chunk
        while status.waiting > 0 and budget > 0 and status.running < limits.max_sequences:
            taken = _admit(c, e, i, budget, time)
            if taken == 0:
                break
            budget -= taken
    first = instance.decoding
    prefill, left, work = 0, 0, 0.0
    for b in range(first, status.running):
        chunk, flight = c.running[e, i, b].chunk, c.flights[e, c.running[e, i, b].flight]
        prefill += chunk
        left += flight.target - flight.computed
        work += chunk * (flight.computed + chunk / 2)
    status.prefilling_tokens = left
    # A decoding request attends to its computed tokens and to the one that it computes now.
    context = instance.context + first
    if prefill > 0:
        ticks = step_ticks(cost, prefill, work, first, context, status.running)
        status.mode = MIXED_STEP
        instance.leap_steps = 1
        instance.busy_ticks += ticks
        status.due = 2 * (time + ticks)
        status.throughput = first / ticks
        instance.rated = NONE
        instance.prefilled_tokens += prefill
    elif first > 0:
        status.mode = DECODE_LEAP
        instance.leap_start = time
        instance.leap_context = context
        instance.leap_base = decode_base_ticks(cost, first)
        instance.leap_steps = min(
            instance.next_step - instance.steps,
            # After a preemption admission is tried again at the next step.
            limits.longest_leap if undisturbed and instance.leaving == 0 else 1,
            longest_decode_leap(cost, first, context),
        )
        status.due = 2 * (time + leap_ticks(c, e, i, instance.leap_steps))
        if instance.rated != first:
            status.throughput = first / leap_ticks(c, e, i, 1)
            instance.rated = first
    else:
        status.mode = IDLE
        status.throughput = 0.0
        instance.rated = NONE
        status.due = NEVER_DUE


@kernel
def leap_ticks(c: ClusterArrays, e: int, i: int, steps: int) -> int:
    """Duration of the first `steps` steps of the leap in progress."""
    instance = c.instances[e, i]
    cost = c.cost[settings_row(c, e), i]
    return decode_leap_ticks(
        cost, instance.leap_base, instance.decoding, instance.leap_context, steps
    )


@kernel
def shorten_leap(c: ClusterArrays, e: int, i: int, time: int) -> None:
    """End the leap in progress with the first step that ends at or after `time`."""
    instance = c.instances[e, i]
    instance.leap_steps = leap_steps_until(c, e, i, time)
    c.status[e, i].due = 2 * (instance.leap_start + leap_ticks(c, e, i, instance.leap_steps))


@kernel
def leap_steps_until(c: ClusterArrays, e: int, i: int, time: int) -> int:
    """How many steps of the leap in progress there are until one ends at or after `time`."""
    instance = c.instances[e, i]
    passed = time - instance.leap_start
    low, high = 0, instance.leap_steps  # `low` steps end before `time`, `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        if leap_ticks(c, e, i, middle) < passed:
            low = middle
        else:
            high = middle
    return high


@kernel
def _end_steps(c: ClusterArrays, e: int, i: int, time: int) -> None:
    """The step or leap in progress ends at `time`: tokens come out, requests end."""
    status, instance = c.status[e, i], c.instances[e, i]
    if status.mode == DECODE_LEAP:
        instance.busy_ticks += time - instance.leap_start
    instance.steps += instance.leap_steps
    instance.context += instance.leap_steps * instance.decoding
    decoding = instance.decoding
    if instance.steps >= instance.next_step:
        kept = 0
        for b in range(status.running):
            if b < decoding and c.running[e, i, b].end_step == instance.steps:
                q = c.running[e, i, b].flight
                instance.context -= (
                    c.flights[e, q].prompt_tokens + c.flights[e, q].output_tokens - 1
                )
                instance.decoding -= 1
                _end_flight(c, e, i, q, time)
            else:
                _move_entry(c, e, i, b, kept)
                kept += 1
        status.running = kept
    if status.mode == MIXED_STEP:
        kept = instance.decoding
        for b in range(instance.decoding, status.running):
            q, chunk = c.running[e, i, b].flight, c.running[e, i, b].chunk
            flight = c.flights[e, q]
            flight.computed += chunk
            status.prefilling_tokens -= chunk
            if flight.computed < flight.target:
                _move_entry(c, e, i, b, kept)
                kept += 1
                continue
            flight.generated += 1
            moves = flight.decoder != NONE and flight.decoder != i
            if moves and flight.generated < flight.output_tokens:
                flight.place = MOVING
                emit(c, e, q, PREFILLED, time)
                continue
            if flight.first_token == NEVER:
                flight.first_token = time
                emit(c, e, q, FIRST_TOKEN, time)
            if flight.generated == flight.output_tokens:
                _end_flight(c, e, i, q, time)
            else:
                _move_entry(c, e, i, b, kept)
                _start_decoding(c, e, i, kept)
                kept += 1
        status.running = kept
    if instance.leaving > 0:
        _drop_leaving(c, e, i, time)


@kernel
def _move_entry(c: ClusterArrays, e: int, i: int, source: int, target: int) -> None:
    """Close a gap in the batch."""
    if source != target:
        to, entry = c.running[e, i, target], c.running[e, i, source]
        to.event_step = entry.event_step
        to.end_step = entry.end_step
        to.flight = entry.flight
        to.chunk = entry.chunk


# --- the cluster's surface --------------------------------------------------------------------


@kernel
def sum_integrals(c: ClusterArrays, e: int, i: int, time: int) -> None:
    """Bring the time integrals of instance i up to `time`."""
    status, instance = c.status[e, i], c.instances[e, i]
    passed = time - instance.changed_at
    instance.running_ticks += float(passed) * status.running
    instance.waiting_ticks += float(passed) * status.waiting
    instance.changed_at = time


@kernel
def next_due(c: ClusterArrays, e: int) -> int:
    """The instance whose next event comes first; the lowest index on ties."""
    first = 0
    for i in range(1, c.status.shape[1]):
        if c.status[e, i].due < c.status[e, first].due:
            first = i
    return first


@kernel
def process_event(c: ClusterArrays, e: int, i: int) -> None:
    """Let the next event of instance i happen; what clients see of it is appended to `events`."""
    time = c.status[e, i].due // 2
    c.instances[e, i].stamp = c.status[e, i].due
    sum_integrals(c, e, i, time)
    if c.status[e, i].mode == READY:
        _start_step(c, e, i, time)
    else:
        _end_steps(c, e, i, time)
        c.status[e, i].mode = READY
        c.status[e, i].due = 2 * time + 1


@kernel
def take_flight(c: ClusterArrays, e: int) -> int:
    """An unused flight record; the caller has made sure that there is one."""
    environment = c.environments[e]
    q = environment.free_flight
    environment.free_flight = c.flights[e, q].next
    environment.in_flight += 1
    return q


@kernel
def return_flight(c: ClusterArrays, e: int, q: int) -> None:
    """Flight q has ended and its events are read: the record may be used again."""
    environment = c.environments[e]
    c.flights[e, q].next = environment.free_flight
    environment.free_flight = q
    environment.in_flight -= 1


@cold_kernel
def fail_attempt(c: ClusterArrays, e: int, q: int, time: int) -> None:
    """The connection of flight q has broken."""
    flight = c.flights[e, q]
    flight.status = FAILED
    flight.end = time
    flight.gone = 0
    emit(c, e, q, END, time)


@cold_kernel
def hang(c: ClusterArrays, e: int, i: int, q: int) -> None:
    """Flight q waits for an answer of instance i, which is lost."""
    instance, flight = c.instances[e, i], c.flights[e, q]
    flight.place = HANGING
    flight.next = NONE
    if instance.limbo_tail == NONE:
        instance.limbo_head = q
    else:
        c.flights[e, instance.limbo_tail].next = q
    instance.limbo_tail = q


@kernel
def enqueue(c: ClusterArrays, e: int, i: int, q: int, time: int, known_lost: bool) -> None:
    """Flight q (arrival, lengths, blocks and row are set) joins the queue of instance i at `time`.
    `expected` is what the router thinks that the instance will have to compute.

    A request that could never fit into the instance's memory is rejected at once. An instance that
    is down refuses it; on one that is lost it hangs, unless its router has found that out.
    """
    instance, flight = c.instances[e, i], c.flights[e, q]
    flight.first_token = NEVER
    flight.end = NEVER
    flight.generated = 0
    flight.computed = 0
    flight.target = flight.prompt_tokens
    flight.hit_tokens = NONE
    flight.num_slots = 0
    flight.published = 0
    flight.instance = i
    flight.received = 0
    flight.next = NONE
    flight.status = FINISHED
    flight.place = QUEUED
    if instance.phase == DOWN or (instance.phase == LOST and known_lost):
        fail_attempt(c, e, q, time)
        return
    if instance.phase == LOST:
        hang(c, e, i, q)
        return
    last = i if flight.decoder == NONE else flight.decoder
    if not (
        _fits(c, e, i, flight.prompt_tokens)
        and _fits(c, e, last, flight.prompt_tokens + flight.output_tokens - 1)
    ):
        flight.status = REJECTED
        flight.hit_tokens = 0
        flight.end = time
        emit(c, e, q, END, time)
        return
    join_queue(c, e, i, q, time)


@kernel
def _fits(c: ClusterArrays, e: int, i: int, tokens: int) -> bool:
    """Whether so many tokens fit into the memory of instance i."""
    block_size = tokens_per_block(c)
    return (tokens + block_size - 1) // block_size <= c.limits[settings_row(c, e), i].num_blocks


@kernel
def join_queue(c: ClusterArrays, e: int, i: int, q: int, time: int) -> None:
    """Flight q waits for admission to the batch of instance i."""
    status, instance, flight = c.status[e, i], c.instances[e, i], c.flights[e, q]
    sum_integrals(c, e, i, time)
    was_blocked = status.waiting > 0
    if instance.waiting_tail == NONE:
        instance.waiting_head = q
    else:
        c.flights[e, instance.waiting_tail].next = q
    instance.waiting_tail = q
    status.waiting += 1
    status.waiting_tokens += flight.expected
    if status.mode == IDLE:
        status.mode = READY
        status.due = 2 * time + 1
    elif status.mode == DECODE_LEAP and not was_blocked:
        # Behind a blocked request nothing is admitted before the leap's end anyway.
        shorten_leap(c, e, i, time)


@kernel
def forget_work(c: ClusterArrays, e: int, i: int) -> None:
    """Instance i has neither batch nor queue, and nothing in its memory."""
    status, instance = c.status[e, i], c.instances[e, i]
    status.due = NEVER_DUE
    status.running = 0
    status.waiting = 0
    status.free_blocks = c.limits[settings_row(c, e), i].num_blocks
    status.mode = IDLE
    status.waiting_tokens = 0
    status.prefilling_tokens = 0
    status.throughput = 0.0
    instance.context = 0
    instance.rated = NONE
    instance.next_step = _NO_STEP
    instance.decoding = 0
    instance.waiting_head = NONE
    instance.waiting_tail = NONE
    instance.leaving = 0


@kernel
def reset_cluster(c: ClusterArrays, e: int) -> None:
    """Empty caches, no requests, time zero."""
    for i in range(c.status.shape[1]):
        instance = c.instances[e, i]
        num_blocks = c.limits[settings_row(c, e), i].num_blocks
        forget_work(c, e, i)
        instance.steps = 0
        instance.leap_steps = 0
        instance.phase = SERVING
        instance.limbo_head = NONE
        instance.limbo_tail = NONE
        instance.epoch = 0
        instance.stamp = 0
        instance.sends_until = 0
        instance.receives_until = 0
        instance.factor = 1.0
        instance.next_factor = 1.0
        if c.cost.shape[0] > 1:  # an earlier episode may have left it slow
            scale_cost(c.nominal[settings_row(c, e), i], 1.0, c.cost[settings_row(c, e), i])
        reset_journal(c.journals, e, i)
        instance.changed_at = 0
        instance.running_ticks = 0.0
        instance.waiting_ticks = 0.0
        instance.busy_ticks = 0
        instance.prefilled_tokens = 0
        instance.preemptions = 0
        reset_cache(instance, c.slots[e, i], c.slot_table[e, i], num_blocks)
    reset_index(c, e)
    num_flights = c.flights.shape[1]
    for q in range(num_flights):
        c.flights[e, q].next = q + 1 if q + 1 < num_flights else NONE
    c.environments[e].free_flight = 0
    c.environments[e].in_flight = 0
    c.environments[e].num_events = 0
    c.environments[e].num_transfers = 0
    c.environments[e].next_transfer = NEVER
