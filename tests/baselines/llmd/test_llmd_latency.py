"""llm-d's latency scorer: weights worked by hand, and draws by them."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_views import decide, one_view, router_for

from prefixgym.baselines.llmd.latency import LlmdLatency
from prefixgym.envs.view.view import View

NO_EXPLORATION: dict[str, Any] = {"epsilon_explore_sticky": 0.0, "epsilon_explore_neg": 0.0}


def view_of(**columns: Any) -> View:
    """One second for the first token, 0.1 s for each other one, 1,000 tokens."""
    num_pods = len(next(iter(columns.values())))
    request = {"slo_ttft": 1.0, "slo_tpot": 0.1, "prompt_tokens": 1000.0}
    return one_view(num_pods, request=request, **columns)


def weights(view: View, **parameters: Any) -> list[float]:
    router = router_for(view.instances.shape[1], "llmd_latency", **{**NO_EXPLORATION, **parameters})
    found: list[float] = cast(LlmdLatency, router).weights(view)[0].tolist()
    return found


def test_least_packs_pods_close_to_their_objectives() -> None:
    # TTFT headrooms 0.75, 0.5, 0.25; TPOT 0.1 everywhere, so that only TTFT counts.
    view = view_of(backlog_seconds=[0.0, 0.25, 0.5], prefill_seconds=[0.25, 0.25, 0.25])
    assert weights(view) == [1, 51, 101]
    assert weights(view, headroom_selection_strategy="most") == [101, 51, 1]


def test_ttft_counts_for_80_percent_and_tpot_for_20() -> None:
    # TTFT headrooms 1, 0 → normalised 1, 0. TPOT: 8 sequences at 160 tokens/s are 0.05 s, idle 0:
    # headrooms 0.1, 0.05 → 1, 0 or, the other way round, 0, 1.
    both = view_of(backlog_seconds=[0.0, 1.0], running=[0, 8], throughput=[0, 160])
    assert weights(both) == [1, 101]
    against = view_of(backlog_seconds=[0.0, 1.0], running=[8, 0], throughput=[160, 0])
    # c = 0.8 and 0.2; 100 · (1 - 0.8) is a little less than 20, there as here.
    assert weights(against) == [20, 81]
    # Equal TTFT: TPOT alone. Equal in both: one half.
    alike = view_of(backlog_seconds=[0.5, 0.5], running=[8, 0], throughput=[160, 0])
    assert weights(alike) == [101, 1]
    assert weights(view_of(backlog_seconds=[0.5, 0.5])) == [51, 51]


def test_pods_that_miss_an_objective_are_left_out_while_others_do_not() -> None:
    view = view_of(backlog_seconds=[1.5, 0.5, 0.25])
    assert weights(view) == [0, 101, 1]
    assert weights(view, epsilon_explore_neg=1.0)[1:] == [0, 0]


def test_of_pods_that_all_miss_idle_ones_then_the_smallest_kind_of_miss() -> None:
    # TTFT missed by 0.5, 1 and 2; nobody idle: all of one kind, the smallest deficit is best.
    late = view_of(backlog_seconds=[1.5, 2.0, 3.0], requests=[1, 1, 1])
    assert weights(late) == [101, 67, 1]
    assert weights(late, headroom_selection_strategy="most") == [101, 67, 1]
    idle = view_of(backlog_seconds=[1.5, 2.0, 3.0], requests=[1, 0, 1])
    assert weights(idle) == [0, 51, 0]
    # Only TPOT missed before only TTFT missed before both.
    columns: dict[str, Any] = {"running": [8, 8, 0], "throughput": [40, 40, 0]}
    kinds = view_of(backlog_seconds=[2.0, 0.5, 2.0], requests=[1, 1, 1], **columns)
    assert weights(kinds) == [0, 51, 0]
    kinds = view_of(backlog_seconds=[2.0, 2.0, 1.5], requests=[1, 1, 1], **columns)
    assert weights(kinds) == [0, 0, 51]


def test_the_gates_keep_to_pods_that_hold_the_prompt() -> None:
    view = view_of(backlog_seconds=[0.0, 0.25, 0.5], hit_tokens=[0, 850, 990])
    assert weights(view) == [0, 0, 51]  # 0.99 of the prompt
    assert weights(view, affinity_gate_tau_global=0.0) == [0, 1, 101]  # 0.8
    assert weights(view, affinity_gate_tau_global=0.0, affinity_gate_tau=0.0) == [1, 51, 101]
    # 1 s slower than the others is too much if the penalty is 0.4 s.
    assert weights(view, max_ttft_penalty_ms=400.0) == [0, 1, 101]
    # The global gate comes before the tier: a late pod with the prompt shuts out the others.
    late = view_of(backlog_seconds=[0.0, 0.25, 1.5], hit_tokens=[0, 0, 990], requests=[1, 1, 1])
    assert weights(late) == [0, 0, 51]
    assert weights(late, epsilon_explore_sticky=1.0) == [1, 101, 0]


def test_without_predictor_a_composite_rates_all() -> None:
    view = view_of(
        waiting=[0, 1, 4], kv_usage=[0.9, 0.25, 0.0], hit_tokens=[1000, 0, 500], backlog_seconds=9
    )
    # Means of free KV, relative queue, share: (0.1 + 1 + 1), (0.75 + 0.75 + 0), (1 + 0 + 0.5).
    assert weights(view, predictor="none") == [70, 50, 50]
    parameters: dict[str, Any] = {"composite_queue_weight": 0.0, "composite_prefix_weight": 0.0}
    assert weights(view, predictor="none", **parameters) == [10, 75, 100]


def test_pods_are_drawn_in_proportion() -> None:
    # Weights 101, 51 and 1.
    columns: dict[str, Any] = {"backlog_seconds": [0.5, 0.25, 0.0]}
    router = router_for(3, "llmd_latency", **NO_EXPLORATION)
    counts = np.zeros(3)
    for index in range(1530):
        view = view_of(**columns)
        view.requests["index"] = index
        counts[decide(router, view)] += 1
    assert abs(counts - [1010, 510, 10]).max() < 75  # 4 standard deviations are 74


def test_all_weights_0_is_anybody() -> None:
    view = view_of(waiting=[4, 4], kv_usage=[1.0, 1.0])
    parameters: dict[str, Any] = {"predictor": "none"}
    assert weights(view, **parameters) == [0, 0]
    found = {decide(router_for(2, "llmd_latency", seed=s, **parameters), view) for s in range(20)}
    assert found == {0, 1}


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 9), st.integers(0, 1000)), min_size=1),
    st.sampled_from(["least", "most"]),
    st.booleans(),
)
def test_weights_are_from_1_to_101_for_some_and_0_for_the_rest(
    rows: list[tuple[float, int, int]], strategy: str, predicted: bool
) -> None:
    backlog, running, hits = zip(*rows, strict=True)
    view = view_of(
        backlog_seconds=backlog, running=running, throughput=50, hit_tokens=hits, requests=running
    )
    predictor = "profile" if predicted else "none"
    found = np.array(weights(view, predictor=predictor, headroom_selection_strategy=strategy))
    assert found.max() >= 1
    assert found.min() >= 0
    assert found.max() <= 101


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"predictor": "xgboost"}, "predictor: found 'xgboost', allowed: profile, none"),
        ({"ttft_weight": 0.0, "tpot_weight": 0.0}, "tpot_weight: found 0.0, allowed: above 0"),
        ({"epsilon_explore_neg": 2.0}, "epsilon_explore_neg: found 2.0, allowed: 0 to 1"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        router_for(2, "llmd_latency", **parameters)
