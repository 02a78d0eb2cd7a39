import dataclasses
from typing import Any

import numpy as np
import pytest

from prefixgym.envs.slo import Slo
from prefixgym.experiments.metrics import EpisodeMetrics, EpisodeTally, episode_metrics
from prefixgym.experiments.samples import RELATIVE_ERROR, LogHistogram

OUTCOME_FIELDS = np.dtype(
    [
        ("arrival", "f8"),
        ("ttft", "f8"),
        ("tpot", "f8"),
        ("end", "f8"),
        ("prompt_tokens", "i4"),
        ("output_tokens", "i4"),
        ("hit_tokens", "i4"),
        ("session", "i4"),
        ("slo_class", "i4"),
        ("status", "i4"),
        ("attempts", "i4"),
        ("good", "i4"),
    ]
)
TOTALS_FIELDS = np.dtype([("running_seconds", "f8"), ("preemptions", "i8")])
SLOS = [Slo(ttft=0.5, tpot=0.03), Slo(ttft=1.0, tpot=0.1, ttft_per_token=0.01)]


def outcome(**fields: Any) -> tuple[Any, ...]:
    defaults = {
        "arrival": 0.0,
        "ttft": 0.1,
        "tpot": 0.01,
        "end": 1.0,
        "prompt_tokens": 100,
        "output_tokens": 10,
        "hit_tokens": 0,
        "session": 0,
        "slo_class": 0,
        "status": 0,
        "attempts": 1,
        "good": 1,
    }
    assert OUTCOME_FIELDS.names is not None
    return tuple((defaults | fields)[name] for name in OUTCOME_FIELDS.names)


def metrics(outcomes: list[tuple[Any, ...]], running: tuple[float, ...] = (1.0,)) -> EpisodeMetrics:
    totals = np.array([(seconds, 2) for seconds in running], TOTALS_FIELDS)
    return episode_metrics(np.array(outcomes, OUTCOME_FIELDS), totals, SLOS)


def test_goodput_is_over_the_time_from_first_arrival_to_last_end() -> None:
    found = metrics([outcome(arrival=5.0, end=6.0), outcome(arrival=6.0, end=9.0, good=0)])
    assert found.goodput == 1 / 4
    assert found.throughput == 2 / 4
    assert found.attainment == 0.5


def test_rejected_requests_miss_but_have_no_latency() -> None:
    found = metrics([outcome(), outcome(status=1, good=0, ttft=np.nan, tpot=np.nan)])
    assert found.attainment == 0.5
    assert found.rejected == 0.5
    assert found.ttft_mean == 0.1
    assert found.ttft_p99 == 0.1


def test_requests_without_an_end_of_their_own_are_told_apart() -> None:
    lost = outcome(status=2, good=0, ttft=np.nan, attempts=3)
    gone = outcome(status=3, good=0, ttft=0.2, tpot=0.0)
    found = metrics([outcome(), outcome(), lost, gone])
    assert (found.rejected, found.failed, found.cancelled) == (0.0, 0.25, 0.25)
    assert found.attempts == 1.5
    assert found.ttft_mean == 0.1


def test_tardiness_counts_each_request_against_its_own_objective() -> None:
    found = metrics([outcome(ttft=1.5), outcome(ttft=1.5, slo_class=1), outcome(ttft=0.1)])
    assert found.tardiness == pytest.approx(1.0 / 3)


def test_single_token_answers_have_no_time_per_output_token() -> None:
    found = metrics([outcome(output_tokens=1, tpot=0.0), outcome(tpot=0.04)])
    assert found.tpot_mean == found.tpot_p99 == 0.04


def test_hit_rate_is_by_tokens() -> None:
    found = metrics(
        [outcome(prompt_tokens=900, hit_tokens=600), outcome(prompt_tokens=100, hit_tokens=0)]
    )
    assert found.hit_rate == 0.6


def test_imbalance_and_preemptions_come_from_the_instances() -> None:
    found = metrics([outcome()] * 4, running=(3.0, 1.5))
    assert found.imbalance == 2.0
    assert found.preemptions == 1.0
    assert metrics([outcome()], running=(3.0, 0.0)).imbalance == np.inf


def test_worst_sessions_are_the_lowest_twentieth() -> None:
    fine = [outcome(session=s) for s in range(38)]
    poor = [outcome(session=38, good=g) for g in (0, 1)] + [outcome(session=39, good=0)]
    # 40 sessions: the worst two attained 0 and 1/2.
    assert metrics(fine + poor).worst_sessions == 0.25


def test_the_worst_class_is_the_one_that_attained_least() -> None:
    found = metrics([outcome(), outcome(good=0), *[outcome(slo_class=1)] * 3])
    assert found.worst_class == 0.5
    assert found.attainment == 0.8
    assert metrics([outcome(), outcome(slo_class=1, status=1, good=0)]).worst_class == 0.0


def test_nothing_finished() -> None:
    found = metrics([outcome(status=1, good=0)], running=(0.0,))
    assert found.attainment == found.goodput == 0.0
    assert np.isnan(found.ttft_p99)
    assert np.isnan(found.hit_rate)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_a_tally_in_pieces_equals_the_whole(size: int) -> None:
    generator = np.random.default_rng(size)
    rows = [
        outcome(
            arrival=float(k),
            end=k + float(generator.random()),
            ttft=float(generator.lognormal(-1, 1)),
            tpot=float(generator.lognormal(-4, 1)),
            output_tokens=int(generator.integers(1, 4)),
            hit_tokens=int(generator.integers(0, 101)),
            session=k // 5 if k < 100 else 20 + int(generator.integers(0, 30)),
            slo_class=int(generator.integers(0, 2)),
            status=int(generator.random() < 0.1),
            good=int(generator.random() < 0.6),
        )
        for k in range(200)
    ]
    whole = np.array(rows, OUTCOME_FIELDS)
    totals = np.array([(3.0, 2), (2.0, 0)], TOTALS_FIELDS)
    expected = dataclasses.asdict(episode_metrics(whole, totals, SLOS))
    exact, bounded = EpisodeTally(SLOS), EpisodeTally(SLOS, LogHistogram)
    for begin in range(0, 200, size):
        later = np.unique(whole["session"][begin + size :])
        for tally in (exact, bounded):
            tally.add(whole[begin : begin + size], later)
    assert dataclasses.asdict(exact.metrics(totals)) == pytest.approx(expected, rel=1e-12)
    found = dataclasses.asdict(bounded.metrics(totals))
    for name in ("ttft_p50", "ttft_p90", "ttft_p99", "tpot_p99"):
        assert found.pop(name) == pytest.approx(expected.pop(name), rel=RELATIVE_ERROR)
    assert found == pytest.approx(expected, rel=1e-12)
