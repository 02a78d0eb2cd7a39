"""What happens when a timer goes off: faults, health findings, impatient clients, autoscaling.

The rules are those of `prefixgym.envs.cluster.faults` and `prefixgym.envs.clients`. The index has
heard what instances told before (`prefixgym.envs.knowing`).
"""

import numpy as np

from prefixgym.envs import timers
from prefixgym.envs.clock import NEVER
from prefixgym.envs.cluster.outages import (
    bring_back,
    change_speed,
    fail_hanging,
    flush_cache,
    take_down,
)
from prefixgym.envs.cluster.state import (
    DOWN,
    DRAINING,
    LOST,
    NONE,
    SERVING,
    settings_row,
)
from prefixgym.envs.episode_state import SimulationArrays
from prefixgym.envs.jit import cold_kernel, kernel
from prefixgym.envs.requests import cancel, drop_timer, set_first_timer, set_timer
from prefixgym.envs.view.arrays import router_row

_BY_OUTAGE, _BY_SILENCE = 1, 2
"""Why a publisher is silent: bits of `Journals.silent`."""


@cold_kernel
def begin_incidents(s: SimulationArrays, e: int) -> None:
    """Set the timers of a new episode, whose cluster has been reset; some are not there yet."""
    t = s.timers
    t.serial[e] = 0
    s.episodes[e].num_timers = 0
    s.episodes[e].next_timer = NEVER
    for i in range(t.drains.shape[1]):
        t.drains[e, i] = NONE
        t.starting[e, i] = 0
        if t.autoscaler[0].interval > 0 and i >= t.autoscaler[0].first:
            _begin_absent(s, e, i)
    for k in range(t.faults.size):
        fault = t.faults[k]
        t.taken[e, k] = NONE
        set_timer(s, e, fault.begin, timers.BEGINNING, k, 0)
        ends_on_time = fault.kind != timers.DRAIN and fault.lasts < NEVER
        if ends_on_time:
            set_timer(s, e, fault.begin + fault.lasts, timers.END, k, 0)
        if fault.kind == timers.JOIN:
            _begin_absent(s, e, fault.instance)
    if t.autoscaler[0].interval > 0:
        set_timer(s, e, t.autoscaler[0].interval, timers.AUTOSCALING, 0, 0)


@cold_kernel
def _begin_absent(s: SimulationArrays, e: int, i: int) -> None:
    s.cluster.instances[e, i].phase = DOWN
    s.cluster.journals.silent[e, i] |= _BY_OUTAGE


@cold_kernel
def next_incident(s: SimulationArrays, e: int) -> None:
    """The first timer goes off; everything before it has happened."""
    first = s.timers.due[e, 0]
    time, kind, index, check = first.time, first.kind, first.index, first.check
    drop_timer(s, e, 0)
    if kind == timers.TIMEOUT:
        if s.cluster.flights[e, index].first_token == NEVER:
            cancel(s, e, index, time)
    elif kind == timers.CANCELLATION:
        cancel(s, e, index, time)
    elif kind == timers.BEGINNING:
        _begin(s, e, index, time)
    elif kind == timers.END:
        _end(s, e, index, time)
    elif kind == timers.FINDING:
        _find_lost(s, e, index, check, time)
    elif kind == timers.RECOVERY:
        _find_back(s, e, index, check)
    elif kind == timers.AUTOSCALING:
        _scale(s, e, time)
    elif s.cluster.instances[e, index].epoch == check:
        if kind == timers.GRACE and s.cluster.instances[e, index].phase == DRAINING:
            _leave(s, e, index, time)
        elif kind == timers.RETURN and s.cluster.instances[e, index].phase == DOWN:
            _serve(s, e, index, time)


# --- faults -----------------------------------------------------------------------------------


@cold_kernel
def _begin(s: SimulationArrays, e: int, k: int, time: int) -> None:
    """Fault k begins, if it can."""
    c, fault = s.cluster, s.timers.faults[k]
    i = fault.instance
    if c.limits[settings_row(c, e), i].num_blocks == 0:
        return  # this episode has no such instance
    is_there = c.instances[e, i].phase <= DRAINING
    if fault.kind == timers.RESTART and is_there:
        _go_down(s, e, i, time, DOWN)
        s.timers.taken[e, k] = c.instances[e, i].epoch
    elif fault.kind == timers.CRASH and is_there:
        _go_down(s, e, i, time, LOST)
        s.timers.taken[e, k] = c.instances[e, i].epoch
        _expect_findings(s, e, i, time)
    elif fault.kind == timers.DRAIN and c.instances[e, i].phase == SERVING:
        _drain(s, e, i, time, k, fault.grace)
    elif fault.kind == timers.JOIN and c.instances[e, i].phase == DOWN:
        _serve(s, e, i, time)
    elif fault.kind == timers.SLOW:
        change_speed(c, e, i, time, fault.factor)
    elif fault.kind == timers.FLUSH and is_there:
        flush_cache(c, e, i, time)
    elif fault.kind == timers.SILENCE:
        c.journals.silent[e, i] |= _BY_SILENCE


@cold_kernel
def _end(s: SimulationArrays, e: int, k: int, time: int) -> None:
    """Fault k is over, if it began and nothing else has ended it."""
    c, fault = s.cluster, s.timers.faults[k]
    i = fault.instance
    if fault.kind == timers.SLOW:
        change_speed(c, e, i, time, 1.0)
    elif fault.kind == timers.SILENCE:
        c.journals.silent[e, i] &= ~_BY_SILENCE
    elif s.timers.taken[e, k] == c.instances[e, i].epoch:
        if c.instances[e, i].phase == DOWN:
            _serve(s, e, i, time)
        elif c.instances[e, i].phase == LOST:
            _reappear(s, e, i, time)


@cold_kernel
def _go_down(s: SimulationArrays, e: int, i: int, time: int, phase: int) -> None:
    """Instance i ends: known to everybody (DOWN), or to nobody yet (LOST)."""
    take_down(s.cluster, e, i, time, phase)
    s.cluster.journals.silent[e, i] |= _BY_OUTAGE
    if phase == DOWN:
        for replica in range(s.knowledge.settings[0].replicas):
            _mark_down(s, e, replica, i)


@cold_kernel
def _serve(s: SimulationArrays, e: int, i: int, time: int) -> None:
    """Instance i is there again, and everybody knows."""
    _come_back(s, e, i, time)
    for replica in range(s.knowledge.settings[0].replicas):
        s.knowledge.instances[router_row(s.knowledge, e, replica), i].available = 1


@cold_kernel
def _reappear(s: SimulationArrays, e: int, i: int, time: int) -> None:
    """Instance i is there again. Those who had found it down notice at their next check."""
    c, v = s.cluster, s.knowledge
    _come_back(s, e, i, time)
    for replica in range(v.settings[0].replicas):
        w = router_row(v, e, replica)
        if not v.instances[w, i].available:
            check = _first_check(s, e, i, replica, time)
            set_timer(s, e, check, timers.RECOVERY, _pair(s, i, replica), c.instances[e, i].epoch)


@cold_kernel
def _come_back(s: SimulationArrays, e: int, i: int, time: int) -> None:
    s.cluster.journals.silent[e, i] &= ~_BY_OUTAGE
    s.timers.starting[e, i] = 0
    bring_back(s.cluster, e, i, time)


@cold_kernel
def _drain(s: SimulationArrays, e: int, i: int, time: int, k: int, grace: int) -> None:
    """Instance i gets no more requests, and leaves when it has none."""
    instance = s.cluster.instances[e, i]
    instance.phase = DRAINING
    s.timers.drains[e, i] = k
    for replica in range(s.knowledge.settings[0].replicas):
        s.knowledge.instances[router_row(s.knowledge, e, replica), i].available = 0
    set_timer(s, e, time + grace, timers.GRACE, i, instance.epoch)
    note_empty(s, e, i, time)


@kernel
def note_empty(s: SimulationArrays, e: int, i: int, time: int) -> None:
    """A draining instance that has no requests any more leaves now, at the end of its grace.

    By a timer, so that the index first hears what the instance has told; the next one of all, so
    that whatever else happens at this instant finds it gone.
    """
    instance, status = s.cluster.instances[e, i], s.cluster.status[e, i]
    if instance.phase == DRAINING and status.running == 0 and status.waiting == 0:
        set_first_timer(s, e, time, timers.GRACE, i, instance.epoch)


@cold_kernel
def _leave(s: SimulationArrays, e: int, i: int, time: int) -> None:
    """A draining instance leaves, with or without its requests."""
    _go_down(s, e, i, time, DOWN)
    k = s.timers.drains[e, i]
    if k != NONE and s.timers.faults[k].lasts < NEVER:
        check = s.cluster.instances[e, i].epoch
        set_timer(s, e, time + s.timers.faults[k].lasts, timers.RETURN, i, check)


# --- health -----------------------------------------------------------------------------------


@kernel
def _pair(s: SimulationArrays, i: int, replica: int) -> int:
    """A number for an instance and a router."""
    return i * s.knowledge.settings[0].replicas + replica


@cold_kernel
def _first_check(s: SimulationArrays, e: int, i: int, replica: int, time: int) -> int:
    """The first health check of instance i by a router at or after `time`."""
    settings = s.knowledge.settings[0]
    pairs = s.cluster.status.shape[1] * settings.replicas
    phase = settings.health * _pair(s, i, replica) // pairs
    passed = max(0, time - phase)
    return phase + (passed + settings.health - 1) // settings.health * settings.health


@cold_kernel
def _expect_findings(s: SimulationArrays, e: int, i: int, time: int) -> None:
    """Instance i is lost; each router finds out when so many checks in a row have failed."""
    settings, check = s.knowledge.settings[0], s.cluster.instances[e, i].epoch
    for replica in range(settings.replicas):
        first = _first_check(s, e, i, replica, time + 1)
        found = first + (settings.failures - 1) * settings.health
        set_timer(s, e, found, timers.FINDING, _pair(s, i, replica), check)


@cold_kernel
def _find_lost(s: SimulationArrays, e: int, pair: int, check: int, time: int) -> None:
    """A router finds an instance down: what it sent there has failed."""
    i, replica = divmod(pair, s.knowledge.settings[0].replicas)
    instance = s.cluster.instances[e, i]
    if instance.phase == LOST and instance.epoch == check:
        _mark_down(s, e, replica, i)
        w = router_row(s.knowledge, e, replica)
        s.knowledge.sources[w, i].found_lost = instance.epoch
        fail_hanging(s.cluster, e, i, replica, time)


@cold_kernel
def _find_back(s: SimulationArrays, e: int, pair: int, check: int) -> None:
    """A router finds an instance up again."""
    i, replica = divmod(pair, s.knowledge.settings[0].replicas)
    instance = s.cluster.instances[e, i]
    if instance.phase == SERVING and instance.epoch == check:
        s.knowledge.instances[router_row(s.knowledge, e, replica), i].available = 1


@cold_kernel
def _mark_down(s: SimulationArrays, e: int, replica: int, i: int) -> None:
    v = s.knowledge
    w = router_row(v, e, replica)
    v.instances[w, i].available = 0
    v.forgotten[w, i] = v.settings[0].indexed and v.settings[0].forget_down


# --- autoscaling ------------------------------------------------------------------------------


@cold_kernel
def _scale(s: SimulationArrays, e: int, time: int) -> None:
    """One instance more or less, see `Autoscaler`."""
    c, t, scaler = s.cluster, s.timers, s.timers.autoscaler[0]
    serving, requests, last, absent = 0, 0, NONE, NONE
    for i in range(c.status.shape[1]):
        if c.limits[settings_row(c, e), i].num_blocks == 0:
            continue  # this episode has no such instance
        if c.instances[e, i].phase == SERVING:
            serving += 1
            requests += c.status[e, i].running + c.status[e, i].waiting
            last = i
        elif absent == NONE and c.instances[e, i].phase == DOWN and not t.starting[e, i]:
            absent = i
    load = requests / serving if serving > 0 else np.inf
    if load > scaler.high:
        if absent != NONE:
            t.starting[e, absent] = 1
            check = c.instances[e, absent].epoch
            set_timer(s, e, time + scaler.startup, timers.RETURN, absent, check)
    elif load < scaler.low and serving > scaler.least:
        _drain(s, e, last, time, NONE, scaler.grace)
    set_timer(s, e, time + scaler.interval, timers.AUTOSCALING, 0, 0)
