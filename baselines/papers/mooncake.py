"""Mooncake's Conductor: the least predicted TTFT, and turning away what would come too late.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §4.1, §4.2 (arXiv 2407.00079, FAST'25).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.papers.flights import DECODE_LOAD, NOWHERE, Flights
from prefixgym.baselines.references.min_ttft import MinTtft
from prefixgym.baselines.router import register
from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.cluster.step_time import STEP_COST, step_ticks
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View


@register
@dataclass
class Mooncake(MinTtft):
    """The instance with the least predicted TTFT, the first among equals; late requests go away.

        TTFT_i = frontend latency + T_queue(i) + T_prefill(L, H_i)

    T_queue are the predicted prefills booked there and not ended, T_prefill is by the instance's
    profile (the paper: an offline fit). Where another instance holds θ times as long a prefix, the
    Conductor adds the time to fetch it (T_transfer) and prefills the rest. Instances here cannot
    fetch from one another: T_transfer is infinite, that branch never pays, θ
    (`kvcache_balancing_threshold`) has nothing to decide and is left out, and so is the replication
    of hot prefixes. What is left is `min_ttft` with another rule for ties.

    Early rejection turns a request away, on its arrival, if the cluster's load is above 1, the
    larger of

        prefill:  TTFT of the chosen instance / TTFT objective
        decode:   mean over the available instances of TBT_i / TPOT objective

    with TBT_i the time of a decode step of the sequences there, by the instance's profile and their
    prompts (the tokens that they have decoded so far are not counted).

    - `early` takes the sequences that decode now. While prefills run, they are forgotten; so too
      many come in, then too many are turned away, and the load of both phases swings.
    - `predictive` takes the sequences that will decode when this request's prefill ends: those with
      a first token by then, as heard or as predicted when they were routed, and not longer ago than
      decode_seconds; this request is one of them.

    Attributes:
        early_rejection: off, early or predictive.
        decode_seconds: how long every request decodes, t_d; the paper's value is not known.
    """

    name = "mooncake"
    source = "Mooncake Conductor without transfers, arXiv 2407.00079 (§4.1, §4.2)"
    family = "papers"
    knows = ("index", "ledger")
    ties = "first"
    may_reject = True

    early_rejection: str = "off"
    decode_seconds: float = 5.0

    def __post_init__(self) -> None:
        allowed = ("off", "early", "predictive")
        self.require("early_rejection", self.early_rejection in allowed, ", ".join(allowed))
        self.require("decode_seconds", self.decode_seconds > 0, "above 0")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing in flight."""
        super().reset(cluster, seeds)
        self._flights = Flights(len(seeds), len(cluster.instances))
        self._costs = np.zeros(len(cluster.instances), STEP_COST)
        if self.early_rejection != "off":
            for i, instance in enumerate(cluster.instances):
                capacity = cluster.kv_blocks(i) * cluster.block_size
                self._costs[i] = instance.profile.step_cost(capacity)

    def hear(self, view: View) -> None:
        """First tokens and ends."""
        if self.early_rejection != "off":
            self._flights.hear(view)

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """In flight, with its first token due after the predicted TTFT."""
        if self.early_rejection != "off":
            ttft = self.scores(view)[np.arange(view.num_envs), chosen]
            self._flights.book(view, chosen, view.requests["time"] + ttft)

    def route(self, view: View) -> NDArray[np.int64]:
        """The least predicted TTFT, or N, the number of instances, to turn the request away."""
        chosen = super().route(view)
        if self.early_rejection != "off":
            _turn_away(
                view.requests,
                view.instances,
                self._flights.slots,
                self._flights.decode,
                self._costs,
                self.early_rejection == "predictive",
                self.decode_seconds,
                chosen,
            )
        return chosen


@kernel
def _turn_away(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    slots: NDArray[np.void],
    decode: NDArray[np.void],
    costs: NDArray[np.void],
    predictive: bool,
    decode_seconds: float,
    chosen: NDArray[np.int64],
) -> None:
    num_instances = instances.shape[1]
    then = np.empty(num_instances, DECODE_LOAD)
    for e in range(len(chosen)):
        request = requests[e]
        flight = slots[e, request["slot"]]
        for i in range(num_instances):
            then[i]["requests"] = 0 if predictive else decode[e, i]["requests"]
            then[i]["prompt_tokens"] = 0 if predictive else decode[e, i]["prompt_tokens"]
        if predictive:
            end = flight["first_token"]
            for q in range(slots.shape[1]):
                other = slots[e, q]
                age = end - other["first_token"]
                if other["instance"] != NOWHERE and 0.0 <= age < decode_seconds:
                    then[other["instance"]]["requests"] += 1
                    then[other["instance"]]["prompt_tokens"] += other["prompt_tokens"]
        total, count = 0.0, 0
        for i in range(num_instances):
            if instances[e, i]["available"] != 0:
                load = then[i]
                if load["requests"] > 0:
                    batch, context = load["requests"], load["prompt_tokens"]
                    ticks = step_ticks(costs[i], 0, 0.0, batch, context, batch)
                    total += ticks / TICKS_PER_SECOND
                count += 1
        decode_load = total / max(count, 1) / request["slo_tpot"]
        prefill_load = (flight["first_token"] - request["time"]) / request["slo_ttft"]
        if max(prefill_load, decode_load) > 1.0:
            flight["instance"] = NOWHERE
            chosen[e] = num_instances
