"""SGLang's bucket policy: every instance takes prompts of its own range of lengths.

Source: `routers_sglang_vllm_aibrix_llmd.md` §1.10; read in sglang
`sgl-model-gateway/src/policies/bucket.rs` at 092fb045, and held against sglang-router 0.3.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import NOWHERE, register
from prefixgym.baselines.scored import ScoredRouter, Ties
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View

_NO_BOUND = np.iinfo(np.int64).max
_START_CAPACITY = 256


@register
@dataclass
class Bucket(ScoredRouter):
    """The instance whose range holds the prompt's length, until characters are out of balance.

    c_i = characters sent to instance i within the last bucket_adjust_interval_secs.

    1. Out of balance iff max c - min c > balance_abs_threshold and max c > balance_rel_threshold ·
       min c, both strict: the instance with the least c. Equals: the first (there: an arbitrary but
       fixed order).
    2. Else the instance whose range holds the prompt's characters.

    The thresholds' defaults are those of request counts, but characters are compared with them, so
    that nearly every decision is "out of balance": a trap of the real policy that is kept here.

    Ranges start as equal shares of first_range characters, the last without an end. Every
    bucket_adjust_interval_secs the window's characters per instance are compared with their value
    at the last adjustment; unless that is within a factor of 2, the window's lengths are sorted and
    each instance in turn gets lengths until their sum reaches the mean. The window is cleared of
    old requests only when one arrives, so an adjustment can use old ones.

    Made for pools of prefill workers. Health is not looked at there: a request whose instance is
    down fails, or goes to an instance that is down. Here it goes to the first that is available.

    Attributes:
        balance_abs_threshold: characters (struct default: 32).
        balance_rel_threshold: ratio (struct default: 1.0001).
        bucket_adjust_interval_secs: seconds, of the window as well.
        first_range: characters that the first ranges divide: 4096 by the source, but sglang-router
            0.3.2 lays them anew for every worker that registers, and from the second time on it
            divides the largest integer. All requests belong to the first instance then, until the
            first adjustment.
        chars_per_token: characters that a token stands for.
    """

    name = "bucket"
    source = "SGLang model gateway, bucket, CLI defaults, sglang-router 0.3.2 (§1.10)"
    family = "SGLang"
    knows = ("history",)
    ties: ClassVar[Ties] = "first"

    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    bucket_adjust_interval_secs: int = 5
    first_range: int = 2**63 - 1
    chars_per_token: float = 4.0

    def __post_init__(self) -> None:
        self.require("balance_abs_threshold", self.balance_abs_threshold >= 0, "at least 0")
        self.require("balance_rel_threshold", self.balance_rel_threshold >= 0, "at least 0")
        self.require(
            "bucket_adjust_interval_secs", self.bucket_adjust_interval_secs >= 1, "at least 1"
        )
        self.require("first_range", 1 <= self.first_range < 2**63, "1 to 2^63 - 1")
        self.require("chars_per_token", 0 < self.chars_per_token < math.inf, "above 0 and finite")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Equal ranges, an empty window."""
        super().reset(cluster, seeds)
        shape = len(seeds), len(cluster.instances)
        share = self.first_range // shape[1]
        self._ends = np.tile(np.arange(1, shape[1] + 1) * share - 1, (shape[0], 1))
        self._ends[:, -1] = _NO_BOUND
        self._chars = np.zeros(shape, np.int64)
        self._mean = np.zeros(shape[0], np.int64)
        self._next_adjustment = np.full(shape[0], float(self.bucket_adjust_interval_secs))
        # A ring buffer an environment: requests head, head + 1, …, modulo the capacity.
        self._head = np.zeros(shape[0], np.int64)
        self._length = np.zeros(shape[0], np.int64)
        self._window = np.empty((shape[0], _START_CAPACITY), _SENT)

    def hear(self, view: View) -> None:
        """Move the ranges where it is time to."""
        _adjust(
            view.requests["time"],
            float(self.bucket_adjust_interval_secs),
            self._next_adjustment,
            self._window,
            self._head,
            self._length,
            self._mean,
            self._ends,
        )

    def scores(self, view: View) -> NDArray[np.float64]:
        """Characters in the window where they are out of balance; else 0 in range, 1 outside."""
        scores = np.empty(view.instances.shape)
        _scores(
            self._prompt_chars(view.requests),
            self._chars,
            self._ends,
            self.balance_abs_threshold,
            self.balance_rel_threshold,
            scores,
        )
        return scores

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """Put the request in the window, take what is too old out."""
        self.overhear(view.requests, view.block_ids, chosen)

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Put them in the window as well."""
        capacity = self._window.shape[1]
        if self._length.max() == capacity:
            # Unrolled twice, every ring buffer is intact from its head on.
            self._window = np.hstack([self._window, self._window])
        _send(
            requests["time"],
            self._prompt_chars(requests),
            chosen,
            float(self.bucket_adjust_interval_secs),
            self._window,
            self._head,
            self._length,
            self._chars,
        )

    def _prompt_chars(self, requests: NDArray[np.void]) -> NDArray[np.int64]:
        return (requests["prompt_tokens"] * self.chars_per_token).astype(np.int64)


_SENT = np.dtype([("time", np.float64), ("chars", np.int64), ("instance", np.int64)], align=True)


@kernel
def _scores(
    prompt_chars: NDArray[np.int64],
    window_chars: NDArray[np.int64],
    ends: NDArray[np.int64],
    balance_abs_threshold: int,
    balance_rel_threshold: float,
    scores: NDArray[np.float64],
) -> None:
    for e in range(len(scores)):
        low, high = window_chars[e].min(), window_chars[e].max()
        if high - low > balance_abs_threshold and high > balance_rel_threshold * low:
            for i in range(scores.shape[1]):
                scores[e, i] = window_chars[e, i]
            continue
        owner = 0
        while prompt_chars[e] > ends[e, owner]:
            owner += 1
        for i in range(scores.shape[1]):
            scores[e, i] = 0.0 if i == owner else 1.0


@kernel
def _send(
    now: NDArray[np.float64],
    prompt_chars: NDArray[np.int64],
    chosen: NDArray[np.int64],
    period: float,
    window: NDArray[np.void],
    head: NDArray[np.int64],
    length: NDArray[np.int64],
    window_chars: NDArray[np.int64],
) -> None:
    capacity = window.shape[1]
    for e in range(len(now)):
        if chosen[e] == NOWHERE:
            continue
        window_chars[e, chosen[e]] += prompt_chars[e]
        while length[e] > 0 and now[e] - window[e, head[e]]["time"] > period:
            old = window[e, head[e]]
            window_chars[e, old["instance"]] -= old["chars"]
            head[e] = (head[e] + 1) % capacity
            length[e] -= 1
        sent = window[e, (head[e] + length[e]) % capacity]
        sent["time"] = now[e]
        sent["chars"] = prompt_chars[e]
        sent["instance"] = chosen[e]
        length[e] += 1


@kernel
def _adjust(
    now: NDArray[np.float64],
    interval: float,
    next_adjustment: NDArray[np.float64],
    window: NDArray[np.void],
    head: NDArray[np.int64],
    length: NDArray[np.int64],
    mean: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> None:
    """Move the ranges where their time has come. Nothing was sent since, so once is enough."""
    num_instances = ends.shape[1]
    for e in range(len(now)):
        if now[e] < next_adjustment[e]:
            continue
        next_adjustment[e] = (math.floor(now[e] / interval) + 1) * interval
        if length[e] == 0:
            continue
        lengths = np.empty(length[e], np.int64)
        for k in range(len(lengths)):
            lengths[k] = window[e, (head[e] + k) % window.shape[1]]["chars"]
        new = lengths.sum() // num_instances
        if mean[e] != 0 and new <= 2 * mean[e] and mean[e] <= 2 * new:
            continue
        mean[e] = new
        lengths.sort()
        start, k = 0, 0  # the range's first length, the first request that no range took
        for i in range(num_instances - 1):
            end, total = start + new, 0
            while k < len(lengths):
                total += lengths[k]
                k += 1
                if total >= new:
                    if lengths[k - 1] > start:
                        end = lengths[k - 1]
                    break
            ends[e, i] = end
            start = end + 1
