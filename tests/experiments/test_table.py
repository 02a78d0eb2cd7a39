import math

import pytest
from rich.console import Console

from prefixgym.experiments.statistics import Estimate
from prefixgym.experiments.table import Table, number, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.0123"),
        (1.2345, "1.23"),
        (99.96, "100"),
        (12345.0, "12,300"),
        (-0.5, "-0.500"),
        (0.0, "0"),
        (math.inf, "∞"),
        (math.nan, "?"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_percent_shows_the_interval_if_there_is_one() -> None:
    assert percent(Estimate(0.5, 0.4, 0.6)) == "50.0 [40.0, 60.0]"
    assert percent(Estimate(0.5, math.nan, math.nan)) == "50.0"
    assert percent(Estimate(-0.0001, -0.02, 0.01), signed=True) == "+0.0 [-2.0, +1.0]"


def test_terminal_and_markdown_say_the_same() -> None:
    table = Table("Title", ("router", "a\nb"), [("x", "1"), ("y", "2")])
    assert table.markdown() == "### Title\n\n| router | a b |\n|:--|--:|\n| x | 1 |\n| y | 2 |\n"
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table.rich())
    lines = [line.split() for line in captured.get().splitlines() if line.strip()]
    assert lines[-2:] == [["x", "1"], ["y", "2"]]
