"""What SGLang's gateway does since August 2026 in place of its global switch: a gate per request.

Load that is out of balance no longer turns cache affinity off for all requests. The instance that
affinity chose is looked at, and this one request spills from it if it is too busy; the spilled
prefix is remembered at both, so hot prefixes spread.

Source: `routers_sglang_vllm_aibrix_llmd.md` §1.3 (smg#2161, #2182); read in smg
`model_gateway/src/policies/cache_aware.rs` of that month.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import Router
from prefixgym.envs.jit import kernel


class GateSettings(NamedTuple):
    """A `GatedRouter`'s parameters, for kernels."""

    balance_abs_threshold: float
    balance_rel_threshold: float
    balance_token_usage_threshold: float
    overload_token_usage_threshold: float


@dataclass
class GatedRouter(Router):
    """The parameters and rules that the gateway's cache-aware routers share.

    load = this router's requests in flight; "least loaded" is the least of (load, requests ever
    sent there, index) among the available instances.

        spill from i  iff  load_i > balance_rel_threshold · mean load
                      and  load_i > mean load + balance_abs_threshold

    Affinity is given up for all requests only under memory pressure: if the highest KV usage of an
    available instance is above overload_token_usage_threshold, or above the lowest by more than
    balance_token_usage_threshold. Both are 1 by default, which is never exceeded.

    Attributes:
        balance_abs_threshold: requests.
        balance_rel_threshold: ratio.
        balance_token_usage_threshold: share of KV blocks, 0..1.
        overload_token_usage_threshold: share of KV blocks, 0..1.
    """

    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    balance_token_usage_threshold: float = 1.0
    overload_token_usage_threshold: float = 1.0

    def __post_init__(self) -> None:
        self.require("balance_abs_threshold", self.balance_abs_threshold >= 0, "at least 0")
        self.require("balance_rel_threshold", self.balance_rel_threshold >= 0, "at least 0")
        for name in ("balance_token_usage_threshold", "overload_token_usage_threshold"):
            self.require(name, 0 <= getattr(self, name) <= 1, "0 to 1")

    def _settings(self) -> GateSettings:
        return GateSettings(
            float(self.balance_abs_threshold),
            self.balance_rel_threshold,
            self.balance_token_usage_threshold,
            self.overload_token_usage_threshold,
        )


@kernel
def least_loaded(
    instances: NDArray[np.void], sent: NDArray[np.int64], picks: NDArray[np.int64], count: int
) -> int:
    """Of the `count` candidates in `picks` the least of (load, requests `sent` there, index)."""
    best = picks[0]
    for k in range(1, count):
        i = picks[k]
        more = instances[i]["requests"] - instances[best]["requests"]
        if more < 0 or (more == 0 and sent[i] < sent[best]):
            best = i
    return int(best)


@kernel
def spills(
    instances: NDArray[np.void],
    chosen: int,
    picks: NDArray[np.int64],
    count: int,
    settings: GateSettings,
) -> bool:
    """Whether the gate closes for a request to `chosen`."""
    total = 0
    for k in range(count):
        total += instances[picks[k]]["requests"]
    mean, load = total / count, instances[chosen]["requests"]
    return bool(
        load > settings.balance_rel_threshold * mean
        and load > mean + settings.balance_abs_threshold
    )


@kernel
def is_memory_pressed(
    instances: NDArray[np.void], picks: NDArray[np.int64], count: int, settings: GateSettings
) -> bool:
    """Whether KV usage turns affinity off."""
    low, high = np.inf, -np.inf
    for k in range(count):
        usage = instances[picks[k]]["kv_usage"]
        low, high = min(low, usage), max(high, usage)
    return bool(
        high > settings.overload_token_usage_threshold
        or high - low > settings.balance_token_usage_threshold
    )
