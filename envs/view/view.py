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
    ],
    align=True,
)

INSTANCE_VIEW = np.dtype(
    [
        ("available", np.int64),  # 1 if the router may send this request here, else 0
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
    ],
    align=True,
)


@dataclass
class View:
    """One decision in each of E environments with N instances.

    Attributes:
        cluster: the fixed description of the instances.
        requests: REQUEST_VIEW records, shape [E].
        block_ids: prefix ids of the prompt's blocks, int64 [E, B]; row e holds
            `requests["num_blocks"][e]` ids, the rest is -1. The last block may be partial.
        instances: INSTANCE_VIEW records, shape [E, N].

    The arrays are overwritten by the next decision; copy what must last.
    """

    cluster: ClusterSpec
    requests: NDArray[np.void]
    block_ids: NDArray[np.int64]
    instances: NDArray[np.void]

    @property
    def num_envs(self) -> int:
        """E."""
        return len(self.requests)

    @property
    def available(self) -> NDArray[np.bool_]:
        """Instances that may be chosen, bool [E, N]."""
        available: NDArray[np.bool_] = self.instances["available"] != 0
        return available
