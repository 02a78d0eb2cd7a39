"""FlexLB's batchers: fixed_window and Auto-TPM at the figures of part B §1.5, §1.7; slo_budget."""

from typing import Any

import pytest
from flexlb_stage import Stage
from hypothesis import given
from hypothesis import strategies as st

from prefixgym.baselines.flexlb.auto_tpm import auto_tpm_slo_ms, auto_tpm_wait_ms
from prefixgym.baselines.flexlb.fixed_window import window_wait_ms
from prefixgym.baselines.flexlb.prefill_router import batcher_wait_ms
from prefixgym.baselines.flexlb.slo_budget import SloBudget, next_arrival_ms, worth_waiting


def wait(on: Stage, ms: int, instance: int = 0) -> int:
    return batcher_wait_ms(on.books, on.router._settings, 0, instance, ms)


# --- fixed_window ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queued", "head_age", "expected"),
    [(0, 0, 300), (3, 120, 180), (3, 400, 0), (7, 0, 0), (8, 0, 300), (15, 0, 0)],
)
def test_waits_of_fixed_window(queued: int, head_age: int, expected: int) -> None:
    assert window_wait_ms(queued, head_age, 8, 300) == expected
    assert window_wait_ms(queued, head_age, 1, 300) == 0


def test_a_window_opens_with_its_first_request_and_closes_with_its_eighth() -> None:
    on = Stage(1)
    assert wait(on, 0) == 300
    for k in range(7):
        on.route(10 * k, slot=k)
        assert on.release_ms() == 300
        assert wait(on, 10 * k + 5) == (295 - 10 * k if k < 6 else 0)
    on.route(70, slot=7)
    assert on.release_ms() == 70
    assert on.holds["most_batches"][0, 0] == 0
    on.leave(70, 0, *range(8))
    on.route(200, slot=8)
    assert on.release_ms() == 500
    assert on.inflight(200) == 8 * 4096 - 0  # one batch of eight, seen waiting at 200
    assert on.books.endpoints["entries"][0, 0] == 1


def test_a_window_that_runs_out_is_a_batch_of_what_there_is() -> None:
    on = Stage(1)
    for k in range(3):
        on.route(100 * k, prompt=1000, slot=k)
    on.leave(300, 0, 0, 1, 2)
    on.listen(310)
    assert on.books.endpoints["members"][0, 0] == 3
    assert on.books.endpoints["entries"][0, 0] == 1
    assert on.inflight(310) == 3000 - 10
    assert wait(on, 310) == 300


def test_eight_at_once_and_eight_more_are_two_batches() -> None:
    on = Stage(1, flexlb_batch_fixed_max_inflight_batches=2)
    for k in range(16):
        on.route(0, prompt=100, slot=k)
    assert on.holds["most_batches"][0, 0] == 2
    on.leave(0, 0, *range(16))
    on.listen(1)
    assert on.books.endpoints["entries"][0, 0] == 2
    assert sorted(on.books.entries["members"][0])[-2:] == [8, 8]


def test_predicted_time_can_close_a_window() -> None:
    on = Stage(1, flexlb_batch_predict_threshold_ms=5000)
    on.route(0, prompt=4999, slot=0)
    assert on.release_ms() == 300
    on.route(20, prompt=1, slot=1)
    assert on.release_ms() == 20


def test_a_batch_is_cut_before_its_padded_size_is_reached() -> None:
    on = Stage(1, flexlb_batch_max_capacity=30_000)
    for k, prompt in enumerate([9000, 9000, 10_000, 9000]):
        on.route(k, prompt=prompt, slot=k)
        # 3 times 10,000 is not below 30,000.
        assert on.holds["size"][0, 0] == min(k + 1, 2)


def test_the_slot_of_a_queued_request_that_is_gone_can_be_taken_again() -> None:
    on = Stage(2)
    on.route(0, slot=3, available=[1, 0])
    on.route(1, slot=4, available=[1, 0])
    on.route(2, slot=3, available=[0, 1])
    assert on.books.endpoints["queued"][0].tolist() == [1, 1]
    on.route(3, slot=3, available=[1, 0])
    assert on.books.endpoints["queued"][0].tolist() == [2, 0]


# --- Auto-TPM ----------------------------------------------------------------------------------


def test_objectives_by_length_and_priority() -> None:
    lengths = (1, 256, 257, 1024, 1025, 4096, 4097, 16384, 16385)
    expected = [150, 150, 300, 300, 600, 600, 1200, 1200, 2400]
    assert [auto_tpm_slo_ms(length, 50) for length in lengths] == expected
    priorities = (1, 30, 35, 40, 50, 55, 60, 65, 70, 100)
    multipliers = [2.0, 2.0, 1.75, 1.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.5]
    assert [auto_tpm_slo_ms(4096, p) for p in priorities] == [600 * m for m in multipliers]


@pytest.mark.parametrize(
    ("queued", "head_age", "interval", "expected"),
    [
        (0, 0, 0.0, 0),
        (1, 40, 0.0, 260),
        (1, 400, 0.0, 0),
        (16, 400, 0.0, 600),
        (9, 40, 100.4, 160),
    ],
)
def test_waits_of_auto_tpm(queued: int, head_age: int, interval: float, expected: int) -> None:
    assert auto_tpm_wait_ms(queued, head_age, 8, interval, 300) == expected


def test_auto_tpm_averages_the_gaps_between_batches() -> None:
    on = Stage(1, auto_tpm_enabled=True)
    for k, ms in enumerate((1000, 1100, 1300)):
        on.route(ms, slot=k)
        on.leave(ms, 0, k)
    on.route(1300, slot=9)
    # 100, then 0.3 · 200 + 0.7 · 100.
    assert on.books.endpoints["dispatch_interval"][0, 0] == pytest.approx(130)
    assert wait(on, 1330) == 100


# --- slo_budget --------------------------------------------------------------------------------

BUDGET = SloBudget(8, 300, 3, 150, 40, 20, 0.2, 64, 2)


def budget_stage(**parameters: Any) -> Stage:
    calibrated: dict[str, Any] = {"cost_formula_compute_ms": 0.05, "cost_formula_hit_ms": 0.0}
    return Stage(1, flexlb_batch_algorithm="slo_budget", **{**calibrated, **parameters})


def test_expected_arrivals() -> None:
    assert next_arrival_ms(BUDGET, 0.0, 70) == 100  # none seen yet: window / least size
    assert next_arrival_ms(BUDGET, 50.4, 0) == 50
    assert next_arrival_ms(BUDGET, 50.0, 30) == 20
    assert next_arrival_ms(BUDGET, 50.0, 50) == 1
    assert next_arrival_ms(BUDGET, 50.0, 70) == 30
    assert next_arrival_ms(BUDGET, 50.0, 100) == 50  # overdue


def test_what_is_worth_waiting_for() -> None:
    assert not worth_waiting(BUDGET, 8, 200, 10, 10)  # full
    assert not worth_waiting(BUDGET, 1, 1, 1, 1)  # no slack
    assert worth_waiting(BUDGET, 1, 120, 100, 100)
    assert not worth_waiting(BUDGET, 1, 119, 100, 100)  # the next one would come too late
    # Three, and those still to come in 120 - 20 ms: one now and one more every 40 ms.
    assert worth_waiting(BUDGET, 4, 120, 40, 20)
    assert worth_waiting(BUDGET, 5, 120, 40, 20)
    assert not worth_waiting(BUDGET, 6, 120, 40, 20)


def test_a_lone_request_waits_until_no_other_can_be_expected() -> None:
    on = budget_stage()
    on.route(1000, prompt=2000, slot=0)
    # Latest start 1000 + 500 - 100 = 1400; it has to leave at 1360; the next arrival is expected
    # 100 ms later, so that waiting is over at 1360 - 100 - 20, unless it is within the last 1 ms.
    assert wait(on, 1000) == 400
    assert on.release_ms() == 1241
    on.leave(1241, 0, 0)
    on.listen(1250)
    assert wait(on, 1250) == 0


def test_the_worst_head_decides_and_extra_work_brings_the_departure_forward() -> None:
    on = budget_stage(flexlb_batch_arrival_wait_guard_ms=0, flexlb_batch_min_size=8)
    on.route(1000, prompt=2000, slot=0)
    on.route(1000, prompt=6000, slot=1)
    # Latest starts 1400 and 1200. T̂ is 100 for the head, 400 with the other: 300 ms more do not
    # fit into 200 - 40, so only one leaves at first.
    assert on.holds["size"][0, 0] == 1
    on = budget_stage(flexlb_batch_arrival_wait_guard_ms=0, flexlb_batch_min_size=8)
    on.route(1000, prompt=2000, slot=0)
    on.route(1000, prompt=2000, slot=1)
    # Both start at 1400 at the latest; 100 ms more for the second: leave at 1400 - 140, or when the
    # next arrival, taken to come 38 ms later (300 / 8), would be too late.
    assert on.holds["size"][0, 0] == 2
    assert on.release_ms() == 1260 - 38 + 1


def test_eight_leave_at_once() -> None:
    on = budget_stage(cost_slo_ms=5000)
    for k in range(8):
        on.route(1000 + k, prompt=100, slot=k)
    assert on.release_ms() == 1007
    assert on.holds["size"][0, 0] == 8


def test_gaps_between_arrivals_are_averaged_and_cut_to_the_window() -> None:
    on = budget_stage()
    for k, ms in enumerate((1000, 1100, 1150, 9000)):
        on.route(ms, prompt=100, slot=k)
        on.leave(ms, 0, k)
    # 100; 0.2 · 50 + 0.8 · 100; 0.2 · 300 + 0.8 · 90.
    assert on.books.endpoints["arrival_interval"][0, 0] == pytest.approx(132)


def test_no_budget_and_no_room_is_a_rejection() -> None:
    on = budget_stage()
    for k in range(2):
        on.route(1000 * k, prompt=100_000, slot=k)
        assert on.release_ms() == 1000 * k  # hopeless, but not dropped
        on.leave(1000 * k, 0, k)
    assert on.route(2000, prompt=100, slot=2) == 1
    assert on.books.endpoints["queued"][0, 0] == 0
    assert on.holds["most_batches"][0, 0] == 2


def test_auto_tpm_sets_the_budget_by_length_and_priority() -> None:
    starts = []
    for priority in (50, 70):
        on = budget_stage(auto_tpm_enabled=True, auto_tpm_default_priority=priority)
        on.route(1000, prompt=2000, slot=0)
        starts.append(on.books.members["latest_start"][0, 0])
    assert starts == [1500, 1200]  # 600 and 300, less 100


@given(
    prompts=st.lists(st.integers(1, 20_000), min_size=1, max_size=12),
    gaps=st.lists(st.integers(0, 120), min_size=12, max_size=12),
    slo=st.integers(1, 3000),
    emergency=st.sampled_from([0, 20, 150, 600]),
    least=st.integers(1, 9),
)
def test_slo_budget_holds_nothing_beyond_its_latest_start(
    prompts: list[int], gaps: list[int], slo: int, emergency: int, least: int
) -> None:
    on = budget_stage(
        cost_slo_ms=slo, flexlb_batch_emergency_budget_ms=emergency, flexlb_batch_min_size=least
    )
    ms = 0
    queue: list[int] = []
    for k, prompt in enumerate(prompts):
        ms += gaps[k]
        if queue and on.release_ms() <= ms:
            for slot in queue[: on.holds["size"][0, 0]]:
                on.leave(on.release_ms(), 0, slot)
                queue.remove(slot)
        if on.route(ms, prompt=prompt, slot=k) == 1:
            continue  # turned away
        queue.append(k)
        members = on.books.members["latest_start"][0]
        assert ms <= on.release_ms() <= max(ms, min(members[slot] for slot in queue))
        assert 1 <= on.holds["size"][0, 0] <= min(8, len(queue))
