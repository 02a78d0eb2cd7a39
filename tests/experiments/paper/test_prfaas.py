"""The model of prefill as a service: lengths, capacities, and queues against queueing theory."""

import heapq
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from prefixgym.experiments.paper import prfaas, prfaas_case
from prefixgym.experiments.paper.prfaas_model import (
    INTERPOLATIONS,
    KV_BYTES,
    SECONDS,
    TOKENS,
    Deployment,
    Floats,
    Lengths,
    Line,
    Service,
    h200,
    kv_bytes,
)
from prefixgym.experiments.paper.prfaas_queues import (
    Congested,
    Fixed,
    Jobs,
    Plant,
    Sight,
    play,
    poisson_jobs,
)
from prefixgym.experiments.paper.published import Effort


def service(at_means: bool = True, decode_rate: float = math.inf) -> Service:
    return Service(Lengths(), h200(), Line(0.3, 1.5e-4), decode_rate, at_means)


@given(st.floats(1000.0, 1e5), st.floats(1.1, 3.0))
def test_lengths_in_closed_form_are_those_of_many_draws(low: float, factor: float) -> None:
    lengths, grid = Lengths(), Lengths().grid(200_000)
    high = min(low * factor, lengths.high)
    inside = grid[(grid > low) & (grid <= high)]
    assert lengths.mean(low, high) == pytest.approx(inside.mean(), abs=0.03 * (high - low))
    assert lengths.share_above(low) == pytest.approx((grid > low).mean(), abs=1e-5)
    assert grid[0] >= lengths.low
    assert grid[-1] <= lengths.high


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_the_profile_goes_through_the_published_points(interpolation: str) -> None:
    curve = h200(interpolation)
    np.testing.assert_allclose(curve(TOKENS), SECONDS)
    np.testing.assert_allclose(kv_bytes(TOKENS), KV_BYTES)
    between = curve(np.linspace(TOKENS[0], TOKENS[-1], 500))
    assert (np.diff(between) > 0).all()
    assert curve(np.array([100.0]))[0] == pytest.approx(SECONDS[0])


def test_another_interpolation_is_an_error() -> None:
    with pytest.raises(ValueError, match="interpolation: found 'spline', allowed: linear"):
        h200("spline")


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_the_optimal_threshold_balances_both_clusters_and_no_other_carries_more(
    remote: int, prefill: int, at_means: bool
) -> None:
    model, deployment = service(at_means), Deployment(remote, prefill, 1)
    best = model.optimal_threshold(deployment)
    found = model.capacity(deployment, best)
    assert found.remote == pytest.approx(found.prefill, rel=2e-3)
    for other in (0.7 * best, 0.95 * best, 1.05 * best, min(1.4 * best, 1.2e5)):
        assert model.capacity(deployment, other).total <= found.total * (1 + 2e-3)


def test_capacity_by_hand() -> None:
    model = Service(Lengths(), lambda t: 0 * t + 2.0, lambda t: 0 * t + 5.0, decode_rate=0.5)
    found = model.capacity(Deployment(4, 3, 7, bandwidth=1e9), 20_000.0)
    p = found.share
    assert 0 < p < 1
    assert found.compute == pytest.approx(4 / 2.0 / p)
    assert found.prefill == pytest.approx(3 / 5.0 / (1 - p))
    assert found.decode == 3.5
    sent = float(kv_bytes(np.array(Lengths().mean(low=20_000.0))))
    assert found.link == pytest.approx(1e9 / sent / p)
    none = model.capacity(Deployment(0, 9, 3), math.inf)
    assert (none.share, none.remote) == (0.0, math.inf)
    assert none.prefill == pytest.approx(9 / 5)


def one_cluster(arrival: Floats, seconds: Floats) -> Jobs:
    nothing = np.zeros(len(arrival))
    return Jobs(arrival, nothing, nothing, seconds, nothing)


gaps = st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 8.0)), min_size=1, max_size=40)


@given(gaps, st.integers(1, 4))
def test_several_servers_are_first_come_first_served(
    cases: list[tuple[float, float]], servers: int
) -> None:
    between, seconds = np.array(cases).T
    arrival = np.cumsum(between)
    found = play(one_cluster(arrival, seconds), Plant(0, servers, 1000, 1.0), Fixed(math.inf))
    free = [0.0] * servers  # when each server is done: the next request takes the first
    for at, takes, ends in zip(arrival, seconds, found.prefilled, strict=True):
        begin = max(at, heapq.heappop(free))
        heapq.heappush(free, begin + takes)
        assert ends == pytest.approx(begin + takes)


@pytest.mark.parametrize("law", ["deterministic", "exponential"])
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_waiting_is_that_of_pollaczek_and_khinchine(law: str, load: float) -> None:
    generator = np.random.default_rng(7)
    count = 150_000
    arrival = np.cumsum(generator.exponential(size=count)) / load
    seconds = np.ones(count) if law == "deterministic" else generator.exponential(size=count)
    found = play(one_cluster(arrival, seconds), Plant(0, 1, count, 1.0), Fixed(math.inf))
    waited = found.ttft() - seconds[count // 10 :]
    square = 1.0 if law == "deterministic" else 2.0  # E[S²]
    assert waited.mean() == pytest.approx(load * square / (2 * (1 - load)), rel=0.05)


@given(gaps, st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.floats(0.0, 1.0))
def test_every_request_passes_once_and_nothing_holds_more_than_it_can(
    cases: list[tuple[float, float]], remote: int, local: int, slots: int, share: float
) -> None:
    between, seconds = np.array(cases).T
    arrival = np.cumsum(between)
    count = len(arrival)
    tokens = np.random.default_rng(count).random(count)
    jobs = Jobs(arrival, tokens, seconds, 2 * seconds, 0.5 * seconds)
    found = play(jobs, Plant(remote, local, slots, 3.0), Fixed(share))
    np.testing.assert_array_equal(found.away, tokens > share)
    shortest = np.where(found.away, 1.5 * seconds, 2 * seconds)
    assert (found.first_token - arrival >= shortest - 1e-9).all()
    np.testing.assert_allclose(found.end - found.first_token, 3.0)
    assert found.link_seconds == pytest.approx(0.5 * seconds[found.away].sum())
    for at in found.first_token:  # among those that decode then
        assert ((found.first_token <= at) & (at < found.end - 1e-9)).sum() <= slots
    for mask, takes, servers in (
        (found.away, seconds, remote),
        (~found.away, 2 * seconds, local),
    ):
        begin = found.prefilled[mask] - takes[mask]
        for at in begin:
            middle = at + 1e-9
            assert ((begin <= middle) & (middle < found.prefilled[mask] - 1e-9)).sum() <= servers


def test_the_threshold_rises_under_congestion_and_falls_back() -> None:
    rule = Congested(start=100.0, most=150.0, window=1.0, utilisation=0.9, wait=3.0, step=0.5)
    assert rule.at(Sight(0.5, 0.0, 9.0, 0.0)) == 100.0  # too early
    assert rule.at(Sight(1.0, 0.0, 3.0, 0.0)) == pytest.approx(150.0)  # waits
    assert rule.at(Sight(2.0, 0.95, 0.0, 9.0)) == pytest.approx(150.0)  # sends, but no further
    assert rule.at(Sight(3.0, 1.0, 0.0, 0.0)) == pytest.approx(100.0)
    assert rule.at(Sight(4.0, 1.0, 0.0, 0.0)) == pytest.approx(100.0)
    guarded = Congested(100.0, 150.0, window=1.0, wait=3.0, step=0.5, both_sides=True)
    assert guarded.at(Sight(1.0, 0.0, 5.0, 6.0)) == 100.0
    assert guarded.at(Sight(2.0, 0.0, 5.0, 4.0)) == pytest.approx(150.0)
    assert guarded.at(Sight(3.0, 1.0, 5.0, 6.0)) == pytest.approx(100.0)


def test_requests_do_not_depend_on_the_rate_and_none_is_lost_in_a_missing_cluster() -> None:
    arrival, tokens = poisson_jobs(Lengths(), 2000, seed=3)
    again, same = poisson_jobs(Lengths(), 2000, seed=3)
    np.testing.assert_array_equal(arrival, again)
    np.testing.assert_array_equal(tokens, same)
    assert arrival[-1] / 2000 == pytest.approx(1.0, rel=0.1)
    ones = np.ones(2000)
    with pytest.raises(ValueError, match="to a cluster without prefill instances"):
        play(Jobs(arrival, tokens, ones, ones, ones), Plant(0, 9, 10, 1.0), Fixed(20_000.0))


def test_a_run_meets_what_was_published_and_draws_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prfaas_case, "_REQUESTS", 4000)
    prfaas_case._requests.cache_clear()
    outcome = prfaas.run(tmp_path, Effort())
    prfaas_case._requests.cache_clear()
    assert {figure.verdict for figure in outcome.figures} == {"met", "not checked"}
    # What H20 prefill was fitted to is no check.
    assert not {4.44, 9.73} & {figure.published for figure in outcome.figures}
    assert {tuple(row) for row in outcome.rows} == {tuple(outcome.rows[0])}
    outcome.draw(tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as image:
        assert image.width > 500
