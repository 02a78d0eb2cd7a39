"""Rows of a match and the choice before it, against what can be counted by hand."""

import polars as pl
import pytest

from prefixgym.experiments.contest.choice import best_few
from prefixgym.experiments.contest.comparison import compare
from prefixgym.experiments.contest.entrants import Kind


def _episodes(
    attainment: list[float], ttft_p99: float = 0.5, worst_sessions: float = 0.5
) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "attainment": attainment,
            "ttft_p99": [ttft_p99] * len(attainment),
            "worst_sessions": [worst_sessions] * len(attainment),
        }
    )


def test_the_best_few_are_chosen_within_the_tail_of_the_best() -> None:
    found = {
        "third": _episodes([0.92]),
        "best": _episodes([0.96]),
        "same decisions": _episodes([0.96]),
        "sacrifices": _episodes([0.95], ttft_p99=0.56),
        "second": _episodes([0.94], ttft_p99=0.54),
        "fourth": _episodes([0.90]),
    }
    assert best_few(found, 3) == ["best", "second", "third"]
    assert best_few(found, 1) == ["best"]


def test_rows_are_against_the_reference_seed_by_seed() -> None:
    kinds: dict[str, Kind] = {"best": "handcrafted", "net": "learned", "lookahead": "lookahead"}
    rows = compare(
        {
            "best": _episodes([0.96, 0.94, 0.90, 0.80]),
            "net": _episodes([0.98, 0.98, 0.90, 0.78], ttft_p99=0.56, worst_sessions=0.44),
            "lookahead": _episodes([0.99, 0.99]),
        },
        kinds,
        "best",
    )
    best, net, ahead = rows
    assert net.violations.value == pytest.approx(0.36 / 0.40)
    assert net.improvement.value == pytest.approx(2.5 / 4)
    assert net.ttft_p99_ratio == pytest.approx(1.12)
    assert net.worse == ("p99", "sessions")
    # On the look-ahead's two seeds: 0.98 − 0.95 of 0.99 − 0.95.
    assert net.gap_closed == pytest.approx(0.75)
    assert ahead.seeds == 2
    assert ahead.violations.value == pytest.approx(0.01 / 0.05)
    assert best.gap_closed == 0
    assert best.worse == ()


def test_no_gap_is_closed_where_there_is_none() -> None:
    kinds: dict[str, Kind] = {"best": "handcrafted", "lookahead": "lookahead"}
    rows = compare({"best": _episodes([0.9]), "lookahead": _episodes([0.8])}, kinds, "best")
    assert [row.gap_closed for row in rows] == [None, None]


def test_a_tail_within_ten_percent_is_not_marked() -> None:
    kinds: dict[str, Kind] = {"best": "handcrafted", "net": "learned"}
    own = _episodes([0.9], ttft_p99=0.54, worst_sessions=0.46)
    _, net = compare({"best": _episodes([0.9]), "net": own}, kinds, "best")
    assert net.worse == ()
