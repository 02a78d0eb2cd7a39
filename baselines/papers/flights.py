"""What a router remembers of its requests in flight: where they are and since when they decode."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.view.view import ENDED, FIRST_TOKEN, View

NOWHERE = -1

FLIGHT = np.dtype(
    [
        ("routed", np.float64),  # s
        ("first_token", np.float64),  # s: when it came, or as predicted when it was routed
        ("prompt_tokens", np.int64),
        ("instance", np.int32),  # NOWHERE if the slot is free
        ("decoding", np.int32),  # 1 from the first token on
    ],
    align=True,
)

DECODE_LOAD = np.dtype([("requests", np.int64), ("prompt_tokens", np.int64)], align=True)
"""Requests of an instance that have a first token and no end."""


class Flights:
    """The requests in flight of E environments with N instances.

    Attributes:
        slots: FLIGHT records, shape [E, Q], by slot.
        decode: DECODE_LOAD records, shape [E, N].
    """

    def __init__(self, num_envs: int, num_instances: int) -> None:
        self.slots = np.zeros((num_envs, 0), FLIGHT)
        self.decode = np.zeros((num_envs, num_instances), DECODE_LOAD)

    def hear(self, view: View) -> None:
        """Take in first tokens and ends."""
        if self.slots.shape[1] < view.num_slots:
            known = self.slots.shape[1]
            self.slots = widened(self.slots, view.num_slots)
            self.slots["instance"][:, known:] = NOWHERE
        _hear(view.events, view.num_events, self.slots, self.decode)

    def book(self, view: View, chosen: NDArray[np.int64], first_token: NDArray[np.float64]) -> None:
        """The current requests go to `chosen` and will answer at `first_token` (s), [E] each."""
        _book(view.requests, chosen, first_token, self.slots)


@kernel
def _hear(
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    slots: NDArray[np.void],
    decode: NDArray[np.void],
) -> None:
    for e in range(len(num_events)):
        for k in range(num_events[e]):
            event = events[e, k]
            flight = slots[e, event["slot"]]
            load = decode[e, event["instance"]]
            if event["kind"] == FIRST_TOKEN:
                flight["first_token"] = event["time"]
                flight["decoding"] = 1
                load["requests"] += 1
                load["prompt_tokens"] += flight["prompt_tokens"]
            elif event["kind"] >= ENDED:  # finished, failed or cancelled
                if flight["decoding"]:
                    load["requests"] -= 1
                    load["prompt_tokens"] -= flight["prompt_tokens"]
                flight["instance"] = NOWHERE


@kernel
def _book(
    requests: NDArray[np.void],
    chosen: NDArray[np.int64],
    first_token: NDArray[np.float64],
    slots: NDArray[np.void],
) -> None:
    for e in range(len(chosen)):
        flight = slots[e, requests[e]["slot"]]
        flight["routed"] = requests[e]["time"]
        flight["first_token"] = first_token[e]
        flight["prompt_tokens"] = requests[e]["prompt_tokens"]
        flight["instance"] = chosen[e]
        flight["decoding"] = 0
