"""A tape's requests in order of time, each at an absolute time: what all statistics start from.

Statistics of a trace look at what was asked, without a cluster: there a follow-up of a closed loop
has no time of its own, as that hangs on the router. It is placed where a fixed service would put
it: think time after its parent's arrival plus `FIRST_TOKEN` + `PER_TOKEN` · output tokens. Shares,
lengths, turns and the hits of an infinite cache hardly depend on this; gaps and the LRU curve do.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import to_seconds, to_ticks
from prefixgym.envs.jit import kernel
from prefixgym.envs.workload.statistics.previous import previous
from prefixgym.envs.workload.tape import NO_ROW, RUN, Tape

FIRST_TOKEN = 2.5
PER_TOKEN = 0.014
"""Service assumed between a request and its follow-up, in s: Claude Code sessions have a median
time to the first token of 2.5 s, and take 5.5 s for a median output of 215 (`traces.md` §3.6)."""


@dataclass(frozen=True)
class Timeline:
    """Requests in order of time.

    Attributes:
        tape: the requests [R], without links; arrivals are absolute and ascend, and the runs hold
            the ids of prompts alone, not those of blocks that only decoding fills.
        parent: row of the request that each one follows, NO_ROW if none or not known, [R].
        think_time: s from the end of that to the arrival, where the tape states it, else nan, [R].
        side: whether it is of a branch that a later request waits for: a sub-agent's call, [R].
        states_sessions: whether the tape says which requests belong together.
        closed_loop: whether some arrivals hang on the service, which is assumed here.
    """

    tape: Tape
    parent: NDArray[np.int64]
    think_time: NDArray[np.float64]
    side: NDArray[np.bool_]
    states_sessions: bool
    closed_loop: bool


@kernel
def _place(
    requests: NDArray[np.void], service: NDArray[np.int64], arrival: NDArray[np.int64]
) -> None:
    """Fill `arrival` [R] with absolute ticks; it comes in as zeros."""
    for row in range(requests.size):
        # So far `arrival` holds the last of the ends that this row waits for.
        parent = requests[row].parent
        if parent != NO_ROW:
            arrival[row] = max(arrival[row], arrival[parent] + service[parent])
        arrival[row] += requests[row].arrival
        then = requests[row].then
        if then != NO_ROW:
            arrival[then] = max(arrival[then], arrival[row] + service[row])


@kernel
def _mark_sides(
    requests: NDArray[np.void], joined: NDArray[np.bool_], side: NDArray[np.bool_]
) -> None:
    """Fill `side` [R]; `joined` [R] and `side` come in as zeros."""
    for row in range(requests.size):
        if requests[row].waits_for > 1:
            joined[requests[row].parent] = True
    for row in range(requests.size):
        parent = requests[row].parent
        if parent != NO_ROW:
            side[row] = side[parent] or (joined[parent] and requests[row].waits_for == 1)


def timeline(tape: Tape) -> Timeline:
    """The requests of `tape` in order of time; rows that arrive together keep their order."""
    requests = tape.requests
    arrival = np.zeros(len(requests), np.int64)
    service = to_ticks(FIRST_TOKEN + PER_TOKEN * requests["output_tokens"])
    _place(requests, service, arrival)
    side = np.zeros(len(requests), np.bool_)
    _mark_sides(requests, np.zeros(len(requests), np.bool_), side)
    order = np.argsort(arrival, kind="stable")

    closed_loop = bool(np.any(requests["parent"] != NO_ROW))
    states_sessions = closed_loop or len(np.unique(requests["session"])) < len(requests)
    if closed_loop:
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        parent = requests["parent"][order].astype(np.int64)
        parent[parent != NO_ROW] = position[parent[parent != NO_ROW]]
    else:
        parent = previous(requests["session"][order])

    requests = requests[order]
    follow_up = requests["parent"] != NO_ROW
    think_time = np.where(follow_up, to_seconds(requests["arrival"]), np.nan)
    requests["arrival"] = arrival[order]
    for link in ("parent", "first_child", "next_sibling", "then"):
        requests[link] = NO_ROW
    requests["waits_for"] = 0
    return Timeline(
        _prompts_only(Tape(requests, tape.runs, tape.block_size)),
        parent,
        think_time,
        side[order],
        states_sessions,
        closed_loop,
    )


def _prompts_only(tape: Tape) -> Tape:
    """The same requests, their runs cut to `num_blocks` ids each and laid out row by row."""
    requests = tape.requests.copy()
    num_runs = requests["num_runs"].astype(np.int64)
    row_start = np.cumsum(num_runs) - num_runs
    within = np.arange(num_runs.sum()) - np.repeat(row_start, num_runs)
    runs = tape.runs[np.repeat(requests["first_run"], num_runs) + within]
    passed = np.concatenate([[0], np.cumsum(runs["count"])])
    before = passed[:-1] - np.repeat(passed[row_start], num_runs)  # ids before it in its request
    left = np.repeat(requests["num_blocks"].astype(np.int64), num_runs) - before
    kept = left > 0
    cut = np.empty(int(kept.sum()), RUN)
    cut["start"] = runs["start"][kept]
    cut["count"] = np.minimum(runs["count"], left)[kept]
    row = np.repeat(np.arange(len(requests)), num_runs)[kept]
    requests["num_runs"] = np.bincount(row, minlength=len(requests))
    requests["first_run"] = np.cumsum(requests["num_runs"]) - requests["num_runs"]
    full_blocks = requests["prompt_tokens"] // tape.block_size
    requests["cacheable_blocks"] = np.minimum(requests["num_blocks"], full_blocks)
    return Tape(requests, cut, tape.block_size)
