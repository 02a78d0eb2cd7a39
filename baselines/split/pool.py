"""A pool of instances as a cluster of its own, for routers that know nothing of the other half.

What a pool's router hears is what the real one is told: that of the prefill pool of requests that
answer with one token and end, that of the decode pool of requests whose prompt is there already.
"""

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import (
    DISPATCHED,
    ENDED,
    EVENT_VIEW,
    FIRST_TOKEN,
    PREFILLED,
    STARTED,
    View,
)

Half = Literal["prefill", "decode"]

NOT_HERE = -1
_MOST_TOLD = 3
"""Most events of a pool that one event of the cluster becomes."""


class Pool:
    """The instances that may do one half of requests.

    Attributes:
        members: their numbers in the cluster.
        cluster: these instances alone.

    Args:
        cluster: all instances.
        half: which half.
    """

    def __init__(self, cluster: ClusterSpec, half: Half) -> None:
        self.members = np.array(cluster.pool(half))
        self.half = half
        instances = (cluster.instances[i] for i in self.members)
        self.cluster = dataclasses.replace(
            cluster, instances=tuple(dataclasses.replace(i, role="mixed") for i in instances)
        )
        self._place = np.full(len(cluster.instances), NOT_HERE)
        self._place[self.members] = np.arange(len(self.members))
        self._events = np.zeros((0, 0), EVENT_VIEW)

    def view(self, view: View, sent: NDArray[np.int64]) -> View:
        """What this pool's router sees of a view of the cluster.

        Args:
            view: of the whole cluster.
            sent: [2, E, slots], where the request in a slot is prefilled, and where it is decoded.
        """
        num_envs, most = view.num_envs, _MOST_TOLD * int(view.num_events.max())
        if self._events.shape[0] != num_envs or self._events.shape[1] < most:
            self._events = np.zeros((num_envs, 2 * most), EVENT_VIEW)
        part = self.glance(view)
        part.events = self._events
        decodes = self.half == "decode"
        _tell(
            view.events, view.num_events, sent, self._place, decodes, part.events, part.num_events
        )
        return part

    def glance(self, view: View) -> View:
        """The same for who hears no events."""
        return dataclasses.replace(
            view,
            cluster=self.cluster,
            instances=view.instances[:, self.members],
            holds=view.holds[:, self.members],
            num_events=np.zeros_like(view.num_events),
        )

    def places(self, instances: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers within the pool of instances of the cluster; NOT_HERE of others, and of none."""
        return np.append(self._place, NOT_HERE)[instances]


@kernel
def _tell(
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    sent: NDArray[np.int64],
    place: NDArray[np.int64],
    decodes: bool,
    told: NDArray[np.void],
    num_told: NDArray[np.int64],
) -> None:
    """Write the pool's events [E, K'] and their number [E]."""
    for e in range(len(num_events)):
        for k in range(num_events[e]):
            event = events[e, k]
            prefiller, decoder = sent[0, e, event.slot], sent[1, e, event.slot]
            i, time, slot, kind = event.instance, event.time, event.slot, event.kind
            moves = prefiller != decoder
            if not decodes:
                if moves and i == prefiller and kind == PREFILLED:
                    _add(told, num_told, e, time, slot, place[i], FIRST_TOKEN)
                    _add(told, num_told, e, time, slot, place[i], ENDED)
                elif moves and i == prefiller:
                    _add(told, num_told, e, time, slot, place[i], kind)
            elif not moves or i == decoder:
                if moves and kind == FIRST_TOKEN:
                    _add(told, num_told, e, time, slot, place[i], STARTED)
                _add(told, num_told, e, time, slot, place[i], kind)
            elif kind == DISPATCHED or kind not in (STARTED, FIRST_TOKEN, PREFILLED):
                # It is on its way to the decoder; or it has ended before it came there.
                _add(told, num_told, e, time, slot, place[decoder], kind)


@kernel
def _add(
    told: NDArray[np.void],
    num_told: NDArray[np.int64],
    e: int,
    time: float,
    slot: int,
    i: int,
    kind: int,
) -> None:
    event = told[e, num_told[e]]
    event.time = time
    event.slot = slot
    event.instance = i
    event.kind = kind
    num_told[e] += 1
