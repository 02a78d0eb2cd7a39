"""A frame: what a person is shown of one environment at one decision, as plain numbers.

A person may see more than a router: queues and KV memory are the truth of this moment, while hits
and predicted times are what the router is told (`View`), so that its choice can be understood.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RECENT = 24
"""Ended requests of an instance whose fate is shown one by one."""

GOOD, MISSED, NOTHING = 1, 0, -1
"""Values of `Frame.recent`."""


@dataclass(frozen=True)
class ShownRequest:
    """The request that waits for a decision.

    Attributes:
        index: decision number within the episode, from 0.
        session: its session.
        prompt_tokens: length of its prompt.
        gap: s since the previous arrival.
        slo_ttft: s, its objective.
        slo_tpot: s per token, its objective.
    """

    index: int
    session: int
    prompt_tokens: int
    gap: float
    slo_ttft: float
    slo_tpot: float


@dataclass(frozen=True)
class ShownDecision:
    """The decision taken last: of the shown request, or of the one before it.

    Attributes:
        index: number of the decision.
        instance: where the request went; None if the router turned it away.
        prompt_tokens: length of its prompt.
        hit_tokens: cached prefix on that instance, as the router was told.
        best_hit_tokens: longest cached prefix on any instance, as the router was told.
    """

    index: int
    instance: int | None
    prompt_tokens: int
    hit_tokens: int
    best_hit_tokens: int


@dataclass(frozen=True)
class Totals:
    """The episode so far, over requests that have ended; NaN where there is none to tell.

    Attributes:
        ended: requests that finished or were rejected.
        good: of those, how many met their objectives.
        goodput: `good` / s since the episode's start.
        attainment: `good` / `ended`.
        ttft_p50, ttft_p99: s.
        tpot_p99: s per token, of requests with at least two output tokens.
        hit_rate: cached / prompt tokens of finished requests.
    """

    ended: int
    good: int
    goodput: float
    attainment: float
    ttft_p50: float
    ttft_p99: float
    tpot_p99: float
    hit_rate: float


@dataclass(frozen=True)
class Frame:
    """One environment at one moment, with N instances; no array is shared with the simulation.

    Attributes:
        title: what is played, in a few words.
        time: s since the episode's start.
        decisions: requests routed so far.
        num_requests: requests of the episode.
        profiles: the instances' profiles, N names.
        request: the request that waits for a decision; None once the episode is over.
        decision: the decision taken last; None before the first.
        totals: the episode so far.
        available: bool [N], may be chosen.
        waiting: int64 [N], requests queued in the engine.
        running: int64 [N], requests in its batch.
        kv_used: float64 [N], share of KV blocks that running requests use.
        kv_cached: float64 [N], share that no one uses but later requests may find, or evict.
        hit: float64 [N], share of the request's prompt that is cached there, as the router is told.
        backlog: float64 [N], s of prefill that the router has booked there.
        prefill: float64 [N], s to prefill what is not cached of the request.
        routed: int64 [N], requests sent there so far.
        missed: int64 [N], ended requests that missed an objective.
        hit_rate: float64 [N], cached / prompt tokens of requests finished there, NaN without any.
        recent: int8 [N, RECENT], fate of the requests that ended there last, oldest first: GOOD,
            MISSED, or NOTHING in front of them.
    """

    title: str
    time: float
    decisions: int
    num_requests: int
    profiles: tuple[str, ...]
    request: ShownRequest | None
    decision: ShownDecision | None
    totals: Totals
    available: NDArray[np.bool_]
    waiting: NDArray[np.int64]
    running: NDArray[np.int64]
    kv_used: NDArray[np.float64]
    kv_cached: NDArray[np.float64]
    hit: NDArray[np.float64]
    backlog: NDArray[np.float64]
    prefill: NDArray[np.float64]
    routed: NDArray[np.int64]
    missed: NDArray[np.int64]
    hit_rate: NDArray[np.float64]
    recent: NDArray[np.int8]

    @property
    def labels(self) -> tuple[str, ...]:
        """What tells the instances' profiles apart, N words; empty where all are the same."""
        parts = [name.split("/") for name in self.profiles]
        differing = [k for k in range(len(parts[0])) if len({part[k] for part in parts}) > 1]
        return tuple(" ".join(part[k] for k in differing) for part in parts)
