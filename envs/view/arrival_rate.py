"""The router's own arrivals at each instance in a sliding window: what vLLM's stack calls QPS.

Source: `routers_sglang_vllm_aibrix_llmd.md` §2.0, §2.9 (RequestStatsMonitor, window 60 s).
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel

_START_CAPACITY = 256


class ArrivalRate:
    """Arrivals of the last `window` seconds in E environments, counted by instance.

    Attributes:
        counts: arrivals in the window, int64 [E, N].
        seen: whether the instance ever got a request, bool [E, N].
    """

    def __init__(self, num_envs: int, num_instances: int, window: float) -> None:
        self.window = window
        self.counts = np.zeros((num_envs, num_instances), np.int64)
        self.seen = np.zeros((num_envs, num_instances), np.bool_)
        # A ring buffer an environment: arrivals head, head + 1, …, modulo the capacity.
        self._head = np.zeros(num_envs, np.int64)
        self._length = np.zeros(num_envs, np.int64)
        self._times = np.empty((num_envs, _START_CAPACITY))
        self._instances = np.empty((num_envs, _START_CAPACITY), np.int64)

    def advance(self, now: NDArray[np.float64]) -> None:
        """Forget the arrivals before `now` - window; `now` in seconds, shape [E]."""
        _advance(
            now - self.window, self._times, self._instances, self._head, self._length, self.counts
        )

    def record(self, now: NDArray[np.float64], instances: NDArray[np.int64]) -> None:
        """Count an arrival in each environment, at the instance that was chosen."""
        capacity = self._times.shape[1]
        if self._length.max() == capacity:
            # Unrolled twice, every ring buffer is intact from its head on.
            self._times = np.hstack([self._times, self._times])
            self._instances = np.hstack([self._instances, self._instances])
        _record(
            now,
            instances,
            self._times,
            self._instances,
            self._head,
            self._length,
            self.counts,
            self.seen,
        )


@kernel
def _advance(
    oldest: NDArray[np.float64],
    times: NDArray[np.float64],
    instances: NDArray[np.int64],
    head: NDArray[np.int64],
    length: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    for e in range(len(oldest)):
        while length[e] > 0 and times[e, head[e]] < oldest[e]:
            counts[e, instances[e, head[e]]] -= 1
            head[e] = (head[e] + 1) % times.shape[1]
            length[e] -= 1


@kernel
def _record(
    now: NDArray[np.float64],
    chosen: NDArray[np.int64],
    times: NDArray[np.float64],
    instances: NDArray[np.int64],
    head: NDArray[np.int64],
    length: NDArray[np.int64],
    counts: NDArray[np.int64],
    seen: NDArray[np.bool_],
) -> None:
    for e in range(len(now)):
        slot = (head[e] + length[e]) % times.shape[1]
        times[e, slot] = now[e]
        instances[e, slot] = chosen[e]
        length[e] += 1
        counts[e, chosen[e]] += 1
        seen[e, chosen[e]] = True
