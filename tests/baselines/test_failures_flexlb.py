"""Known weaknesses of FlexLB (part B §9), as our router has them in the simulator.

The figures in the docstrings are what these runs give; the assertions leave some room.
"""

from typing import Any

import numpy as np
import pytest
from made_tapes import Sent, play
from numpy.typing import NDArray

from prefixgym.baselines.flexlb.ledger import inflight_ms
from prefixgym.baselines.router import make_router
from prefixgym.envs.cluster.profiles import constant_profile
from prefixgym.envs.view.view import View

CALIBRATED: dict[str, Any] = {
    "cost_formula_batch_ms": 10.0,
    "cost_formula_compute_ms": 0.025,
    "cost_formula_hit_ms": 0.0005,
}
"""Roughly what a prompt costs on the H100 with Llama-3.1-8B of these tests."""

AT_ONCE: dict[str, Any] = {"flexlb_batch_size_max": 1}
"""No batching, to see one thing at a time."""


def hit_share(outcomes: NDArray[np.void]) -> float:
    return float(outcomes["hit_tokens"].sum() / outcomes["prompt_tokens"].sum())


def test_cache_blind_start() -> None:
    """ "Cache-blind start": after a restart the learned predictor finds prefixes by chance.

    Eight prefixes of 8,192 tokens, of which a worker can keep three. The formula sends each to the
    workers that have it. The learned predictor's 319 to 324 ms for everything make every worker a
    near tie, and 200 requests train nobody: 40 % of the tokens are hits instead of 90 %, as with
    workers drawn at random (39 %).
    """
    rng = np.random.default_rng(0)
    requests = []
    for k in range(200):
        prefix = int(rng.integers(8))
        ids = [*range(100 * prefix, 100 * prefix + 16), 10_000 + k]
        requests.append(Sent(0.25 * k, ids))

    def hits(name: str, **parameters: Any) -> float:
        return hit_share(play(make_router(name, parameters), requests, 4, kv_blocks=60))

    assert hits("flexlb", **CALIBRATED, **AT_ONCE) > 0.85
    learned = hits("flexlb", prefill_predictor_type="learning", **AT_ONCE)
    assert learned == pytest.approx(hits("random"), abs=0.05)
    assert learned < 0.45


@pytest.mark.parametrize(("batches", "estimate"), [(1, 490), (2, 1490), (4, 3490)])
def test_parallel_batches(batches: int, estimate: int) -> None:
    """ "Parallel batches": the ledger adds up what the engine does at the same time.

    A step takes 1 s here whatever it computes, so the batches that arrive together end together, at
    1 s. At 510 ms 490 ms are left; the ledger has that time for one batch and 1 s more for each
    other.
    """
    router: Any = make_router(
        "flexlb",
        {
            "cost_formula_batch_ms": 1000,
            "cost_formula_compute_ms": 0,
            "cost_formula_hit_ms": 0,
            "flexlb_batch_size_max": 2,
        },
    )
    seen = {}

    def look(view: View) -> None:
        ms = round(float(view.requests["time"][0]) * 1000)
        seen[ms] = inflight_ms(router._books, router.status_poll_ms, 0, 0, ms)

    requests = [Sent(0.0, [k]) for k in range(2 * batches)]
    requests += [Sent(0.5, [100]), Sent(0.51, [101])]
    outcomes = play(router, requests, 1, engine=constant_profile(1000, 1), look=look)
    assert outcomes["ttft"][: 2 * batches].tolist() == [1.0] * (2 * batches)
    assert seen[510] == estimate


def test_herd_within_a_window() -> None:
    """ "Select/book race": a window's arrivals see no work on the worker that the first one chose.

    Two idle workers and eight different cold prompts, the first 60 ms before the rest: all eight go
    to one worker. The other is idle, and the last answer comes after 758 ms instead of 367.
    """
    times = [0.0, *(0.06 + 0.001 * k for k in range(7))]
    requests = [Sent(time, range(100 * k, 100 * k + 8)) for k, time in enumerate(times)]
    herd = play(make_router("flexlb", CALIBRATED), requests, 2)
    spread = play(make_router("least_load"), requests, 2)
    assert len(set(herd["instance"].tolist())) == 1
    assert np.bincount(spread["instance"]).tolist() == [4, 4]
    assert herd["ttft"].max() > 1.9 * spread["ttft"].max()
