"""SGLang's bucket policy: ranges worked by hand, and those of the gateway's own tests."""

import copy
from typing import Any

import pytest
from made_views import decide, one_view, router_for

NEVER_BALANCE: dict[str, Any] = {"balance_abs_threshold": 10**9}


class Buckets:
    """A bucket router over `num_instances` instances, a token a character."""

    def __init__(self, num_instances: int, **parameters: Any) -> None:
        self.num_instances = num_instances
        self.router = router_for(num_instances, "bucket", chars_per_token=1.0, **parameters)

    def send(self, chars: int, time: float = 0.0, **columns: Any) -> int:
        request = {"prompt_tokens": chars, "time": time}
        return decide(self.router, one_view(self.num_instances, request=request, **columns))

    def ends(self, time: float) -> list[int]:
        """The last length of every range but the last one's; nothing is sent."""
        owners = [copy.deepcopy(self).send(chars, time) for chars in range(1, 700)]
        return [chars for chars in range(1, 699) if owners[chars] != owners[chars - 1]]


def test_first_ranges_are_equal_shares_with_an_open_end() -> None:
    router = Buckets(3, first_range=4096, **NEVER_BALANCE)
    lengths = [1, 1364, 1365, 2729, 2730, 4096, 10**6]
    assert [router.send(chars) for chars in lengths] == [0, 0, 1, 1, 2, 2, 2]


def test_by_default_the_first_instance_takes_every_length_until_an_adjustment() -> None:
    router = Buckets(3, **NEVER_BALANCE)
    assert [router.send(chars) for chars in [1, 5000, 10**6]] == [0, 0, 0]


def test_out_of_balance_the_fewest_characters_of_the_window() -> None:
    router = Buckets(3, first_range=300)
    assert router.send(64) == 0
    assert router.send(10) == 0  # 64 - 0 is not above 64
    assert router.send(10) == 1  # 74 - 0 is: the first of 0, 0
    assert router.send(20) == 2
    # 74, 10, 20: max - min = 64 is not above 64.
    assert router.send(250) == 2
    assert router.send(5) == 1  # 74, 10, 270
    assert router.send(5) == 1


def test_the_relative_threshold_counts_too() -> None:
    router = Buckets(2, first_range=2000, balance_abs_threshold=10)
    assert router.send(200) == 0
    assert router.send(150) == 1
    # 200 > 1.5 · 150 does not hold, so the length decides.
    assert router.send(999) == 0
    assert router.send(1) == 1  # 1199 > 1.5 · 150


def test_characters_leave_the_window_when_a_request_comes_after_the_interval() -> None:
    router = Buckets(2, bucket_adjust_interval_secs=5, first_range=100)
    assert router.send(40, time=0.0) == 0
    assert router.send(30, time=1.0) == 0
    assert router.send(10, time=5.0) == 1  # 70 to 0; what is 5 s old stays
    # At 5.5 the decision still sees 70 and 10, and only then the 40 is taken out.
    assert router.send(90, time=5.5, available=[1, 1]) == 1
    # 30 and 100: out of balance.
    assert router.send(1, time=5.6) == 0


@pytest.mark.parametrize(
    ("lengths", "expected"),
    # The gateway's own tests; in both the sum of a range has to reach the mean.
    [([33, 34, 34], [33, 67]), ([5, 10, 15, 20, 24, 26], [20, 26])],
)
def test_ranges_of_the_gateways_own_tests(lengths: list[int], expected: list[int]) -> None:
    router = Buckets(3, bucket_adjust_interval_secs=10, **NEVER_BALANCE)
    for chars in lengths:
        router.send(chars, time=1.0)
    assert router.ends(10.0) == expected


def test_ranges_beyond_the_lengths_are_as_wide_as_the_mean() -> None:
    router = Buckets(4, bucket_adjust_interval_secs=10, **NEVER_BALANCE)
    router.send(100, time=1.0)
    # Mean 25: [0, 100] for the 100, then nothing is left: [101, 126], [127, 152], the rest.
    assert router.ends(10.0) == [100, 126, 152]


def test_no_adjustment_within_a_factor_of_two() -> None:
    router = Buckets(2, bucket_adjust_interval_secs=10, **NEVER_BALANCE)
    for chars in (100, 100):
        router.send(chars, time=1.0)
    assert router.send(100, time=10.0) == 0  # adjusted: mean 100, [0, 100]
    assert router.ends(10.0) == [100]
    # At 20 s the window holds all three: mean 150.
    assert router.ends(20.0) == [100]
    router.send(300, time=20.0)  # takes out the two of 1.0; that of 10.0 is just 10 s old
    assert router.ends(30.0) == [100]  # mean 200
    router.send(100, time=29.0)  # takes out that of 10.0
    assert router.ends(30.0) == [100]  # mean 200
    router.send(1, time=29.0)
    router.send(100, time=29.5)
    assert router.ends(30.0) == [300]  # mean 250: 1 + 100 + 100 < 250 <= 1 + 100 + 100 + 300


def test_an_instance_that_is_down_gives_way_to_the_first_available() -> None:
    router = Buckets(3, first_range=300, **NEVER_BALANCE)
    assert router.send(150, available=[1, 0, 1]) == 0
