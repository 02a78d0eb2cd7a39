"""A FlexLB router alone on a stage: requests and events by hand, without a simulator."""

from typing import Any

import numpy as np
from made_views import BLOCK, cluster_of
from numpy.typing import ArrayLike

from prefixgym.baselines.flexlb.books import Books
from prefixgym.baselines.flexlb.ledger import inflight_ms
from prefixgym.baselines.router import make_router
from prefixgym.envs.view.view import (
    DISPATCHED,
    ENDED,
    EVENT_VIEW,
    FIRST_TOKEN,
    HOLD,
    INSTANCE_VIEW,
    REQUEST_VIEW,
    STARTED,
    View,
)

__all__ = ["DISPATCHED", "ENDED", "FIRST_TOKEN", "STARTED", "Stage"]

SLOTS, EVENTS = 256, 512


class Stage:
    """One environment. Requests get slots 0, 1, …; times are milliseconds."""

    def __init__(self, num_instances: int, name: str = "flexlb", seed: int = 0, **parameters: Any):
        self.router: Any = make_router(name, parameters)
        self.cluster = cluster_of(num_instances)
        self.router.reset(self.cluster, [seed])
        self.holds = np.zeros((1, num_instances), HOLD)
        self.events = np.zeros((1, EVENTS), EVENT_VIEW)
        self.num_events = np.zeros(1, np.int64)
        self.index = 0

    @property
    def books(self) -> Books:
        books: Books = self.router._books
        return books

    def hear(self, ms: float, slot: int, instance: int, *kinds: int) -> None:
        for kind in kinds:
            self.events[0, self.num_events[0]] = (ms / 1000, slot, instance, kind)
            self.num_events[0] += 1

    def route(self, ms: float, prompt: int = 4096, slot: int = -1, **instances: ArrayLike) -> int:
        """The choice for a request that arrives at `ms`; columns of the view by name."""
        requests = np.zeros(1, REQUEST_VIEW)
        requests["time"] = ms / 1000
        requests["prompt_tokens"] = prompt
        requests["num_blocks"] = 1
        requests["index"] = self.index
        requests["slot"] = self.index if slot < 0 else slot
        rows = np.zeros((1, self.holds.shape[1]), INSTANCE_VIEW)
        rows["available"] = 1
        for column, values in instances.items():
            rows[column] = values
        view = View(
            self.cluster,
            requests,
            np.full((1, 1), BLOCK, np.int64),
            rows,
            self.events,
            self.num_events,
            self.holds,
            num_slots=SLOTS,
        )
        (choice,) = self.router.route(view)
        self.num_events[0] = 0
        self.index += 1
        return int(choice)

    def listen(self, ms: float) -> None:
        """Let the router hear, without another request: one for which no worker is there."""
        assert self.route(ms, slot=SLOTS - 1, available=0) == self.holds.shape[1]

    def inflight(self, ms: int, instance: int = 0) -> int:
        """T_inflight at `ms`, as of what the router has heard."""
        settings = self.router._settings
        return inflight_ms(self.books, settings.status_poll_ms, 0, instance, ms)

    def leave(self, ms: float, instance: int = 0, *slots: int) -> None:
        """Requests in `slots` leave the router together."""
        for slot in slots:
            self.hear(ms, slot, instance, DISPATCHED)

    def release_ms(self, instance: int = 0) -> float:
        return float(round(self.holds["release"][0, instance] * 1000, 6))
