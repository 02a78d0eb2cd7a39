import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixgym.experiments.samples import RELATIVE_ERROR, LogHistogram, Values

TIMES = st.one_of(st.just(0.0), st.floats(1.0001e-9, 1e9), st.floats(0.01, 1.0))
BATCHES = st.lists(st.lists(TIMES, max_size=30), min_size=1, max_size=4)


@given(batches=BATCHES, share=st.floats(0, 1))
def test_a_histogram_is_within_its_error_of_all_values(
    batches: list[list[float]], share: float
) -> None:
    histogram, values = LogHistogram(), Values()
    for batch in batches:
        for sample in (histogram, values):
            sample.add(np.array(batch))
    exact = values.quantile(share)
    np.testing.assert_allclose(
        histogram.quantile(share), exact, rtol=RELATIVE_ERROR * (1 + 1e-6), atol=1e-15
    )
    np.testing.assert_allclose(histogram.mean(), values.mean(), rtol=1e-12)


def test_no_values() -> None:
    for sample in (LogHistogram(), Values()):
        assert math.isnan(sample.mean())
        assert math.isnan(sample.quantile(0.5))


def test_many_values_in_batches() -> None:
    generator = np.random.default_rng(0)
    histogram, values = LogHistogram(), Values()
    for _ in range(50):
        batch = generator.lognormal(-2, 1.5, 4000)
        histogram.add(batch)
        values.add(batch)
    for share in (0.5, 0.9, 0.99, 0.9999):
        assert histogram.quantile(share) == pytest.approx(values.quantile(share), rel=0.001)


def test_a_nanosecond_counts_as_nothing() -> None:
    histogram = LogHistogram()
    histogram.add(np.array([0.0, 1e-9, 1e-12, 1.0]))
    assert histogram.quantile(0.5) == 0.0
    assert histogram.quantile(1.0) == pytest.approx(1.0, rel=1.000001 * RELATIVE_ERROR)
