"""What a router sees at a decision: raw quantities under names, in SI units, batch first.

Nothing here is truth that has not reached the router: responses (first token, end) count at once,
cache contents and engine state as of the last report.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.spec import ClusterSpec

REQUEST_VIEW = np.dtype(
    [
        ("time", np.float64),  # s since the episode's start: arrival of this request, and now
        ("gap", np.float64),  # s since the previous decision (0 at the first)
        ("prompt_tokens", np.int64),
        ("num_blocks", np.int64),  # ids in `View.block_ids` that are this prompt's
        ("session", np.int64),
        ("slo_class", np.int64),
        ("slo_ttft", np.float64),  # s, this request's objective
        ("slo_tpot", np.float64),  # s per token
        ("index", np.int64),  # decision number within the episode, from 0
        ("slot", np.int64),  # its number in `View.events` while in flight; reused after its end
        ("attempt", np.int64),  # how often its client has sent it before, in vain
        ("replica", np.int64),  # which of the routers side by side it has reached
    ],
    align=True,
)

INSTANCE_VIEW = np.dtype(
    [
        # 1 if the router may send this request here; 0 if it believes that the instance is down
        ("available", np.int64),
        # cache index, as of the last report that arrived
        ("hit_tokens", np.int64),  # leading prompt tokens cached there, < prompt_tokens
        (
            "prefill_seconds",
            np.float64,
        ),  # time to prefill the rest, alone in a step, by its profile
        # ledger: the router's own in-flight requests there
        ("requests", np.int64),  # routed and not ended
        ("prefill_requests", np.int64),  # of those, without a first token
        ("prefill_tokens", np.int64),  # uncached tokens booked for those without a first token
        ("backlog_seconds", np.float64),  # prefill_seconds booked for those without a first token
        ("context_tokens", np.int64),  # prompt tokens of all in flight
        # telemetry, as of the last poll
        ("waiting", np.int64),  # requests queued in the engine
        ("running", np.int64),  # requests in the engine's batch
        ("kv_usage", np.float64),  # share of blocks in use by running requests, 0..1
        ("waiting_tokens", np.int64),  # prompt tokens to compute, as booked, of those waiting
        ("prefilling_tokens", np.int64),  # prompt tokens still to compute of those running
        # output tokens/s when so many decoded first, or of a step with prefill; 0 when idle
        ("throughput", np.float64),
        # experience: what the router booked and heard there lately, see `envs/view/experience.py`
        ("recent_prefill_seconds", np.float64),  # prefill booked
        ("recent_booked_seconds", np.float64),  # backlog + prefill booked, of those that answered
        ("recent_wait_seconds", np.float64),  # from routing to the first token, of the same
        ("recent_tokens", np.float64),  # output tokens after the first, of those that finished
        ("recent_decode_seconds", np.float64),  # from first to last token, of the same
        # the router's own queue, see HOLD
        ("held", np.int64),  # requests held back for this instance
        ("held_since", np.float64),  # s, when the first of them was routed; 0 if there is none
    ],
    align=True,
)

DISPATCHED, STARTED, FIRST_TOKEN, ENDED, FAILED, CANCELLED, PREFILLED = range(7)
"""What a router hears of a request that it routed: it left the router (at once, unless it was
held), the engine admitted it into its batch (telemetry, so known at the next poll, and never if it
ended before), it has answered, it is over: by itself, because its instance is down, or because its
client has gone. Of a failed one it hears again, as of a new request, if its client tries again.
PREFILLED: what is to be decoded elsewhere has left this instance; all that follows comes from the
other one."""

EVENT_VIEW = np.dtype(
    [
        ("time", np.float64),  # s, when the router heard of it
        ("slot", np.int32),  # `slot` of the request when it was routed
        ("instance", np.int32),
        ("kind", np.int32),  # DISPATCHED, STARTED, FIRST_TOKEN, ENDED, FAILED or CANCELLED
    ],
    align=True,
)

HOLD = np.dtype(
    [
        ("release", np.float64),  # s: what was routed there leaves at this time, at once if past
        ("size", np.int32),  # most requests that leave together as one batch; 0: any number
        ("most_batches", np.int32),  # batches without all first tokens there at once; 0: any number
    ],
    align=True,
)
"""A router's orders for what it routes to one instance: hold it back, let it leave in batches.

Requests leave in the order of their routing. Orders stand until the router changes them, and apply
to all that is held. Orders that would hold a request for ever are void when nothing else can
happen any more.
"""

MOST_BATCHES = 16
"""Largest `most_batches`."""


@dataclass
class View:
    """One decision in each of E environments with N instances.

    Attributes:
        cluster: the fixed description of the instances.
        requests: REQUEST_VIEW records, shape [E].
        block_ids: prefix ids of the prompt's blocks, int64 [E, B]; row e holds
            `requests["num_blocks"][e]` ids, the rest is -1. The last block may be partial.
        instances: INSTANCE_VIEW records, shape [E, N].
        events: EVENT_VIEW records, shape [E, K]: what the router heard since the last decision, in
            order of time, in the first `num_events` places of a row.
        num_events: int64 [E].
        holds: HOLD records, shape [E, N]; the one thing here that a router may write. Zeros at an
            episode's start: nothing is held.
        num_slots: requests have slots 0 … num_slots - 1; may grow, never shrinks.

    With several routers side by side everything is as the one knows it that the request has
    reached (`requests["replica"]`), and its events are those since its own last decision.

    The arrays are overwritten by the next decision; copy what must last. An environment whose
    episode is over goes on showing its last decision, without events; what is decided there has no
    effect.
    """

    cluster: ClusterSpec
    requests: NDArray[np.void]
    block_ids: NDArray[np.int64]
    instances: NDArray[np.void]
    events: NDArray[np.void]
    num_events: NDArray[np.int64]
    holds: NDArray[np.void]
    num_slots: int

    @property
    def num_envs(self) -> int:
        """E."""
        return len(self.requests)

    @property
    def available(self) -> NDArray[np.bool_]:
        """Instances that may be chosen, bool [E, N]."""
        available: NDArray[np.bool_] = self.instances["available"] != 0
        return available
