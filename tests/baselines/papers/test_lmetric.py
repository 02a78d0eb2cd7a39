"""LMetric, worked by hand."""

from typing import Any

import pytest
from made_views import BLOCK, decide, one_view, router_for


def lmetric(
    hit_tokens: list[int],
    requests: list[int],
    prefill_tokens: list[int] | None = None,
    tokens: int = 160,  # ten blocks of 16, as in the tests of Dynamo's port
    **parameters: Any,
) -> int:
    view = one_view(
        len(requests),
        request={"prompt_tokens": tokens},
        hit_tokens=hit_tokens,
        requests=requests,
        prefill_tokens=prefill_tokens or [0] * len(requests),
    )
    return decide(router_for(len(requests), "lmetric", **parameters), view)


def test_a_cache_hit_is_worth_its_share_of_the_batch() -> None:
    # 32 tokens · 4 requests = 128 < 160 · 1; with one request more 160 = 160, the first wins.
    assert lmetric([0, 128], [0, 3]) == 1
    assert lmetric([0, 128], [0, 4]) == 0
    assert lmetric([128, 0], [4, 0]) == 0
    assert lmetric([128, 0], [5, 0]) == 1


def test_the_product_needs_no_weight() -> None:
    # 600 · 6 = 3600 against 1000 · 3 = 3000, and against 1000 · 4 = 4000.
    assert lmetric([400, 0], [5, 2], tokens=1000) == 1
    assert lmetric([400, 0], [5, 3], tokens=1000) == 0


def test_queued_prefill_counts_unless_it_is_dynamos_port() -> None:
    # (50 + 32) · 2 = 164 against 160 · 1; without the queue 32 · 2 = 64.
    assert lmetric([0, 128], [0, 1], [0, 50]) == 0
    assert lmetric([0, 128], [0, 1], [0, 47]) == 1  # 79 · 2 = 158
    assert lmetric([0, 128], [0, 1], [0, 50], queued_prefill=False) == 1
    # A queue counts for everyone behind it, hit or not: (500 + 160) · 2, 160 · 8.
    assert lmetric([0, 0], [1, 7], [500, 0]) == 1
    assert lmetric([0, 0], [1, 8], [500, 0]) == 0


def test_no_factor_is_less_than_one() -> None:
    # Full hits: the batch decides. Idle instances: the tokens do.
    assert lmetric([160, 160, 160], [3, 1, 2]) == 1
    assert lmetric([10, 30, 20], [0, 0, 0]) == 1


def test_an_idle_cold_instance_beats_a_warm_one() -> None:
    # Nine of ten tokens cached, and still 100 · 11 > 1000 · 1 (F of §8.1).
    assert lmetric([900, 0], [10, 0], tokens=1000) == 1
    assert lmetric([900, 0], [9, 0], tokens=1000) == 0


def test_only_the_available_are_chosen() -> None:
    view = one_view(3, requests=[0, 5, 3], available=[0, 1, 1])
    assert decide(router_for(3, "lmetric"), view) == 2


# --- the guard ---------------------------------------------------------------------------------

GUARD = {"class_prefix_blocks": 2, "window_requests": 4}
WARM = [10 * BLOCK, 0, 0, 0]
BUSY = [2, 1, 1, 1]


def arrive(router: Any, ids: list[int], **columns: Any) -> int:
    request: dict[str, float] = {"prompt_tokens": 10 * BLOCK}
    return decide(router, one_view(4, ids, request, **{"requests": BUSY, **columns}))


def test_holders_are_ruled_out_after_twice_their_number_in_a_row() -> None:
    router = router_for(4, "lmetric", **GUARD)
    # x = 1: 1 / 0 > 1 / 3. The holder is best both times; 2 · 1 in a row.
    assert arrive(router, [1, 2], hit_tokens=WARM) == 0
    assert arrive(router, [1, 2], hit_tokens=WARM) == 1
    assert arrive(router, [1, 2], hit_tokens=WARM, requests=[2, 9, 3, 9]) == 2
    # Another instance is best: the row ends, and the next two begin a new one.
    assert arrive(router, [1, 2], hit_tokens=WARM, requests=[99_999, 5, 3, 2]) == 3
    assert [arrive(router, [1, 2], hit_tokens=WARM) for _ in range(3)] == [0, 1, 1]


def test_without_a_guard_the_holder_keeps_all() -> None:
    router = router_for(4, "lmetric", hotspot_detection=False)
    assert [arrive(router, [1, 2], hit_tokens=WARM) for _ in range(9)] == [0] * 9


def test_two_holders_take_four_in_a_row() -> None:
    router = router_for(4, "lmetric", **GUARD)
    two = [10 * BLOCK, 10 * BLOCK, 0, 0]
    busy = [2, 2, 1, 1]
    choices = [arrive(router, [1, 2], hit_tokens=two, requests=busy) for _ in range(5)]
    assert choices == [0, 0, 0, 2, 2]


def test_a_class_may_have_the_share_that_its_holders_are() -> None:
    # Every other request: x = 1/2, and 1 > 2 / 2 is false once the window is full.
    router = router_for(4, "lmetric", **GUARD)
    two = [10 * BLOCK, 10 * BLOCK, 0, 0]
    for k in range(12):
        assert arrive(router, [1, 2], hit_tokens=two, requests=[2, 2, 1, 1]) == 0
        arrive(router, [50 + k, 90 + k])


@pytest.mark.parametrize(("others", "expected"), [(3, [0] * 6), (2, [0, 1, 1, 1, 1, 1])])
def test_the_window_forgets(others: int, expected: list[int]) -> None:
    # One holder of four: x > 1/4 is too much. `others` requests stand between two of the class.
    router = router_for(4, "lmetric", **{**GUARD, "window_requests": 1 + others})
    for k in range(20):
        arrive(router, [10 + k, 50 + k])
    choices = []
    for k in range(6):
        choices.append(arrive(router, [1, 2], hit_tokens=WARM))
        for other in range(others):
            arrive(router, [100 + 9 * k + other, 200 + 9 * k + other])
    assert choices == expected


def test_the_class_is_the_first_full_blocks() -> None:
    router = router_for(4, "lmetric", **GUARD)
    # Different blocks after the second: one class.
    assert arrive(router, [1, 2, 7], hit_tokens=WARM) == 0
    assert arrive(router, [1, 2, 8], hit_tokens=WARM) == 1
    # A prompt that ends within its second block has none.
    short: dict[str, float] = {"prompt_tokens": 2 * BLOCK - 1}
    for _ in range(5):
        view = one_view(4, [3, 4], short, hit_tokens=[BLOCK, 0, 0, 0], requests=[0, 1, 1, 1])
        assert decide(router, view) == 0


def test_no_holder_no_alarm_and_all_holders_none_either() -> None:
    router = router_for(4, "lmetric", **GUARD)
    for hits in (0, 10 * BLOCK):
        assert [arrive(router, [1, 2], hit_tokens=[hits] * 4) for _ in range(5)] == [1] * 5
