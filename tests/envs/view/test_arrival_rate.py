import numpy as np

from prefixgym.envs.view.arrival_rate import ArrivalRate


def test_counts_the_arrivals_of_the_window() -> None:
    rate = ArrivalRate(1, 3, window=60.0)
    for time, instance in [(0.0, 0), (10.0, 1), (10.0, 1), (50.0, 0)]:
        rate.advance(np.array([time]))
        rate.record(np.array([time]), np.array([instance]))
    assert rate.counts.tolist() == [[2, 2, 0]]
    rate.advance(np.array([60.0]))  # an arrival of exactly 60 s ago still counts
    assert rate.counts.tolist() == [[2, 2, 0]]
    rate.advance(np.array([60.5]))
    assert rate.counts.tolist() == [[1, 2, 0]]
    rate.advance(np.array([1000.0]))
    assert rate.counts.tolist() == [[0, 0, 0]]
    assert rate.seen.tolist() == [[True, True, False]]


def test_equals_a_plain_count_however_many_arrivals_and_environments() -> None:
    rng = np.random.default_rng(0)
    gaps = rng.exponential([[0.01], [0.5]], (2, 3000))
    times = np.cumsum(gaps, axis=1)
    instances = rng.integers(0, 4, (2, 3000))
    rate = ArrivalRate(2, 4, window=20.0)
    for k in range(3000):
        rate.advance(times[:, k])
        for e in range(2):
            recent = (times[e, :k] >= times[e, k] - 20.0).nonzero()[0]
            if k % 50 == 0:
                expected = np.bincount(instances[e, recent], minlength=4)
                assert rate.counts[e].tolist() == expected.tolist()
        rate.record(times[:, k], instances[:, k])
