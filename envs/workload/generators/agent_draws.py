"""What agent sessions are made from and into: buffers of draws, refilled, and the calls played."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CALL = np.dtype(
    [
        ("time", np.int64),  # ticks of its arrival if every call is served in nominal time
        ("wait", np.int64),  # ticks from the last end that it waits for to its arrival
        ("session", np.int64),
        ("chain", np.int64),  # what one agent has said since its last reset: blocks of its own
        ("parent", np.int64),  # earlier call whose end it waits for, or NO_ROW
        ("then", np.int64),  # later call that waits for its end too, or NO_ROW
        ("is_sub_agent", np.int64),
        ("prompt_tokens", np.int64),
        ("output_tokens", np.int64),
    ],
    align=True,
)


class Draws(NamedTuple):
    """Buffers of independent draws; lengths are in tokens, times in ticks, chances in [0, 1)."""

    spawn_chance: NDArray[np.float64]
    reset_chance: NDArray[np.float64]
    think_time: NDArray[np.int64]
    new_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    summary_tokens: NDArray[np.int64]
    sub_agents: NDArray[np.int64]
    sub_agent_calls: NDArray[np.int64]
    sub_agent_task_tokens: NDArray[np.int64]
    sub_agent_reset_chance: NDArray[np.float64]
    sub_agent_think_time: NDArray[np.int64]
    sub_agent_new_tokens: NDArray[np.int64]
    sub_agent_output_tokens: NDArray[np.int64]
    sub_agent_summary_tokens: NDArray[np.int64]


(
    SPAWN,
    RESET,
    THINK,
    NEW,
    OUTPUT,
    SUMMARY,
    SUBS,
    SUB_CALLS,
    SUB_TASK,
    SUB_RESET,
    SUB_THINK,
    SUB_NEW,
    SUB_OUTPUT,
    SUB_SUMMARY,
    CALLS,
    CHAINS,
) = range(16)
"""Places in `used`: how much of each buffer is taken, of the calls written, of the chains begun."""


class Supply:
    """Draws, the calls made of them, and how far both are used.

    Args:
        sub_calls: calls of sub-agents that a main agent's call leads to, on average …
        most_sub_calls: … and at most.
    """

    def __init__(self, sub_calls: float, most_sub_calls: int) -> None:
        self._calls_per_call = 1.0 + sub_calls
        self._most_sub_calls = most_sub_calls
        self._sources: list[tuple[Callable[[int], NDArray[Any]], float, int]] = []
        self._buffers: list[NDArray[Any]] = []
        self._room = np.empty(0, CALL)
        self.used = np.zeros(CHAINS + 1, np.int64)

    def add(self, sampler: Callable[[int], NDArray[Any]], per_call: float, least: int) -> None:
        """Name the source of the next field of `Draws`.

        Args:
            sampler: gives so many draws.
            per_call: how many a main agent's call takes on average.
            least: how many there must be before a call.
        """
        self._sources.append((sampler, per_call, least))
        self._buffers.append(np.empty(0, np.int64))

    @property
    def state(self) -> tuple[Draws, NDArray[np.int64], NDArray[np.void]]:
        """What kernels take: the buffers, how much of each is used, room for calls."""
        return Draws(*self._buffers), self.used, self._room

    @property
    def calls(self) -> NDArray[np.void]:
        """The calls written."""
        return self._room[: self.used[CALLS]]

    def refill(self, calls: int) -> None:
        """Provide for about so many calls, of all agents, and for one at least.

        Draws that are left stay first in line, so that no draw depends on when this is called.
        """
        main_calls = calls / self._calls_per_call
        for place, (sampler, per_call, least) in enumerate(self._sources):
            left = self._buffers[place][self.used[place] :]
            wanted = _enough(per_call * main_calls) + least
            if len(left) < max(least, wanted // 2):
                more = sampler(wanted - len(left))
                left = np.concatenate([left, more]) if len(left) > 0 else more
            self._buffers[place] = left
            self.used[place] = 0
        wanted = _enough(calls) + self._most_sub_calls
        if len(self._room) - self.used[CALLS] < max(self._most_sub_calls + 1, wanted // 2):
            room = np.empty(self.used[CALLS] + wanted, CALL)
            room[: self.used[CALLS]] = self.calls
            self._room = room


def _enough(expected: float) -> int:
    """A count that one with this expectation hardly ever passes."""
    return int(expected + 3.0 * expected**0.5) + 1
