"""LMetric: tokens to prefill times batch size, with a guard against hot prefixes.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §8.1 (arXiv 2603.15202, OSDI'26); class key,
window and ties read in Dynamo's port, ai-dynamo/dynamo `router-plugins/builtin/src/lmetric.rs` at
6dcfceb3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates, first_least
from prefixgym.baselines.full_blocks import full_blocks
from prefixgym.baselines.papers.recent_keys import (
    NO_KEY,
    RecentKeys,
    count_of,
    enter,
    note_of,
    recent_keys,
    set_note,
    with_room,
)
from prefixgym.baselines.router import register
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View


@register
@dataclass
class LMetric(ScoredRouter):
    """The instance with the least product of tokens to prefill and requests to serve.

        score_i = max(1, q_i + L - c_i) · (requests_i + 1)

    q_i = prompt tokens booked on i and without a first token, c_i = cached tokens, requests_i = in
    flight there. These are the router's own counters, which change at dispatch, first token and end
    as the paper's do; while a prompt is being prefilled the booked tokens stay whole. A weight on
    either factor would cancel out, so there is none to tune.

    Guard. A class is the requests with the same first class_prefix_blocks full blocks; x is its
    share of the last window_requests requests that have a class, this one included, and M are the
    m of the n available instances that hold these blocks. A class wants more than M can serve when

        x / (1 - x) > m / (n - m)

    Once the best instance was one of M for 2 m such requests of the class in a row, M is ruled out,
    until a request of the class ends the row. A prompt too short for a class is not guarded.

    Dynamo's blocks have 16 to 64 tokens; here they are the view's. The first among equals, as in
    Dynamo's port.

    Attributes:
        queued_prefill: whether q_i is counted. Dynamo's port leaves it out.
        hotspot_detection: whether there is a guard.
        class_prefix_blocks: blocks that make a class.
        window_requests: requests over which shares are measured.
    """

    name = "lmetric"
    source = "LMetric, arXiv 2603.15202 (§8.1)"
    family = "papers"
    knows = ("index", "ledger")
    ties = "first"

    queued_prefill: bool = True
    hotspot_detection: bool = True
    class_prefix_blocks: int = 4
    window_requests: int = 1000

    def __post_init__(self) -> None:
        self.require("class_prefix_blocks", self.class_prefix_blocks >= 1, "at least 1")
        self.require("window_requests", self.window_requests >= 1, "at least 1")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """No requests in the window."""
        super().reset(cluster, seeds)
        num_envs = len(seeds)
        self._block_size = cluster.block_size
        self._recent = recent_keys(num_envs, self.window_requests)
        # Of the current request, for `commit`.
        self._classes = np.empty(num_envs, np.int64)
        self._rows = np.empty(num_envs, np.int32)

    def scores(self, view: View) -> NDArray[np.float64]:
        """Token-requests; inf where the guard rules out."""
        scores = np.empty(view.instances.shape)
        _products(view.requests, view.instances, self.queued_prefill, scores)
        if self.hotspot_detection:
            _guard(
                view.requests,
                view.block_ids,
                view.instances,
                self._recent,
                self._block_size,
                self.class_prefix_blocks,
                self._classes,
                self._rows,
                scores,
            )
        return scores

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """The request joins the window."""
        if self.hotspot_detection:
            self._recent = with_room(self._recent)
            _remember(self._recent, self._classes, self._rows)


@kernel
def _products(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    queued_prefill: bool,
    scores: NDArray[np.float64],
) -> None:
    for e in range(instances.shape[0]):
        for i in range(instances.shape[1]):
            row = instances[e, i]
            tokens = requests[e]["prompt_tokens"] - row["hit_tokens"]
            if queued_prefill:
                tokens += row["prefill_tokens"]
            scores[e, i] = max(1, tokens) * (row["requests"] + 1)


@kernel
def _guard(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    recent: RecentKeys,
    block_size: int,
    class_blocks: int,
    classes: NDArray[np.int64],
    rows: NDArray[np.int32],
    scores: NDArray[np.float64],
) -> None:
    """Rule out the holders of hot classes; write the class and the length of its row, [E] each."""
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(classes)):
        classes[e] = NO_KEY
        rows[e] = 0
        if full_blocks(requests[e], block_size) < class_blocks:
            continue
        key = block_ids[e, class_blocks - 1]
        classes[e] = key
        # The window as it will be with this request.
        arrivals, total = count_of(recent, e, key) + 1, recent.length[e] + 1
        if total > recent.keys.shape[1]:
            total -= 1
            arrivals -= recent.keys[e, recent.head[e], 0] == key
        count = candidates(instances[e], picks)
        holders = 0
        for k in range(count):
            holders += instances[e, picks[k]]["hit_tokens"] >= class_blocks * block_size
        others = count - holders
        # x / (1 - x) > m / (n - m), multiplied out.
        hot = arrivals * others > (total - arrivals) * holders
        best = first_least(scores[e], picks, count)
        if holders == 0 or others == 0 or not hot:
            continue
        if instances[e, best]["hit_tokens"] < class_blocks * block_size:
            continue
        rows[e] = note_of(recent, e, key) + 1
        if rows[e] >= 2 * holders:
            for k in range(count):
                if instances[e, picks[k]]["hit_tokens"] >= class_blocks * block_size:
                    scores[e, picks[k]] = np.inf


@kernel
def _remember(recent: RecentKeys, classes: NDArray[np.int64], rows: NDArray[np.int32]) -> None:
    for e in range(len(classes)):
        if classes[e] != NO_KEY:
            enter(recent, e, classes[e : e + 1], 1)
            set_note(recent, e, classes[e], rows[e])
