"""The router's own arrivals at each instance in a sliding window: what vLLM's stack calls QPS.

Source: `routers_sglang_vllm_aibrix_llmd.md` §2.0, §2.9 (RequestStatsMonitor, window 60 s).
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.view.recent import Recent, append, drop_first, first, recent, with_room

_NO_NODE = -1


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
        self._log = recent(num_envs)

    def advance(self, now: NDArray[np.float64]) -> None:
        """Forget the arrivals before `now` - window; `now` in seconds, shape [E]."""
        _advance(now - self.window, self._log, self.counts)

    def record(self, now: NDArray[np.float64], instances: NDArray[np.int64]) -> None:
        """Count an arrival in each environment, at the instance that was chosen."""
        self._log = with_room(self._log, 1)
        _record(now, instances, self._log, self.counts, self.seen)


@kernel
def _advance(oldest: NDArray[np.float64], log: Recent, counts: NDArray[np.int64]) -> None:
    for e in range(len(oldest)):
        while log.size[e] > 0 and first(log, e)["time"] < oldest[e]:
            counts[e, first(log, e)["instance"]] -= 1
            drop_first(log, e)


@kernel
def _record(
    now: NDArray[np.float64],
    chosen: NDArray[np.int64],
    log: Recent,
    counts: NDArray[np.int64],
    seen: NDArray[np.bool_],
) -> None:
    for e in range(len(now)):
        append(log, e, now[e], 1, chosen[e], _NO_NODE)
        counts[e, chosen[e]] += 1
        seen[e, chosen[e]] = True
