"""FlexLB's decode strategy, as a router of its own: spread the KV cache's use.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §1.10; FlexLB `CostBasedDecodeStrategy`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.rng import uniform
from prefixgym.envs.view.view import DISPATCHED, View

RESERVATION = np.dtype(
    [
        ("prompt", np.int64),  # tokens
        ("expected", np.int64),  # tokens that the request may come to hold
        ("instance", np.int32),
        ("open", np.int32),
    ],
    align=True,
)
"""KV that a routed request will need, by its slot, until the worker's reports count it."""

RESERVED = np.dtype(
    [("prompt", np.int64), ("expected", np.int64), ("closed", np.int64)], align=True
)
"""Sums of a worker's open reservations; closed: 1 while its KV is too full, with hysteresis."""


class Limits(NamedTuple):
    """The parameters that the kernel needs."""

    new_tokens: int
    memory_threshold: int
    reopen_threshold: float
    concurrency: int
    hotspot: float
    imbalance: float
    decay: float


@register
@dataclass
class CostBasedDecode(Router):
    """CostBasedDecodeStrategy: a random worker, the likelier the less KV it uses.

        used_i = reported KV tokens + Σ min(L + max_new_tokens_cap, capacity) over its reservations
        weight_i = exp(-decay (used_i - min used))

    A request's reservation lasts from its routing until the worker's telemetry counts it (it was
    started, or is over). Dropped are, in this order: workers whose used KV is at or above the
    threshold, until it is `hysteresis_bias_percent` below it, or whose requests reach the limit;
    those without room for the prompt beside the prompts reserved; those with more than 3 times the
    mean of requests or of used KV over what passed the first test (integer means, each filter only
    if its mean is above 0). With nobody left the request is rejected (NO_AVAILABLE_WORKER).

    In FlexLB it places the decode half of a request on a decode worker; here all of it goes to a
    worker that does both. What clients allow a request to generate is not in the view: it is taken
    to be at least the cap. Requests on a worker are this router's in flight or those reported,
    whichever is more.

    Attributes:
        weighted_cache_decay_factor: per token of KV.
        decode_available_memory_threshold: percent of the KV.
        hysteresis_bias_percent: percent.
        decode_concurrency_limit: requests on a worker; 0: any number.
        decode_hotspot_multiplier: times the mean of requests; 0 switches the filter off.
        decode_imbalance_multiplier: times the mean of used KV; 0 switches the filter off.
        max_new_tokens_cap: tokens.
    """

    name = "flexlb_decode"
    source = "alibaba/rtp-llm FlexLB, CostBasedDecodeStrategy at 4b8d39cd5 (part B §1.10)"
    family = "FlexLB"
    knows = ("ledger", "telemetry")
    may_reject = True

    weighted_cache_decay_factor: float = 0.001
    decode_available_memory_threshold: int = 90
    hysteresis_bias_percent: int = 15
    decode_concurrency_limit: int = 0
    decode_hotspot_multiplier: float = 3.0
    decode_imbalance_multiplier: float = 3.0
    max_new_tokens_cap: int = 1000

    def __post_init__(self) -> None:
        for parameter in (
            "weighted_cache_decay_factor",
            "decode_concurrency_limit",
            "decode_hotspot_multiplier",
            "decode_imbalance_multiplier",
            "max_new_tokens_cap",
        ):
            value = getattr(self, parameter)
            self.require(parameter, 0 <= value < math.inf, "at least 0 and finite")
        threshold = self.decode_available_memory_threshold
        self.require("decode_available_memory_threshold", 1 <= threshold <= 100, "1 to 100")
        bias = self.hysteresis_bias_percent
        self.require("hysteresis_bias_percent", 0 <= bias <= 100, "0 to 100")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """No reservations."""
        self._keys = router_keys(seeds)
        num_instances = len(cluster.instances)
        self._capacities = np.array(
            [cluster.kv_blocks(i) * cluster.block_size for i in range(num_instances)], np.int64
        )
        self._reservations = np.zeros((len(seeds), 0), RESERVATION)
        self._reserved = np.zeros((len(seeds), num_instances), RESERVED)
        threshold, bias = self.decode_available_memory_threshold, self.hysteresis_bias_percent
        self._limits = Limits(
            self.max_new_tokens_cap,
            threshold,
            threshold * (1 - bias / 100),
            self.decode_concurrency_limit,
            self.decode_hotspot_multiplier,
            self.decode_imbalance_multiplier,
            self.weighted_cache_decay_factor,
        )

    def route(self, view: View) -> NDArray[np.int64]:
        """A draw among the workers that are left; N where none is."""
        if view.num_slots > self._reservations.shape[1]:
            self._reservations = widened(self._reservations, view.num_slots)
        chosen = np.empty(view.num_envs, np.int64)
        _cost_based_decode(
            self._reservations,
            self._reserved,
            self._capacities,
            self._limits,
            view.requests,
            view.instances,
            view.events,
            view.num_events,
            self._keys,
            chosen,
        )
        return chosen


@kernel
def _release(reservations: NDArray[np.void], reserved: NDArray[np.void], slot: int) -> None:
    """The reservation of `slot`, if it is open, is counted elsewhere from now on."""
    row = reservations[slot]
    if row.open:
        row.open = 0
        reserved[row.instance].prompt -= row.prompt
        reserved[row.instance].expected -= row.expected


@kernel
def _cost_based_decode(
    reservations: NDArray[np.void],
    reserved: NDArray[np.void],
    capacities: NDArray[np.int64],
    limits: Limits,
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    keys: NDArray[np.uint64],
    chosen: NDArray[np.int64],
) -> None:
    num_instances = instances.shape[1]
    picks = np.empty(num_instances, np.int64)
    loads = np.empty(num_instances, np.int64)
    used = np.empty(num_instances, np.int64)
    weights = np.empty(num_instances)
    for e in range(len(chosen)):
        request = requests[e]
        for k in range(num_events[e]):
            if events[e, k].kind != DISPATCHED:
                _release(reservations[e], reserved[e], events[e, k].slot)
        _release(reservations[e], reserved[e], request.slot)

        count, roomy, sum_load, sum_used = 0, 0, 0, 0
        for i in range(num_instances):
            row, mine = instances[e, i], reserved[e, i]
            if not row.available:
                continue
            reported = int(row.kv_usage * capacities[i] + 0.5)
            used[i] = reported + mine.expected
            loads[i] = max(row.requests, row.waiting + row.running)
            percent = 100 * used[i] / capacities[i]
            if percent >= limits.memory_threshold:
                mine.closed = 1
            elif percent <= limits.reopen_threshold:
                mine.closed = 0
            if mine.closed or 0 < limits.concurrency <= loads[i]:
                continue
            count += 1
            sum_load += loads[i]
            sum_used += used[i]
            if capacities[i] - reported - mine.prompt >= request.prompt_tokens:
                picks[roomy] = i
                roomy += 1
        chosen[e] = num_instances
        if roomy == 0:
            continue

        mean_load, mean_used = sum_load // count, sum_used // count
        survivors = 0
        for k in range(roomy):
            i = picks[k]
            hot = limits.hotspot > 0 and mean_load > 0 and loads[i] > mean_load * limits.hotspot
            skewed = (
                limits.imbalance > 0 and mean_used > 0 and used[i] > mean_used * limits.imbalance
            )
            if not (hot or skewed):
                picks[survivors] = i
                survivors += 1
        if survivors == 0:
            continue

        least = used[picks[0]]
        for k in range(1, survivors):
            least = min(least, used[picks[k]])
        total = 0.0
        for k in range(survivors):
            weights[k] = math.exp(-limits.decay * (used[picks[k]] - least))
            total += weights[k]
        point = uniform(keys[e], request.index) * total
        k = 0
        while k < survivors - 1 and point >= weights[k]:
            point -= weights[k]
            k += 1
        i = picks[k]
        chosen[e] = i
        own = reservations[e, request.slot]
        own.open = 1
        own.instance = i
        own.prompt = request.prompt_tokens
        own.expected = min(request.prompt_tokens + limits.new_tokens, capacities[i])
        reserved[e, i].prompt += own.prompt
        reserved[e, i].expected += own.expected
