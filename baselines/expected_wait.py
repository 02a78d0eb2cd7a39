"""Expected wait: work that an engine reported plus what was sent there since, over its speed.

Source: `routers_sglang_vllm_aibrix_llmd.md` §1.6; read in smg
`model_gateway/src/policies/least_load.rs` at 11b1fe08 (smg#1629, #1647, #2154, #2193).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import register
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View

_MOST_KV_USAGE = 0.999

REPORT = np.dtype(
    [
        ("waiting", np.int64),
        ("waiting_tokens", np.int64),
        ("throughput", np.float64),
        ("kv_usage", np.float64),
        ("sent_requests", np.int64),  # since the report
        ("sent_tokens", np.int64),
    ],
    align=True,
)
"""What the router polled from an instance, and what it sent there since."""


@register
@dataclass
class SmgLeastLoad(ScoredRouter):
    """The instance with the least expected wait, in seconds; equals at random.

        wait_i = (queued_i + sent_i) / throughput_i + kv_pressure_weight · k_i / (1 - k_i)

    All as of the router's last poll, one every load_check_interval_secs: queued = waiting tokens to
    compute, or waiting requests · mean_prefill_tokens if those are 0; throughput in generated
    tokens/s, or default_throughput where nothing is generated; k = KV usage, at most 0.999. sent =
    prompt tokens sent since that poll: without them a whole interval's requests would go to the
    instance that was best at the poll.

    max_waiting_requests rules an instance out that has so many requests waiting, those sent since
    the poll included. If that rules all of them out the real gateway keeps the request in its own
    queue; here it goes to any.

    This is the rule for gRPC workers, whose requests come as tokens; for HTTP workers the gateway
    takes mean_prefill_tokens for every prompt. Here every instance has a report from the start on.

    Attributes:
        kv_pressure_weight: seconds.
        mean_prefill_tokens: tokens.
        default_throughput: tokens/s.
        max_waiting_requests: requests; 0 is off.
        load_check_interval_secs: seconds; 0 polls at every decision.
    """

    name = "smg_least_load"
    source = "SGLang model gateway, least_load, smg#1629 of 2026-06 (§1.6)"
    family = "load only"
    knows = ("ledger", "telemetry")

    kv_pressure_weight: float = 0.15
    mean_prefill_tokens: int = 1024
    default_throughput: float = 2000.0
    max_waiting_requests: int = 0
    load_check_interval_secs: int = 10

    def __post_init__(self) -> None:
        self.require(
            "kv_pressure_weight", 0 <= self.kv_pressure_weight < math.inf, "at least 0 and finite"
        )
        self.require("mean_prefill_tokens", self.mean_prefill_tokens >= 1, "at least 1")
        self.require(
            "default_throughput", 0 < self.default_throughput < math.inf, "above 0 and finite"
        )
        self.require("max_waiting_requests", self.max_waiting_requests >= 0, "at least 0")
        self.require("load_check_interval_secs", self.load_check_interval_secs >= 0, "at least 0")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """The first decision polls."""
        super().reset(cluster, seeds)
        self._reports = np.zeros((len(seeds), len(cluster.instances)), REPORT)
        self._next_poll = np.full(len(seeds), -math.inf)

    def hear(self, view: View) -> None:
        """Poll where it is time to."""
        _poll(
            view.requests,
            view.instances,
            float(self.load_check_interval_secs),
            self._next_poll,
            self._reports,
        )

    def scores(self, view: View) -> NDArray[np.float64]:
        """The expected waits, s."""
        waits = np.empty(view.instances.shape)
        _waits(
            self._reports,
            self.kv_pressure_weight,
            self.mean_prefill_tokens,
            self.default_throughput,
            self.max_waiting_requests,
            waits,
        )
        return waits

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """The prompts are on their way."""
        _send(view.requests, chosen, self._reports)


@kernel
def _poll(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    interval: float,
    next_poll: NDArray[np.float64],
    reports: NDArray[np.void],
) -> None:
    for e in range(len(requests)):
        now = requests[e]["time"]
        if now < next_poll[e]:
            continue
        next_poll[e] = (math.floor(now / interval) + 1) * interval if interval > 0 else now
        for i in range(reports.shape[1]):
            report, row = reports[e, i], instances[e, i]
            report["waiting"] = row["waiting"]
            report["waiting_tokens"] = row["waiting_tokens"]
            report["throughput"] = row["throughput"]
            report["kv_usage"] = row["kv_usage"]
            report["sent_requests"] = 0
            report["sent_tokens"] = 0


@kernel
def _waits(
    reports: NDArray[np.void],
    kv_pressure_weight: float,
    mean_prefill_tokens: int,
    default_throughput: float,
    max_waiting_requests: int,
    waits: NDArray[np.float64],
) -> None:
    for e in range(len(reports)):
        for i in range(reports.shape[1]):
            report = reports[e, i]
            if 0 < max_waiting_requests <= report["waiting"] + report["sent_requests"]:
                waits[e, i] = np.inf
                continue
            queued = report["waiting_tokens"]
            if queued == 0:
                queued = report["waiting"] * mean_prefill_tokens
            throughput = report["throughput"]
            if throughput == 0.0:
                throughput = default_throughput
            k = min(report["kv_usage"], _MOST_KV_USAGE)
            work = queued + report["sent_tokens"]
            waits[e, i] = work / throughput + kv_pressure_weight * k / (1 - k)


@kernel
def _send(requests: NDArray[np.void], chosen: NDArray[np.int64], reports: NDArray[np.void]) -> None:
    for e in range(len(chosen)):
        report = reports[e, chosen[e]]
        report["sent_requests"] += 1
        report["sent_tokens"] += requests[e]["prompt_tokens"]
