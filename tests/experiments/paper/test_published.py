"""Published figures beside ours: verdicts and what is said of them."""

import math

import pytest

from prefixgym.experiments.paper.published import Figure, count_verdicts, figures_table


def figure(ours: float | None, low: float = 0.9, high: float = 1.1, miss: str = "") -> Figure:
    return Figure(
        "ratio", "made up", 1.0, ours, "a tenth either way", low, high, "times", miss, "no file"
    )


@pytest.mark.parametrize(
    ("found", "verdict", "why"),
    [
        (figure(1.0), "met", "a tenth either way"),
        (figure(0.9), "met", "a tenth either way"),
        (figure(1.1), "met", "a tenth either way"),
        (figure(1.101), "missed", "a tenth either way"),
        (figure(0.899), "missed", "a tenth either way"),
        (figure(math.nan), "missed", "a tenth either way"),
        (figure(5.0, high=math.inf), "met", "a tenth either way"),
        (figure(5.0, miss="no host tier"), "known miss", "no host tier"),
        (figure(1.0, miss="no host tier"), "met", "a tenth either way"),
        (figure(5.0, -math.inf, math.inf), "not checked", "a tenth either way"),
        (figure(None), "not run", "no file"),
    ],
)
def test_verdicts(found: Figure, verdict: str, why: str) -> None:
    assert found.verdict == verdict
    assert found.why == why
    assert found.as_dict()["verdict"] == verdict
    assert count_verdicts([found, found])[found.verdict] == 2


def test_the_table_names_what_is_allowed() -> None:
    rows = figures_table(
        [
            figure(1.234),
            figure(1.0, -math.inf, 2.0),
            figure(1.0, 0.5, math.inf),
            figure(None, -math.inf, math.inf),
            Figure("size", "made up", (3.1, 4.7), 3.5, "as published", 3.1, 4.7),
        ]
    ).rows
    assert [row[3:6] for row in rows] == [
        ("1.00 times", "1.23 times", "0.900 … 1.10"),
        ("1.00 times", "1.00 times", "≤ 2.00"),
        ("1.00 times", "1.00 times", "≥ 0.500"),
        ("1.00 times", "", ""),
        ("3.10 … 4.70", "3.50", "3.10 … 4.70"),
    ]


def test_a_tolerance_needs_a_reason_and_an_interval() -> None:
    with pytest.raises(ValueError, match="ratio: has no reason"):
        Figure("ratio", "made up", 1.0, 1.0, "")
    with pytest.raises(ValueError, match=r"ratio: found allowed 1\.1 to 0\.9"):
        figure(1.0, 1.1, 0.9)
    with pytest.raises(ValueError, match="has no value of ours and no reason"):
        Figure("ratio", "made up", 1.0, None, "a tenth")
