import math

import pytest

from prefixgym.experiments.capacity import find_capacity


@pytest.mark.parametrize("start", [1.0, 37.0, 4000.0])
def test_capacity_is_found_from_below_and_above(start: float) -> None:
    found = find_capacity(lambda rate: 1.0 if rate <= 37 else 0.5, start)
    assert 37 / 1.02 <= found <= 37


def test_capacity_is_a_rate_that_was_seen_to_attain() -> None:
    seen: dict[float, float] = {}

    def attainment(rate: float) -> float:
        seen[rate] = 1 / (1 + (rate / 100) ** 4)
        return seen[rate]

    assert seen.get(find_capacity(attainment, 3.0), 0.0) >= 0.9


def test_no_limit_and_no_capacity() -> None:
    assert find_capacity(lambda rate: 1.0, 1.0) == math.inf
    assert find_capacity(lambda rate: 0.0, 1.0) == 0.0


def test_another_share_may_be_wanted() -> None:
    found = find_capacity(lambda rate: 1 - rate / 1000, 3.0, wanted=0.99)
    assert 10 / 1.02 <= found <= 10
