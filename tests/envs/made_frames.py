"""Frames made up for the viewers' tests."""

import numpy as np

from prefixgym.envs.rendering.frame import (
    GOOD,
    MISSED,
    NOTHING,
    RECENT,
    Frame,
    ShownDecision,
    ShownRequest,
    Totals,
)


def made_frame(num_instances: int, *, over: bool = False, mixed: bool = False) -> Frame:
    """Instance i runs 10 i requests; instance 1 was chosen, has missed, and is late."""
    i = np.arange(num_instances)
    recent = np.full((num_instances, RECENT), NOTHING, np.int8)
    recent[:, -3:] = GOOD
    recent[1, -2] = MISSED
    kinds = ("h100", "a100") if mixed else ("h100",)
    return Frame(
        title="random on nothing at 2 requests/s",
        time=12.5,
        decisions=24,
        num_requests=1000,
        profiles=tuple(f"llama-3.1-8b/{kinds[k % len(kinds)]}/tp1" for k in range(num_instances)),
        request=None if over else ShownRequest(24, 7, 2000, 0.5, 0.45, 0.04),
        decision=ShownDecision(23, 1, 1000, 256, 512),
        totals=Totals(20, 15, 1.2, 0.75, 0.15, 1.25, 0.0312, 0.5),
        available=i != 2,
        waiting=np.where(i == 1, 4, 0),
        running=10 * i,
        kv_used=np.where(i == 1, 0.5, 0.0),
        kv_cached=np.where(i == 1, 0.25, 1.0),
        hit=np.where(i == 0, 0.64, 0.0),
        backlog=np.where(i == 1, 1.0, 0.0),
        prefill=np.full(num_instances, 0.125),
        routed=i + 10,
        missed=np.where(i == 1, 5, 0),
        hit_rate=np.where(i == 2, np.nan, 0.25),
        recent=recent,
    )
