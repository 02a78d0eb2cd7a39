"""AIBrix's scorer for prefill/decode disaggregation, on instances that do both.

Source: `routers_sglang_vllm_aibrix_llmd.md` §3.11; read in aibrix
`pkg/plugins/gateway/algorithms/pd_disaggregation.go` at 01692761 and later, `pd/prefill_scorer.go`
at 08e6caca and `pd/decode_scorer.go` at 0779ef57.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.aibrix.prefix_cache import PrefixTableRouter, usual_load
from prefixgym.baselines.aibrix.prefix_table import (
    NO_MATCH,
    PrefixTable,
    TableSize,
    match_percent,
    put,
    sweep,
)
from prefixgym.baselines.aibrix.prefix_table import with_room as table_with_room
from prefixgym.baselines.choosing import candidates, first_least, random_least
from prefixgym.baselines.router import register
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.id_table import NONE
from prefixgym.envs.view.recent import Recent, append, drop_first, first, recent
from prefixgym.envs.view.recent import with_room as log_with_room
from prefixgym.envs.view.view import ENDED, View

_DRAIN_WINDOW = 60.0  # s


class _Limits(NamedTuple):
    """When a pool counts as out of balance."""

    prefill_spread: int
    decode_spread: int
    throughput_spread: float
    score_ratio: float
    factor: int


@register
@dataclass
class PrefillDecode(PrefixTableRouter):
    """AIBrix's `pd` with its default policies; every instance is a role set of its own.

    The real router picks a prefill and a decode pod of one role set. Here a role set is one mixed
    instance, which is both. p = requests without a first token, r = requests in flight, as this
    router counts them; free = 100 - KV usage in percent, at least 0.1. Numbers as of the last poll.

    1. max p - min p > prefill_load_imbalance_min_spread: one of the least p at random.
    2. max r - min r ≥ decode_load_imbalance_min_spread: the least r.
    3. max - min throughput > decode_throughput_imbalance_min_spread: the least throughput.
    4. If requests ended everywhere in the last minute (d a pod): the least r / d, if the largest
       r / d is more than decode_score_ratio_threshold times as much.
    5. The least sum, at random among equals, of

           prefill = (100 - match %) · 0.1 + p / max p, over the largest such or 1
           decode = (r / max r + 1 - thr / max thr) / (free / max free), over the largest such
                    or 0.01

       where maxima of p, r, thr and free are at least 1, and pods with p above mean +
       standard_deviation_factor sample standard deviations are left out. The match is from AIBrix's
       block table.

    Ties in 2 to 4: the first. The prompt is put into the table under the choice. (A decode pod
    without any metrics has a rule of its own there; it does not occur.)

    Attributes:
        prefill_load_imbalance_min_spread: requests.
        decode_load_imbalance_min_spread: requests.
        decode_throughput_imbalance_min_spread: output tokens a second.
        decode_score_ratio_threshold: ratio.
        standard_deviation_factor: standard deviations.
    """

    name = "aibrix_pd"
    source = "AIBrix gateway, pd, e3e10f9e of 2026-08-22 (§3.11)"
    family = "AIBrix"
    knows = ("history", "ledger", "telemetry")

    prefill_load_imbalance_min_spread: int = 16
    decode_load_imbalance_min_spread: int = 16
    decode_throughput_imbalance_min_spread: float = 2048.0
    decode_score_ratio_threshold: float = 1.5
    standard_deviation_factor: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            "prefill_load_imbalance_min_spread",
            "decode_load_imbalance_min_spread",
            "decode_throughput_imbalance_min_spread",
            "standard_deviation_factor",
        ):
            self.require(name, getattr(self, name) >= 0, "at least 0")
        ratio = self.decode_score_ratio_threshold
        self.require("decode_score_ratio_threshold", ratio >= 1, "at least 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """An empty table; nothing has ended."""
        super().reset(cluster, seeds)
        self._ends = recent(len(seeds))
        self._drained = np.zeros((len(seeds), len(cluster.instances)), np.int64)
        self._limits = _Limits(
            self.prefill_load_imbalance_min_spread,
            self.decode_load_imbalance_min_spread,
            self.decode_throughput_imbalance_min_spread,
            self.decode_score_ratio_threshold,
            self.standard_deviation_factor,
        )

    def route(self, view: View) -> NDArray[np.int64]:
        """The pod that an imbalance points to, or the least sum of both scores."""
        self._table = table_with_room(self._table, view.block_ids.shape[1], self._size)
        self._ends = log_with_room(self._ends, int(view.num_events.max()))
        chosen = np.empty(view.num_envs, np.int64)
        _count_ends(self._ends, view.events, view.num_events, view.requests["time"], self._drained)
        _pd(
            self._table,
            self._size,
            self._limits,
            view.requests,
            view.block_ids,
            view.instances,
            self._drained,
            self._keys,
            chosen,
        )
        return chosen


@kernel
def _count_ends(
    ends: Recent,
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    now: NDArray[np.float64],
    drained: NDArray[np.int64],
) -> None:
    """Keep `drained` [E, N]: requests that ended on each pod in the last minute."""
    for e in range(len(now)):
        for k in range(num_events[e]):
            event = events[e, k]
            if event["kind"] == ENDED:
                append(ends, e, event["time"], 1, event["instance"], NONE)
                drained[e, event["instance"]] += 1
        while ends.size[e] > 0 and first(ends, e)["time"] <= now[e] - _DRAIN_WINDOW:
            drained[e, first(ends, e)["instance"]] -= 1
            drop_first(ends, e)


@kernel
def _pd(
    table: PrefixTable,
    size: TableSize,
    limits: _Limits,
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    drained: NDArray[np.int64],
    keys: NDArray[np.uint64],
    chosen: NDArray[np.int64],
) -> None:
    num_pods = instances.shape[1]
    picks, percent = np.empty(num_pods, np.int64), np.empty(num_pods, np.int64)
    ready = np.empty(num_pods, np.bool_)
    prefills, running = np.empty(num_pods), np.empty(num_pods)
    throughput, scores = np.empty(num_pods), np.empty(num_pods)
    for e in range(len(chosen)):
        request, pods = requests[e], instances[e]
        now, prompt_tokens = request["time"], request["prompt_tokens"]
        prompt = block_ids[e, : request["num_blocks"]]
        count = candidates(pods, picks)
        ready[:] = False
        for k in range(count):
            ready[picks[k]] = True
        for pod in range(num_pods):
            prefills[pod] = pods[pod]["prefill_requests"]
            running[pod] = pods[pod]["requests"]
            throughput[pod] = pods[pod]["throughput"]
        sweep(table, size, e, now)
        match_percent(table, size, e, prompt, prompt_tokens, ready, percent)

        if _spread(prefills, picks, count) > limits.prefill_spread:
            choice = random_least(prefills, picks, count, keys[e], request["index"])
        elif _spread(running, picks, count) >= limits.decode_spread:
            choice = first_least(running, picks, count)
        elif _spread(throughput, picks, count) > limits.throughput_spread:
            choice = first_least(throughput, picks, count)
        else:
            choice = _slow_drain(running, drained[e], picks, count, limits.score_ratio, scores)
            if choice == NONE:
                _add_prefill(prefills, percent, picks, count, limits.factor, scores)
                _add_decode(running, throughput, pods, picks, count, scores)
                choice = random_least(scores, picks, count, keys[e], request["index"])
        chosen[e] = choice
        put(table, size, e, prompt, prompt_tokens, choice, now)


@kernel
def _spread(values: NDArray[np.float64], picks: NDArray[np.int64], count: int) -> float:
    low, high = np.inf, -np.inf
    for k in range(count):
        low, high = min(low, values[picks[k]]), max(high, values[picks[k]])
    return high - low


@kernel
def _slow_drain(
    running: NDArray[np.float64],
    drained: NDArray[np.int64],
    picks: NDArray[np.int64],
    count: int,
    score_ratio: float,
    scores: NDArray[np.float64],
) -> int:
    """The pod that drains soonest, if the slowest takes that much longer; else NONE."""
    high = 0.0
    for k in range(count):
        pod = picks[k]
        if drained[pod] == 0:
            return NONE
        scores[pod] = running[pod] / drained[pod]
        high = max(high, scores[pod])
    best = first_least(scores, picks, count)
    return best if high > score_ratio * scores[best] else NONE


@kernel
def _add_prefill(
    prefills: NDArray[np.float64],
    percent: NDArray[np.int64],
    picks: NDArray[np.int64],
    count: int,
    factor: int,
    scores: NDArray[np.float64],
) -> None:
    """Write the prefill half of the score, inf for pods with unusually many prefills."""
    most = 1.0
    for k in range(count):
        most = max(most, prefills[picks[k]])
    limit = usual_load(prefills, picks, count, factor)
    highest = 1.0
    for k in range(count):
        pod = picks[k]
        scores[pod] = np.inf
        if prefills[pod] <= limit:
            matched = percent[pod] if percent[pod] != NO_MATCH else 0
            scores[pod] = (100 - matched) * 0.1 + prefills[pod] / most
            highest = max(highest, scores[pod])
    for k in range(count):
        scores[picks[k]] /= highest


@kernel
def _add_decode(
    running: NDArray[np.float64],
    throughput: NDArray[np.float64],
    pods: NDArray[np.void],
    picks: NDArray[np.int64],
    count: int,
    scores: NDArray[np.float64],
) -> None:
    """Add the decode half of the score."""
    most_running, most_throughput, most_free = 1.0, 1.0, 1.0
    decode, free = np.empty(len(running)), np.empty(len(running))
    for k in range(count):
        pod = picks[k]
        free[pod] = max(0.1, 100.0 - 100.0 * pods[pod]["kv_usage"])
        most_running = max(most_running, running[pod])
        most_throughput = max(most_throughput, throughput[pod])
        most_free = max(most_free, free[pod])
    highest = 0.01
    for k in range(count):
        pod = picks[k]
        load = running[pod] / most_running + 1.0 - throughput[pod] / most_throughput
        decode[pod] = load / (free[pod] / most_free)
        highest = max(highest, decode[pod])
    for k in range(count):
        scores[picks[k]] += decode[picks[k]] / highest
