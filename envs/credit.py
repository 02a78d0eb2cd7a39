"""What rewards need to know of requests besides how many were good.

Lateness, whose requests have ended, and what is promised of those in flight: each is kept only if
`Credit` asks for it, so that a simulation without need of it pays nothing.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.state import FINISHED
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.memory import widened

PROMISE = 1 << 20
"""One whole promised request. Promises are summed in whole numbers, so that none is exactly 0."""

CREDIT = np.dtype(
    [
        ("cap", np.float64),  # most tardiness of one request
        ("tardiness", np.float64),  # summed over requests that ended since the last decision
        ("promised", np.int64),  # summed over requests in flight, in units of 1 / PROMISE
        ("promised_before", np.int64),  # the same at the last decision
        ("num_settled", np.int64),  # requests that ended since the last decision
    ],
    align=True,
)

SETTLED = np.dtype(
    [("decision", np.int32), ("good", np.int32), ("tardiness", np.float64)], align=True
)
"""A request that has ended: the number of the decision that sent it off, and what came of it."""


@dataclass(frozen=True)
class Credit:
    """What a simulation keeps for a reward.

    Attributes:
        tardiness_cap: most tardiness of one request; 0 keeps no tardiness.
        attribution: keep which decisions the requests belong to that ended.
        promises: keep how many of the requests in flight are expected to be in time.
    """

    tardiness_cap: float = 0.0
    attribution: bool = False
    promises: bool = False

    @property
    def anything(self) -> bool:
        """Whether anything is kept at all."""
        return self.tardiness_cap > 0 or self.attribution or self.promises


class CreditArrays(NamedTuple):
    """E environments, Q flights; what is not kept has no rows or no columns."""

    environments: NDArray[np.void]  # CREDIT [E or 0]
    settled: NDArray[np.void]  # SETTLED [E, Q or 0]: the first `num_settled` count
    promises: NDArray[np.int64]  # [E, Q or 0], in units of 1 / PROMISE


def allocate(credit: Credit, num_envs: int, num_flights: int) -> CreditArrays:
    """Arrays for what `credit` asks for; `reset_credit` must run before their first use."""
    environments = np.zeros(num_envs if credit.anything else 0, CREDIT)
    environments["cap"] = credit.tardiness_cap
    return CreditArrays(
        environments,
        np.zeros((num_envs, num_flights if credit.attribution else 0), SETTLED),
        np.zeros((num_envs, num_flights if credit.promises else 0), np.int64),
    )


def grow(arrays: CreditArrays, num_flights: int) -> CreditArrays:
    """The same with room for more flights."""
    kept = {name: getattr(arrays, name) for name in ("settled", "promises")}
    return arrays._replace(
        **{name: widened(rows, num_flights) for name, rows in kept.items() if rows.shape[1] > 0}
    )


@kernel
def reset_credit(c: CreditArrays, e: int) -> None:
    """Nothing in flight, nothing ended."""
    if c.environments.size > 0:
        c.environments[e].promised = 0
        open_account(c, e)


@kernel
def open_account(c: CreditArrays, e: int) -> None:
    """A decision is about to be taken: what ended before it has been paid."""
    if c.environments.size > 0:
        credit = c.environments[e]
        credit.tardiness = 0.0
        credit.num_settled = 0
        credit.promised_before = credit.promised


@kernel
def keeps_promises(c: CreditArrays) -> bool:
    """Whether promises are kept."""
    return c.promises.shape[1] > 0


@kernel
def predicted_promise(ttft: int, objective: int) -> int:
    """The promise of a request whose TTFT is predicted; it and its objective in ticks.

    min(1, max(0, 2 − TTFT / objective)): whole up to the objective, nothing from twice of it on.
    """
    return int(np.rint(PROMISE * min(1.0, max(0.0, 2.0 - ttft / objective))))


@kernel
def promise_nothing(c: CreditArrays, e: int, q: int) -> None:
    """Flight q is new."""
    if keeps_promises(c):
        c.promises[e, q] = 0


@kernel
def change_promise(c: CreditArrays, e: int, q: int, promise: int) -> None:
    """Flight q now has this promise instead of its old one."""
    c.environments[e].promised += promise - c.promises[e, q]
    c.promises[e, q] = promise


@kernel
def settle(
    c: CreditArrays,
    e: int,
    flight: Record,
    ttft: int,
    ttft_objective: int,
    decoding: int,
    tpot_objective: int,
    good: bool,
) -> None:
    """A request has ended, `decoding` ticks after its first token, which took `ttft` ticks.

    Its tardiness is min(cap, max(0, TTFT / S_TTFT − 1, TPOT / S_TPOT − 1)): by how much it missed
    the objective that it missed most. It is 0 for good requests alone, and the cap for one that was
    rejected, failed or was cancelled.
    """
    if c.environments.size == 0:
        return
    credit, tardiness = c.environments[e], 0.0
    if not good:
        tardiness = credit.cap
        if flight.status == FINISHED:
            tokens = flight.output_tokens - 1
            late = max(ttft / ttft_objective - 1.0, 0.0)
            if tokens > 0:
                late = max(late, decoding / (tpot_objective * tokens) - 1.0)
            tardiness = min(tardiness, late)
    credit.tardiness += tardiness
    if c.settled.shape[1] > 0:
        settled = c.settled[e, credit.num_settled]
        settled.decision = flight.decision
        settled.good = good
        settled.tardiness = tardiness
    credit.num_settled += 1
