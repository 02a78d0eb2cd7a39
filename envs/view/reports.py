"""Telemetry: what instances tell of their queues and memory, and what routers exchange."""

import numpy as np

from prefixgym.envs.clock import NEVER, TICKS_PER_SECOND
from prefixgym.envs.cluster.state import DRAINING, ClusterArrays, settings_row
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import uniform
from prefixgym.envs.view.arrays import ViewArrays, router_row
from prefixgym.envs.view.ledger import hear
from prefixgym.envs.view.view import STARTED


@kernel
def first_publication(v: ViewArrays, e: int) -> int:
    """Ticks of the next poll or exchange; NEVER if all is known at once, or never."""
    first = v.next_sync[e]
    if v.settings[0].poll > 0:
        for replica in range(v.settings[0].replicas):
            w = router_row(v, e, replica)
            for i in range(v.sources.shape[1]):
                first = min(first, v.sources[w, i].next_poll)
    return first


@kernel
def publish_until(c: ClusterArrays, v: ViewArrays, e: int, time: int) -> None:
    """Let all polls and exchanges up to `time` happen; nothing has changed in the cluster since."""
    if v.settings[0].poll > 0:
        for replica in range(v.settings[0].replicas):
            w = router_row(v, e, replica)
            for i in range(v.sources.shape[1]):
                if v.sources[w, i].next_poll <= time:
                    _poll_until(c, v, e, w, i, time)
    if v.next_sync[e] <= time:
        _exchange(v, e)
        v.next_sync[e] = _next_turn(v.next_sync[e], v.settings[0].load_sync, time)


@kernel
def _next_turn(turn: int, interval: int, time: int) -> int:
    """The first of turn, turn + interval, … after `time`."""
    return turn + ((time - turn) // interval + 1) * interval


@kernel
def _poll_until(c: ClusterArrays, v: ViewArrays, e: int, w: int, i: int, time: int) -> None:
    """Router w's polls of instance i up to `time`, all of which find the same."""
    source, settings = v.sources[w, i], v.settings[0]
    answers = c.journals.silent[e, i] == 0 and c.instances[e, i].phase <= DRAINING
    if settings.jitter == 0 and settings.loss == 0.0:
        if answers:
            poll(c, v, e, w, i)
            _tell_started(c, v, e, w, i, source.next_poll)
        source.next_poll = _next_turn(source.next_poll, settings.poll, time)
        return
    while source.next_poll <= time:
        if answers and uniform(v.keys[w], _draw(v, i, source.polls, 0)) >= settings.loss:
            poll(c, v, e, w, i)
            _tell_started(c, v, e, w, i, source.next_poll)
        source.polls += 1
        source.turn += settings.poll
        source.next_poll = source.turn + _lateness(v, w, i)


@kernel
def _draw(v: ViewArrays, i: int, polls: int, which: int) -> int:
    """The number of a poll's draw in its router's stream: for its loss, or for its lateness."""
    return 2 * (polls * v.sources.shape[1] + i) + which


@kernel
def _lateness(v: ViewArrays, w: int, i: int) -> int:
    """Ticks by which router w's next poll of instance i is late."""
    draw = uniform(v.keys[w], _draw(v, i, v.sources[w, i].polls, 1))
    return int(np.rint(draw * v.settings[0].jitter))


@kernel
def poll(c: ClusterArrays, v: ViewArrays, e: int, w: int, i: int) -> None:
    """Router w reads the engine state of instance i."""
    status, row = c.status[e, i], v.instances[w, i]
    num_blocks = c.limits[settings_row(c, e), i].num_blocks
    if num_blocks == 0:
        return  # there is no such instance
    row.waiting = status.waiting
    row.running = status.running
    row.kv_usage = 1.0 - status.free_blocks / num_blocks
    row.waiting_tokens = status.waiting_tokens
    row.prefilling_tokens = status.prefilling_tokens
    row.throughput = status.throughput * TICKS_PER_SECOND


@kernel
def _tell_started(c: ClusterArrays, v: ViewArrays, e: int, w: int, i: int, time: int) -> None:
    """A poll at tick `time` finds requests in the batch that were not there at the last one."""
    replica = w - router_row(v, e, 0)
    for b in range(c.status[e, i].running):
        q = c.running[e, i, b].flight
        if v.bookings[e, q].started and c.flights[e, q].replica == replica:
            v.bookings[e, q].started = 0
            hear(v, w, i, q, STARTED, time)


@kernel
def _exchange(v: ViewArrays, e: int) -> None:
    """Every router tells the others what it has in flight."""
    for replica in range(v.settings[0].replicas):
        w = router_row(v, e, replica)
        for i in range(v.instances.shape[1]):
            told, row = v.board[w, i], v.instances[w, i]
            told.requests = row.requests
            told.prefill_requests = row.prefill_requests
            told.prefill_tokens = row.prefill_tokens
            told.context_tokens = row.context_tokens
            told.backlog = v.sources[w, i].backlog


@kernel
def reset_reports(v: ViewArrays, e: int) -> None:
    """The k-th of all pairs of an instance and a router is polled from its share of a turn on."""
    settings, num_instances = v.settings[0], v.sources.shape[1]
    v.next_sync[e] = settings.load_sync if settings.load_sync > 0 else NEVER
    pairs = num_instances * settings.replicas
    for replica in range(settings.replicas):
        w = router_row(v, e, replica)
        for i in range(num_instances):
            source, told = v.sources[w, i], v.board[w, i]
            source.polls = 0
            source.backlog = 0
            source.found_lost = 0
            source.turn = settings.poll * (i * settings.replicas + replica) // pairs
            source.next_poll = source.turn + _lateness(v, w, i)
            told.requests = 0
            told.prefill_requests = 0
            told.prefill_tokens = 0
            told.context_tokens = 0
            told.backlog = 0
