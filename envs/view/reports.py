"""What instances tell the router, and when: cache reports and telemetry polls."""

from prefixgym.envs.clock import NEVER, TICKS_PER_SECOND
from prefixgym.envs.cluster.block_index import report_changes
from prefixgym.envs.cluster.state import ClusterArrays, settings_row
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.arrays import ViewArrays
from prefixgym.envs.view.ledger import hear
from prefixgym.envs.view.view import STARTED


@kernel
def first_publication(v: ViewArrays, e: int) -> int:
    """Ticks of the next report or poll of any instance; NEVER if all knowledge is immediate."""
    first = NEVER
    for i in range(v.sources.shape[1]):
        first = min(first, v.sources[e, i].next_report, v.sources[e, i].next_poll)
    return first


@kernel
def publish_until(c: ClusterArrays, v: ViewArrays, e: int, time: int) -> None:
    """Let all reports and polls up to `time` happen; nothing has changed in the cluster since."""
    for i in range(v.sources.shape[1]):
        source = v.sources[e, i]
        if source.next_report <= time:
            report_changes(c, e, i)
            source.next_report = _next_turn(source.next_report, v.intervals[0].report, time)
        if source.next_poll <= time:
            poll(c, v, e, i)
            _tell_started(c, v, e, i, source.next_poll)
            source.next_poll = _next_turn(source.next_poll, v.intervals[0].poll, time)


@kernel
def _next_turn(turn: int, interval: int, time: int) -> int:
    """The first of turn, turn + interval, … after `time`."""
    return turn + ((time - turn) // interval + 1) * interval


@kernel
def poll(c: ClusterArrays, v: ViewArrays, e: int, i: int) -> None:
    """Read the engine state of instance i."""
    status, row = c.status[e, i], v.instances[e, i]
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
def _tell_started(c: ClusterArrays, v: ViewArrays, e: int, i: int, time: int) -> None:
    """A poll at tick `time` finds requests in the batch that were not there at the last one."""
    for b in range(c.status[e, i].running):
        q = c.running[e, i, b].flight
        if v.bookings[e, q].started:
            v.bookings[e, q].started = 0
            hear(v, e, i, q, STARTED, time)


@kernel
def reset_reports(v: ViewArrays, e: int) -> None:
    """Instance i of N starts its turns at i/N of an interval; 0 intervals have no turns."""
    num_instances = v.sources.shape[1]
    report, interval = v.intervals[0].report, v.intervals[0].poll
    for i in range(num_instances):
        v.sources[e, i].next_report = report * i // num_instances if report > 0 else NEVER
        v.sources[e, i].next_poll = interval * i // num_instances if interval > 0 else NEVER
        v.sources[e, i].backlog = 0
