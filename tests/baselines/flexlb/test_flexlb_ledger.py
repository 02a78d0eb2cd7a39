"""FlexLB's inflight ledger at the figures of part B §0 and §1.4, and what status polls tell it."""

from typing import Any

from flexlb_stage import DISPATCHED, ENDED, FIRST_TOKEN, STARTED, Stage
from hypothesis import given, settings
from hypothesis import strategies as st


def stage(**parameters: Any) -> Stage:
    """One worker; predicted ms are uncached tokens, and a batch leaves at once."""
    return Stage(1, flexlb_batch_size_max=1, **parameters)


def dispatched(on: Stage, ms: float, prompt: int, slot: int) -> None:
    assert on.route(ms, prompt, slot) == 0
    on.hear(ms, slot, 0, DISPATCHED)


def test_seeds_example() -> None:
    # Predicted 5 s, left at 0, first seen running at 150 ms: at 200 ms 5000 - 50.
    on = stage(status_poll_ms=50)
    dispatched(on, 0, 5000, slot=0)
    on.hear(140, 0, 0, STARTED)
    on.listen(200)
    assert on.inflight(200) == 4950


def test_two_batches_at_once_are_counted_one_after_the_other() -> None:
    # Both of 5 s run since 0: at 1 s (5 + 5) - 1 = 9 s, although 4 s of each are left.
    on = stage()
    dispatched(on, 0, 5000, slot=0)
    dispatched(on, 0, 5000, slot=1)
    on.hear(0, 0, 0, STARTED)
    on.hear(0, 1, 0, STARTED)
    on.listen(1000)
    assert on.inflight(1000) == 9000


def test_a_batch_that_waits_in_the_engine_makes_no_progress() -> None:
    on = stage()
    dispatched(on, 10, 5000, slot=0)
    on.listen(15)
    assert on.inflight(15) == 4995  # no poll has seen it yet
    assert on.inflight(20) == 5000
    assert on.inflight(39) == 4981
    assert on.inflight(40) == 5000
    on.hear(41, 0, 0, STARTED)  # known at 60
    on.listen(59)
    assert on.inflight(59) == 4981
    on.listen(60)
    assert on.inflight(60) == 5000
    assert on.inflight(1060) == 4000
    assert on.inflight(9000) == 0


def test_a_finished_member_leaves_and_the_rest_is_predicted_anew() -> None:
    on = Stage(1, flexlb_batch_size_max=3)
    for slot, prompt in enumerate((1000, 2000, 3000)):
        on.route(0, prompt, slot, hit_tokens=100 * slot)
    for slot in range(3):
        on.hear(0, slot, 0, DISPATCHED)
    on.hear(20, 0, 0, STARTED)
    on.listen(20)
    # (1000 + 1900 + 2800) + 0.3 (100 + 200)
    assert on.inflight(20) == 5790
    on.hear(500, 0, 0, FIRST_TOKEN)
    on.hear(500, 1, 0, STARTED)
    on.listen(500)
    assert on.inflight(500) == 4790 - 480  # progressBase stays at 20
    on.hear(500, 0, 0, ENDED)  # of no further interest
    on.hear(505, 1, 0, FIRST_TOKEN)
    on.listen(519)
    assert on.inflight(519) == 4790 - 499
    # The last member waits, so that the batch is a waiting one again, from this poll on.
    on.listen(520)
    assert on.inflight(520) == 2860
    assert on.inflight(530) == 2850
    assert on.inflight(540) == 2860
    on.hear(541, 2, 0, ENDED)  # without an answer
    on.listen(560)
    assert on.inflight(560) == 0
    assert on.books.num_free[0] == len(on.books.free_entries[0])


def test_finished_is_told_before_running() -> None:
    # One member's end and the other's start, by the same poll: the batch never stopped running.
    on = Stage(1, flexlb_batch_size_max=2)
    for slot in range(2):
        on.route(0, 1000, slot)
    for slot in range(2):
        on.hear(0, slot, 0, DISPATCHED)
    on.hear(0, 0, 0, STARTED)
    on.listen(0)
    on.hear(101, 1, 0, STARTED)
    on.hear(102, 0, 0, FIRST_TOKEN)
    on.listen(120)
    assert on.inflight(120) == 1000 - 120


def test_a_slot_that_is_taken_again_before_the_poll() -> None:
    on = stage()
    dispatched(on, 0, 5000, slot=7)
    on.hear(1, 7, 0, STARTED, FIRST_TOKEN, ENDED)
    dispatched(on, 2, 300, slot=7)  # the poll of 20 ms has not come
    on.listen(3)
    assert on.inflight(3) == 299
    on.listen(20)
    assert on.inflight(20) == 300  # and what it tells is not of this request


def test_learning_predictor_hears_the_slowest_member_of_whole_batches() -> None:
    on = Stage(1, prefill_predictor_type="learning", flexlb_batch_size_max=2)
    counts = on.books.step_counts[0, 0]

    def batch(ms: float, failing: bool = False, slot: int = 0) -> None:
        for k in (slot, slot + 1):
            on.route(ms, 1000, k)
        for k in (slot, slot + 1):
            on.hear(ms, k, 0, DISPATCHED, STARTED)
        on.hear(ms + 30, slot, 0, FIRST_TOKEN)
        on.hear(ms + 80, slot + 1, 0, ENDED if failing else FIRST_TOKEN)
        on.listen(ms + 100)

    batch(0, failing=True)
    assert counts["samples"] == 0
    for k in range(3):
        batch(1000 * (k + 1))
    assert counts["samples"] == 3
    lower_bound = on.books.parameters[0, 0, 6]
    batch(5000)
    assert (counts["samples"], counts["updates"]) == (0, 1)
    assert on.books.parameters[0, 0, 6] < lower_bound  # 80 ms are below what it predicted


def test_each_worker_learns_alone() -> None:
    on = Stage(2, prefill_predictor_type="learning", flexlb_batch_size_max=1)
    for k in range(4):
        on.route(1000 * k, 1000, 0, available=[0, 1])
        on.hear(1000 * k, 0, 1, DISPATCHED, STARTED)
        on.hear(1000 * k + 40, 0, 1, FIRST_TOKEN)
    on.listen(5000)
    assert on.books.step_counts["updates"][0].tolist() == [0, 1]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 3000), st.integers(0, 2), st.integers(0, 7)),
        min_size=1,
        max_size=60,
    ),
    st.booleans(),
)
def test_the_ledger_is_never_negative_and_ends_empty(
    steps: list[tuple[int, int, int, int]], batched: bool
) -> None:
    on = Stage(3, flexlb_batch_enabled=batched, flexlb_batch_size_max=4)
    ms, stages, where = 0, {}, {}
    for gap, prompt, worker, what in steps:
        ms += gap
        slot = on.index % 100
        available = [k == worker for k in range(3)]
        choice = on.route(ms, prompt, slot, available=available)
        if choice < 3:
            stages[slot], where[slot] = DISPATCHED, choice
        for known in list(stages)[: what + 1]:
            on.hear(ms, known, where[known], stages[known])
            stages[known] += 1
            if stages[known] > ENDED:
                del stages[known]
        for i in range(3):
            assert on.inflight(ms, i) >= 0
            assert on.books.endpoints["members"][0, i] >= 0
            assert on.books.endpoints["queued"][0, i] >= 0
        assert (on.books.entries["members"] <= 4).all()
    for known, kind in stages.items():
        on.hear(ms, known, where[known], *range(kind, ENDED + 1))
    on.listen(ms + 20)
    assert [on.inflight(ms + 20, i) for i in range(3)] == [0, 0, 0]
    for column in ("entries", "members", "queued", "reported_alone"):
        assert (on.books.endpoints[column] == 0).all()
    assert on.books.num_free[0] == len(on.books.free_entries[0])


def test_a_decision_that_is_shown_again_is_not_made_again() -> None:
    # An episode is over, and the router is asked on for others of the batch.
    on = Stage(2)
    first = on.route(0, slot=0)
    for _ in range(5):
        on.index -= 1
        on.hear(0, 0, first, DISPATCHED)
        assert on.route(0, slot=0) == first
    assert on.books.endpoints["queued"][0].sum() == 1
    assert on.books.num_reports[0] == 0
