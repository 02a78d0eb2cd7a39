"""Preble's E2: exploit a prefix where it is cached, or explore where it costs the least.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §3 (arXiv 2407.00023, ICLR'25), the rule of the
paper. The public code (WukLab/preble 8e7906a3b) has defects that are not copied, see `Preble`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, first_least
from prefixgym.baselines.papers.preble_memory import (
    NS,
    Memory,
    enter,
    forget,
    hear,
    memory,
    place,
    queueing_doubled,
    send,
    with_room,
)
from prefixgym.baselines.prefill_time import PREFILL_MODELS, prefill_ms
from prefixgym.baselines.prefix_tree import ROOT
from prefixgym.baselines.router import NOWHERE, Router, register
from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.cluster.step_time import STEP_COST, prefill_ticks
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.id_table import NONE
from prefixgym.envs.view.recency import NOBODY, contains
from prefixgym.envs.view.view import View

_PROFILE = -1
_MODELS = {"profile": _PROFILE, **PREFILL_MODELS}


class _Rule(NamedTuple):
    """Parameters as the kernels need them."""

    prefill_model: int
    window: float  # s
    with_eviction: bool
    decode_share: float
    th_bal: float
    first_balanced: int  # requests before loads are balanced
    block_size: int


class _Costs(NamedTuple):
    """What prefills take on each GPU, for the model `profile`."""

    step_cost: NDArray[np.void]  # STEP_COST [N]
    max_batched_tokens: NDArray[np.int64]  # [N]


@register
@dataclass
class Preble(Router):
    """Preble's global scheduler, E2 ("exploitation + exploration").

    Over the window H, L_i = Σ over GPU i's requests PrefillTime(missed) + DecodeTime, where
    DecodeTime is the mean time from first token to end.

    1. The prompt is put into the tree of prompts (`Memory`). `cached` = its longest prefix that
       some available GPU holds, `missed` = the rest.
    2. missed < cached, exploit: of the GPUs that hold all of `cached` the one with the least L.

       - Autoscale: if the mean queueing time of requests placed by that prefix has doubled within H
         (newer against older half), the GPU with the least L of all joins them, and so gets a copy.
         At most once in half a window for a prefix.
       - Rebalance: if that GPU has the largest L of all, and this is more than th_bal times the
         least, the request goes to the latter. Not before requests_per_gpu · N requests were sent:
         the paper does not say, its code waits for that many.
    3. Else explore. If on some GPU decoding makes up more than decode_ratio of L, the one with the
       largest share: prefill mixes well with decoding. Else the least L_i + M_i + P_i:

           M_i = Σ over nodes j that i would evict for the missed tokens  PrefillTime(j) · N_j
           N_j = share of i's windowed requests that use j
           P_i = PrefillTime(tokens missed on i)

    Ties: the first. Not copied from the public code: an exploiting request goes to a GPU of the
    list of candidates, not to the GPU with the number of its place in that list; no prefill time is
    negative; decoding is measured, not max_new_tokens long; missed tokens are a request's own. The
    local scheduler's priority groups are not part of a router.

    Attributes:
        prefill_model: PrefillTime. `profile` is each GPU's own cost profile, as the paper profiles
            its GPUs offline; the others are the fits of its code (`prefill_time`).
        window: H in seconds.
        enable_eviction: whether M is part of the cost; the paper has it, the code has it off.
        decode_ratio: 0..1. The paper does not give its IMBAL_R; 1 never mixes.
        th_bal: ratio of loads; the paper does not give it, 1.5 is its code's.
        requests_per_gpu: requests for each GPU before loads are balanced.
        decode_seconds: DecodeTime until one was measured: 45 tokens of 0.15 s.
    """

    name = "preble"
    source = "Preble, E2 as in the paper, arXiv 2407.00023 (part B §3.2)"
    family = "papers"
    knows = ("history", "ledger")

    prefill_model: str = "profile"
    window: float = 180.0
    enable_eviction: bool = True
    decode_ratio: float = 1.0
    th_bal: float = 1.5
    requests_per_gpu: int = 50
    decode_seconds: float = 6.75

    def __post_init__(self) -> None:
        self.require("prefill_model", self.prefill_model in _MODELS, ", ".join(_MODELS))
        self.require("window", 0 < self.window < math.inf, "above 0 and finite")
        self.require("decode_ratio", 0 <= self.decode_ratio <= 1, "0 to 1")
        self.require("th_bal", self.th_bal >= 1, "at least 1")
        self.require("requests_per_gpu", self.requests_per_gpu >= 0, "at least 0")
        self.require("decode_seconds", 0 <= self.decode_seconds < math.inf, "at least 0 and finite")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """An empty tree and window."""
        num_gpus = len(cluster.instances)
        blocks = np.array([cluster.kv_blocks(gpu) for gpu in range(num_gpus)], np.int64)
        self._memory = memory(len(seeds), blocks * cluster.block_size, self.decode_seconds)
        model = _MODELS[self.prefill_model]
        step_cost = np.zeros(num_gpus, STEP_COST)
        if model == _PROFILE:
            for gpu, instance in enumerate(cluster.instances):
                step_cost[gpu] = instance.profile.step_cost(blocks[gpu] * cluster.block_size)
        budgets = [instance.max_batched_tokens for instance in cluster.instances]
        self._costs = _Costs(step_cost, np.array(budgets, np.int64))
        self._rule = _Rule(
            model,
            self.window,
            self.enable_eviction,
            self.decode_ratio,
            self.th_bal,
            self.requests_per_gpu * num_gpus,
            cluster.block_size,
        )

    def route(self, view: View) -> NDArray[np.int64]:
        """Exploit or explore."""
        num_ids, num_events = view.block_ids.shape[1], int(view.num_events.max())
        self._memory = with_room(self._memory, num_ids, num_events, view.num_slots)
        chosen = np.empty(view.num_envs, np.int64)
        _e2(
            self._memory,
            self._rule,
            self._costs,
            view.requests,
            view.block_ids,
            view.instances,
            view.events,
            view.num_events,
            chosen,
        )
        return chosen

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Into the tree and the window with them; how long they wait and decode, nobody tells."""
        self._memory = with_room(self._memory, block_ids.shape[1], 0, 0)
        _overhear(self._memory, self._rule, self._costs, requests, block_ids, chosen)


@kernel
def _prefill_ns(rule: _Rule, costs: _Costs, gpu: int, new_tokens: int, context: int) -> int:
    """PrefillTime of `new_tokens` that end a context of `context` tokens."""
    if rule.prefill_model == _PROFILE:
        budget = costs.max_batched_tokens[gpu]
        ticks = prefill_ticks(costs.step_cost[gpu], new_tokens, context - new_tokens, budget)
        return round(ticks / TICKS_PER_SECOND * NS)
    return round(prefill_ms(rule.prefill_model, new_tokens, context) * 1e6)


@kernel
def _e2(
    m: Memory,
    rule: _Rule,
    costs: _Costs,
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    chosen: NDArray[np.int64],
) -> None:
    num_gpus = instances.shape[1]
    picks, holders = np.empty(num_gpus, np.int64), np.empty(num_gpus, np.int64)
    cached, load = np.empty(num_gpus, np.int64), np.empty(num_gpus)
    cost = np.empty(num_gpus)
    for e in range(len(chosen)):
        request = requests[e]
        now, prompt_tokens = request["time"], request["prompt_tokens"]
        hear(m, e, events[e], num_events[e])
        forget(m, e, now, rule.window)
        prompt = block_ids[e, : request["num_blocks"]]
        tokens = min(len(prompt) * rule.block_size, prompt_tokens)
        leaf, known = enter(m, e, prompt, tokens, rule.block_size)
        count = candidates(instances[e], picks)
        for gpu in range(num_gpus):
            load[gpu] = m.prefill[e, gpu] + m.num_requests[e, gpu] * m.decode_mean[e]
        longest, by = _look_up(m, e, known, picks, count, cached)
        light = first_least(load, picks, count)

        if prompt_tokens - longest < longest:
            num_holders = 0
            for k in range(count):
                if cached[picks[k]] == longest:
                    holders[num_holders] = picks[k]
                    num_holders += 1
            choice = first_least(load, holders, num_holders)
            stats = m.stats[e, by]
            if now - stats["scaled"] >= rule.window / 2 and queueing_doubled(m, e, by):
                stats["scaled"] = now
                choice = light
            heaviest = True
            for k in range(count):
                heaviest = heaviest and load[picks[k]] <= load[choice]
            settled = m.sent[e] >= rule.first_balanced
            if settled and heaviest and load[choice] > rule.th_bal * load[light]:
                choice = light
        else:
            by = leaf
            choice = _most_decoding(m, rule, e, load, picks, count)
            if choice == NONE:
                for k in range(count):
                    gpu = picks[k]
                    missed = prompt_tokens - cached[gpu]
                    cost[gpu] = load[gpu] + _prefill_ns(rule, costs, gpu, missed, prompt_tokens)
                    if rule.with_eviction:
                        cost[gpu] += _eviction_ns(m, rule, costs, e, gpu, leaf)
                choice = first_least(cost, picks, count)
        missed = prompt_tokens - cached[choice]
        prefill = _prefill_ns(rule, costs, choice, missed, prompt_tokens)
        place(m, e, choice, leaf, by, request["slot"], prefill, now)
        chosen[e] = choice


@kernel
def _overhear(
    m: Memory,
    rule: _Rule,
    costs: _Costs,
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    chosen: NDArray[np.int64],
) -> None:
    cached, gpu = np.empty(m.tokens.shape[1], np.int64), np.empty(1, np.int64)
    for e in range(len(chosen)):
        if chosen[e] == NOWHERE:
            continue
        request = requests[e]
        prompt_tokens = request["prompt_tokens"]
        prompt = block_ids[e, : request["num_blocks"]]
        tokens = min(len(prompt) * rule.block_size, prompt_tokens)
        leaf, known = enter(m, e, prompt, tokens, rule.block_size)
        gpu[0] = chosen[e]
        held, _ = _look_up(m, e, known, gpu, 1, cached)
        prefill = _prefill_ns(rule, costs, gpu[0], prompt_tokens - held, prompt_tokens)
        send(m, e, gpu[0], leaf, prefill, request["time"])


@kernel
def _look_up(
    m: Memory,
    e: int,
    known: int,
    picks: NDArray[np.int64],
    count: int,
    cached: NDArray[np.int64],
) -> tuple[int, int]:
    """Write to `cached` [N] how many leading tokens each GPU holds, going up from node `known`.

    Returns:
        The most that a candidate holds, and the node at which that ends.
    """
    cached[:] = 0
    longest, by, node = 0, ROOT, known
    while node != ROOT:
        context = int(m.tree.nodes[e, node]["context"])
        for k in range(count):
            if cached[picks[k]] == 0 and contains(m.cached, e, picks[k], node):
                cached[picks[k]] = context
                if context > longest:
                    longest, by = context, node
        node = int(m.tree.nodes[e, node]["parent"])
    return longest, by


@kernel
def _most_decoding(
    m: Memory, rule: _Rule, e: int, load: NDArray[np.float64], picks: NDArray[np.int64], count: int
) -> int:
    """The GPU with the largest share of decoding in its load, if above the limit; else NONE."""
    most, best = rule.decode_share, NONE
    for k in range(count):
        gpu = picks[k]
        if load[gpu] > 0 and 1.0 - m.prefill[e, gpu] / load[gpu] > most:
            most, best = 1.0 - m.prefill[e, gpu] / load[gpu], gpu
    return int(best)


@kernel
def _eviction_ns(m: Memory, rule: _Rule, costs: _Costs, e: int, gpu: int, leaf: int) -> float:
    """M of a prompt that ends in `leaf`: what making room for it on the GPU would cost."""
    short = m.tokens[e, gpu] - m.capacity[gpu]
    node = leaf
    while node != ROOT:
        if not contains(m.cached, e, gpu, node):
            short += m.tree.nodes[e, node]["tokens"]
        node = m.tree.nodes[e, node]["parent"]
    lost = 0.0
    victim = m.cached.ends[e, gpu]["oldest"]
    while short > 0 and victim != NOBODY:
        row = m.tree.nodes[e, victim]
        if not _is_above(m, e, victim, leaf):
            short -= row["tokens"]
            uses = m.uses[e, victim, gpu] / max(1, m.num_requests[e, gpu])
            lost += uses * _prefill_ns(rule, costs, gpu, row["tokens"], row["context"])
        victim = m.cached.links[e, victim, gpu]["newer"]
    return lost


@kernel
def _is_above(m: Memory, e: int, node: int, leaf: int) -> bool:
    """Whether the node is on the path of the prompt that ends in `leaf`."""
    depth = m.tree.nodes[e, node]["depth"]
    below = leaf
    while m.tree.nodes[e, below]["depth"] > depth:
        below = m.tree.nodes[e, below]["parent"]
    return bool(below == node)
