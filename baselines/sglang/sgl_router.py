"""SGLang's in-tree router of September 2026: cache affinity with a margin and a pressure guard.

Source: `routers_sglang_vllm_aibrix_llmd.md` §1.14; read in sglang
`experimental/sgl-router/src/policies/cache_aware.rs` at 2f02ae23 and `admission.rs` at 0939ce07.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.router import Router, register, router_keys
from prefixgym.baselines.sglang.pressure import (
    NOWHERE,
    is_more_pressed,
    least_pressed,
    less_pressed_of_two,
)
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.view.view import View

AffinityMode = Literal["prefer", "balanced"]

_BALANCED_RATIO = 2.0
_BALANCED_TOKENS = 1024


class _Settings(NamedTuple):
    min_matched_tokens: int
    min_match_ratio: float
    candidate_limit: int
    switch_margin: int
    pressure_guard: bool
    pressure_abs: int
    pressure_rel: float
    queue_limit: int
    queue_floor: int
    balanced: bool


@register
@dataclass
class SglRouterCacheAware(Router):
    """The owner with the least uncached tokens, give or take a margin within which pressure counts.

    E_i = uncached tokens of the prompt at instance i, by the index. Pressure orders by waiting
    uncached tokens, waiting requests, running requests, requests in flight (see `pressure`).

    1. Owners: the available instances with at least cache_affinity_min_matched_tokens of the prompt
       and cache_affinity_min_match_ratio of it; of these the first min(n, max_workers,
       max(min_workers, ratio · n rounded up)) by (more matched, less pressed, index).
    2. worker_queue_limit drops the owners with so many requests waiting. If it drops all of them
       and every available instance has as many waiting, they are all back.
    3. Admission: running + 1 <= the engine's most, KV tokens in use + prompt <= its KV tokens.
    4. Among the owners left with E_i <= least E + cache_switch_margin_tokens, one after the other
       in the order of step 1 and starting with the least E: the next one wins over the best so far
       if it is materially less pressed,

           waiting tokens of the best - of the next > pressure_abs_threshold_tokens
           and waiting tokens of the best > pressure_rel_threshold · of the next

       and if neither is materially less pressed, by (less E, less pressed, index).
    5. No owner left: if saturation_queue_floor is set and the queue limit dropped owners, but no
       available instance has fewer than the floor waiting, the least pressed admitted one of these.
    6. Else two available instances are drawn, and the less pressed is taken; the other one if the
       first has no room or a full queue; if neither can, the least pressed that can, then the least
       pressed with room whatever its queue, then the less pressed of the two.

    With affinity `balanced` (reorg mode), the owner A of step 4 is held against the less pressed B
    of two of the other admitted available instances; the request goes to B if

        load_A > 2 · load_B and load_A - load_B > 1024,  load_i = waiting tokens_i + E_i

    Where a report is missing, the real router compares requests in flight and a gap of 4 instead.

    Attributes:
        cache_affinity_min_matched_tokens: tokens.
        cache_affinity_min_match_ratio: share of the prompt; 0 is off.
        cache_candidate_min_workers: instances.
        cache_candidate_ratio: share of the instances.
        cache_candidate_max_workers: instances.
        cache_switch_margin_tokens: tokens.
        pressure_guard: whether pressure counts within the margin, beyond breaking ties.
        pressure_abs_threshold_tokens: tokens.
        pressure_rel_threshold: ratio.
        worker_queue_limit: requests; 0 is off.
        saturation_queue_floor: requests, at most worker_queue_limit; 0 is off.
        affinity: `prefer` or `balanced`.
    """

    name = "sgl_router_cache_aware"
    source = "SGLang in-tree sgl-router, cache_aware, 2026-09 (§1.14)"
    family = "SGLang"
    knows = ("index", "ledger", "telemetry")

    cache_affinity_min_matched_tokens: int = 1024
    cache_affinity_min_match_ratio: float = 0.0
    cache_candidate_min_workers: int = 8
    cache_candidate_ratio: float = 0.05
    cache_candidate_max_workers: int = 32
    cache_switch_margin_tokens: int = 1024
    pressure_guard: bool = True
    pressure_abs_threshold_tokens: int = 1024
    pressure_rel_threshold: float = 1.5
    worker_queue_limit: int = 0
    saturation_queue_floor: int = 0
    affinity: str = "prefer"

    def __post_init__(self) -> None:
        for name in (
            "cache_affinity_min_matched_tokens",
            "cache_switch_margin_tokens",
            "pressure_abs_threshold_tokens",
            "pressure_rel_threshold",
            "worker_queue_limit",
        ):
            self.require(name, getattr(self, name) >= 0, "at least 0")
        for name in ("cache_affinity_min_match_ratio", "cache_candidate_ratio"):
            self.require(name, 0 <= getattr(self, name) <= 1, "0 to 1")
        for name in ("cache_candidate_min_workers", "cache_candidate_max_workers"):
            self.require(name, getattr(self, name) >= 1, "at least 1")
        within = 0 <= self.saturation_queue_floor <= self.worker_queue_limit
        self.require("saturation_queue_floor", within, "0 to worker_queue_limit")
        modes = get_args(AffinityMode)
        self.require("affinity", self.affinity in modes, ", ".join(modes))

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Take the engines' limits from the cluster."""
        self._keys = router_keys(seeds)
        instances = range(len(cluster.instances))
        self._most_running = np.array([cluster.instances[i].max_sequences for i in instances])
        self._most_tokens = np.array([cluster.kv_blocks(i) * cluster.block_size for i in instances])

    def route(self, view: View) -> NDArray[np.int64]:
        """An owner, or one of two draws."""
        chosen = np.empty(view.num_envs, np.int64)
        _choose(
            view.requests,
            view.instances,
            self._keys,
            self._most_running,
            self._most_tokens,
            self._settings(view.instances.shape[1]),
            chosen,
        )
        return chosen

    def _settings(self, num_instances: int) -> _Settings:
        share = math.ceil(self.cache_candidate_ratio * num_instances)
        return _Settings(
            self.cache_affinity_min_matched_tokens,
            self.cache_affinity_min_match_ratio,
            min(
                self.cache_candidate_max_workers,
                max(self.cache_candidate_min_workers, share),
            ),
            self.cache_switch_margin_tokens,
            self.pressure_guard,
            self.pressure_abs_threshold_tokens,
            self.pressure_rel_threshold,
            self.worker_queue_limit,
            self.saturation_queue_floor,
            self.affinity == "balanced",
        )


@kernel
def _find_owners(
    request: Record,
    rows: NDArray[np.void],
    picks: NDArray[np.int64],
    count: int,
    settings: _Settings,
    owners: NDArray[np.int64],
) -> int:
    """Write the owners of step 1 in their order; return their number."""
    num_owners = 0
    for k in range(count):
        i = picks[k]
        matched = rows[i]["hit_tokens"]
        enough = matched >= max(settings.min_matched_tokens, 1)
        if enough and matched >= settings.min_match_ratio * request["prompt_tokens"]:
            place = num_owners
            while place > 0:
                before = rows[owners[place - 1]]
                if before["hit_tokens"] > matched:
                    break
                if before["hit_tokens"] == matched and not is_more_pressed(before, rows[i]):
                    break
                owners[place] = owners[place - 1]
                place -= 1
            owners[place] = i
            num_owners += 1
    return min(num_owners, settings.candidate_limit)


@kernel
def _is_queueing(row: Record, limit: int) -> bool:
    return bool(limit > 0 and row["waiting"] >= limit)


@kernel
def _has_room(request: Record, row: Record, most_running: int, most_tokens: int) -> bool:
    used = row["kv_usage"] * most_tokens
    return bool(
        row["running"] + 1 <= most_running and used + request["prompt_tokens"] <= most_tokens
    )


@kernel
def _is_materially_more_pressed(left: Record, right: Record, settings: _Settings) -> bool:
    more = left["waiting_tokens"] - right["waiting_tokens"]
    return bool(
        more > settings.pressure_abs
        and left["waiting_tokens"] > settings.pressure_rel * right["waiting_tokens"]
    )


@kernel
def _wins(rows: NDArray[np.void], i: int, best: int, settings: _Settings) -> bool:
    """Whether owner i wins over the best so far, both of them within the margin of the least E."""
    if settings.pressure_guard:
        if _is_materially_more_pressed(rows[best], rows[i], settings):
            return True
        if _is_materially_more_pressed(rows[i], rows[best], settings):
            return False
    if rows[i]["hit_tokens"] != rows[best]["hit_tokens"]:
        return bool(rows[i]["hit_tokens"] > rows[best]["hit_tokens"])
    return is_more_pressed(rows[best], rows[i]) or (
        i < best and not is_more_pressed(rows[i], rows[best])
    )


@kernel
def _choose(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    keys: NDArray[np.uint64],
    most_running: NDArray[np.int64],
    most_tokens: NDArray[np.int64],
    settings: _Settings,
    chosen: NDArray[np.int64],
) -> None:
    num_instances = instances.shape[1]
    picks, owners = np.empty(num_instances, np.int64), np.empty(num_instances, np.int64)
    dropped, roomy = np.empty(num_instances, np.int64), np.empty(num_instances, np.int64)
    has_room = np.empty(num_instances, np.bool_)
    for e in range(len(chosen)):
        request, rows = requests[e], instances[e]
        count = candidates(rows, picks)
        fewest_waiting = rows[picks[0]]["waiting"]
        num_roomy = 0
        for k in range(count):
            i = picks[k]
            fewest_waiting = min(fewest_waiting, rows[i]["waiting"])
            has_room[i] = _has_room(request, rows[i], most_running[i], most_tokens[i])
            if has_room[i]:
                roomy[num_roomy] = i
                num_roomy += 1

        num_owners = _find_owners(request, rows, picks, count, settings, owners)
        all_queue = settings.queue_limit > 0 and fewest_waiting >= settings.queue_limit
        all_back = all_queue and settings.queue_floor == 0
        num_kept, num_dropped = 0, 0
        for k in range(num_owners):
            i = owners[k]
            if not has_room[i]:
                continue
            if _is_queueing(rows[i], settings.queue_limit) and not all_back:
                dropped[num_dropped] = i
                num_dropped += 1
            else:
                owners[num_kept] = i
                num_kept += 1

        if num_kept > 0:
            best = owners[0]  # the most matched, that is the least E
            least_matched = rows[best]["hit_tokens"] - settings.switch_margin
            for k in range(1, num_kept):
                i = owners[k]
                if rows[i]["hit_tokens"] >= least_matched and _wins(rows, i, best, settings):
                    best = i
            if settings.balanced:
                best = _balanced(request, rows, best, roomy, num_roomy, keys[e])
            chosen[e] = best
            continue

        if num_dropped > 0 and settings.queue_floor > 0 and fewest_waiting >= settings.queue_floor:
            chosen[e] = least_pressed(rows, dropped, num_dropped)
            continue

        first, second = less_pressed_of_two(rows, picks, count, keys[e], request["index"])
        if has_room[first] and not _is_queueing(rows[first], settings.queue_limit):
            chosen[e] = first
        elif has_room[second] and not _is_queueing(rows[second], settings.queue_limit):
            chosen[e] = second
        else:
            chosen[e] = _fallback(rows, roomy, num_roomy, first, settings)


@kernel
def _balanced(
    request: Record,
    rows: NDArray[np.void],
    owner: int,
    roomy: NDArray[np.int64],
    num_roomy: int,
    key: np.uint64,
) -> int:
    others = np.empty(len(roomy), np.int64)
    num_others = 0
    for k in range(num_roomy):
        if roomy[k] != owner:
            others[num_others] = roomy[k]
            num_others += 1
    if num_others == 0:
        return owner
    other, _ = less_pressed_of_two(rows, others, num_others, key, request["index"])
    prompt = request["prompt_tokens"]
    owner_load = rows[owner]["waiting_tokens"] + prompt - rows[owner]["hit_tokens"]
    other_load = rows[other]["waiting_tokens"] + prompt - rows[other]["hit_tokens"]
    gap = owner_load - other_load
    if owner_load > _BALANCED_RATIO * other_load and gap > _BALANCED_TOKENS:
        return other
    return owner


@kernel
def _fallback(
    rows: NDArray[np.void],
    roomy: NDArray[np.int64],
    num_roomy: int,
    drawn: int,
    settings: _Settings,
) -> int:
    """Neither draw can take the request: see step 6."""
    free = np.empty(len(roomy), np.int64)
    num_free = 0
    for k in range(num_roomy):
        if not _is_queueing(rows[roomy[k]], settings.queue_limit):
            free[num_free] = roomy[k]
            num_free += 1
    best = least_pressed(rows, free, num_free)
    if best == NOWHERE:
        best = least_pressed(rows, roomy, num_roomy)
    return drawn if best == NOWHERE else best
