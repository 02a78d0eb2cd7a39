"""The state of episodes: where they are, what requests must meet, what came of them.

`SimulationArrays` is everything that a kernel may need.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster import state
from prefixgym.envs.credit import CreditArrays
from prefixgym.envs.timers import TimerArrays
from prefixgym.envs.view import arrays as view_arrays

EPISODE = np.dtype(
    [
        ("now", np.int64),  # ticks: arrival of the current request
        ("next_publication", np.int64),  # ticks
        ("next_departure", np.int64),  # ticks: of what the router holds back
        ("next_timer", np.int64),  # ticks
        ("reached", np.int64),  # ticks up to which everything has happened, if it is halted
        ("client_key", np.uint64),  # of what clients draw
        ("num_requests", np.int32),  # rows of the tape
        ("cursor", np.int32),  # first root of the tape that has not arrived
        ("row", np.int32),  # current request, NO_ROW when all have been routed
        ("flight", np.int32),  # its record if it was sent before, else NONE
        ("replica", np.int32),  # the router that it has reached
        ("num_pending", np.int32),  # follow-ups and retries whose arrival is known
        ("num_timers", np.int32),
        ("num_held", np.int32),  # requests that the router holds back
        ("num_ids", np.int32),  # block ids of the current request in the view
        ("instant_follow_ups", np.int32),  # 1 if some follow-up of the tape has no think time
        ("more", np.int32),  # 1 if further rows are to be loaded once the last root is current
        ("unseen", np.int32),  # 1 if decisions are fixed in advance: no view is kept
        (
            "halted",
            np.int32,
        ),  # 1 if it must go on before the next decision, see `decisions.CONTINUE`
        ("closed", np.int32),  # 1 if nothing arrives any more, see `envs/forks.py`
        ("decisions", np.int32),
        ("ended", np.int32),  # requests that finished or were rejected
        ("good", np.int32),  # of those since the last decision, how many met their objectives
        ("done", np.int32),
    ],
    align=True,
)

OBJECTIVE = np.dtype(
    [("ttft", np.int64), ("ttft_per_token", np.int64), ("tpot", np.int64)], align=True
)
"""Ticks: TTFT ≤ ttft + ttft_per_token · prompt tokens; TPOT ≤ tpot."""

OUTCOME = np.dtype(
    [
        ("arrival", np.float64),  # s since the episode's start
        ("ttft", np.float64),  # s, NaN without an answer
        ("tpot", np.float64),  # s per token after the first; 0 for single-token answers, or none
        ("end", np.float64),  # s since the episode's start
        ("prompt_tokens", np.int32),
        ("output_tokens", np.int32),
        ("hit_tokens", np.int32),  # found cached when the request was admitted first
        ("instance", np.int32),  # where it was prefilled; NONE if the router turned it away
        ("decoder", np.int32),  # where it was decoded, or would have been
        ("session", np.int32),
        ("slo_class", np.int32),
        ("row", np.int32),  # of the tape
        ("status", np.int32),  # FINISHED, REJECTED, FAILED or CANCELLED, see `cluster.state`
        ("attempts", np.int32),  # how often its client sent it
        ("replica", np.int32),  # the router that sent it to `instance`, or turned it away
        ("good", np.int32),  # 1 if the request met its objectives
    ],
    align=True,
)


class SimulationArrays(NamedTuple):
    """Everything that a kernel may need. E environments, R requests an episode, U runs."""

    cluster: state.ClusterArrays
    knowledge: view_arrays.ViewArrays
    frontend: NDArray[np.int64]  # [1], ticks of latency outside the engine
    objectives: NDArray[np.void]  # OBJECTIVE [E, slo classes]
    tapes: NDArray[np.void]  # REQUEST [E, R]; `waits_for` counts down
    runs: NDArray[np.void]  # RUN [E, U]
    episodes: NDArray[np.void]  # EPISODE [E]
    pending: NDArray[np.void]  # DUE [E, P]: arrivals, by row; their flights if sent before
    timers: TimerArrays
    outcomes: NDArray[np.void]  # OUTCOME [E, R], or [E, 0] if not recorded
    credit: CreditArrays
