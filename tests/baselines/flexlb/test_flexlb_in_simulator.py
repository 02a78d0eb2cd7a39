"""FlexLB's routers through the simulator: what holds for every batch and every held request."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tapes import Sent, play

from prefixgym.baselines.flexlb.books import clock_ms
from prefixgym.baselines.flexlb.ledger import inflight_ms
from prefixgym.baselines.router import make_router
from prefixgym.envs.view.knowledge import Knowledge, Telemetry
from prefixgym.envs.view.view import DISPATCHED, View

VARIANTS: Mapping[str, dict[str, Any]] = {
    "default": {},
    "calibrated": {"cost_formula_compute_ms": 0.025, "cost_formula_hit_ms": 0.0005},
    "limited": {"flexlb_batch_fixed_max_inflight_batches": 1},
    "threshold": {"flexlb_batch_predict_threshold_ms": 2000},
    "auto_tpm": {"auto_tpm_enabled": True},
    "learning": {"prefill_predictor_type": "learning"},
    "no batches": {"flexlb_batch_enabled": False},
    "slo_budget": {
        "flexlb_batch_algorithm": "slo_budget",
        "cost_formula_compute_ms": 0.025,
        "flexlb_batch_slo_max_inflight_batches": 0,
    },
    "limited slo_budget": {
        "flexlb_batch_algorithm": "slo_budget",
        "cost_formula_compute_ms": 0.025,
    },
}
LONGEST_HOLD = {
    "no batches": 0.0,
    "slo_budget": 0.5,  # cost_slo_ms
    "limited": np.inf,  # first tokens have to come first
    "limited slo_budget": np.inf,
}
"""s, by variant; else the window."""


class Watch:
    """Compares a router's books with what the view tells, at every decision."""

    def __init__(self, router: Any) -> None:
        self.router = router
        self.routed: dict[int, float] = {}  # time, by slot
        self.longest_hold = 0.0

    def look(self, view: View) -> None:
        departed: Counter[int] = Counter()
        for event in view.events[0, : view.num_events[0]]:
            if event["kind"] == DISPATCHED:
                hold = float(event["time"]) - self.routed[int(event["slot"])]
                self.longest_hold = max(self.longest_hold, hold)
                departed[int(event["instance"])] += 1
        now = float(view.requests["time"][0])
        self.routed[int(view.requests["slot"][0])] = now
        books = self.router._books
        assert (books.entries["members"] <= self.router.flexlb_batch_size_max).all()
        for i, endpoint in enumerate(books.endpoints[0]):
            assert inflight_ms(books, self.router.status_poll_ms, 0, i, clock_ms(now)) >= 0
            assert endpoint["members"] >= 0
            assert endpoint["reported_alone"] >= 0
            if self.router.flexlb_batch_enabled:  # the router has not heard what has just left
                assert endpoint["queued"] - departed[i] == view.instances["held"][0, i]


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**16),
    gap=st.sampled_from([0.004, 0.03, 0.3]),
    telemetry=st.sampled_from([0.0, 0.05]),
)
def test_holds_batches_and_books(variant: str, seed: int, gap: float, telemetry: float) -> None:
    rng = np.random.default_rng(seed)
    requests = []
    for time in np.cumsum(rng.exponential(gap, 120)).round(3):
        first = 100 * int(rng.integers(9))
        ids = range(first, first + int(rng.integers(1, 20)))
        requests.append(Sent(float(time), ids, int(rng.integers(1, 30))))
    router: Any = make_router("flexlb", VARIANTS[variant])
    watch = Watch(router)
    knowledge = Knowledge(telemetry=Telemetry(interval=telemetry))
    outcomes = play(router, requests, 3, knowledge=knowledge, look=watch.look)
    assert len(outcomes) == len(requests)
    assert watch.longest_hold <= LONGEST_HOLD.get(variant, 0.3) + 1e-9
