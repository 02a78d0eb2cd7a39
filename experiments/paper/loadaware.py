"""loadaware's sweep over β: how much balance for how many prefix hits, against published.

The deployment and the replays are in `loadaware_testbed` and `loadaware_replays`, what the result
depends on in `loadaware_sensitivity`; docs/published-results.md says what is assumed.
"""

from pathlib import Path
from typing import Any

from prefixgym.experiments.paper.loadaware_plot import plot_loadaware
from prefixgym.experiments.paper.loadaware_replays import MEASURED_PACE, reproduce, summarize
from prefixgym.experiments.paper.published import Effort, Figure, Outcome, Result
from prefixgym.experiments.table import Table, number

SOURCE = "caching-in-llms"

BETAS = ("0", "0.25", "0.5", "1", "2")
SECOND_SWEEP = 2.452
"""kvaware's imbalance in the second sweep, from which β = 0.25 is."""

_HOST_TIER = "there a miss is copied to host memory by LMCache, here there is no such tier"
_LATENCY = (
    "any step that admits a request takes some 100 ms there, cached or not; one factor on all "
    "step times cannot fit both halves of the latencies"
)


def run(_folder: Path, _effort: Effort) -> Outcome:
    """All arms at the measured pace, 20 replays of 500 requests each."""
    arms = {row["arm"]: row for row in summarize(reproduce(MEASURED_PACE)).to_dicts()}
    return Outcome(
        tables=[_table(arms)],
        figures=figures(arms),
        draw=lambda path: plot_loadaware(arms, BETAS, path),
        rows=list(arms.values()),
    )


def figures(arms: dict[str, dict[str, Any]]) -> list[Figure]:
    """Published beside ours; `arms` are the rows of `summarize` by arm."""
    changes = [_change(arms, beta) for beta in BETAS]
    hits = [_hits(arms, f"loadaware {beta}", f"β = {beta}", 1.5) for beta in BETAS]
    kvaware, balanced, blind = (arms[a] for a in ("kvaware", "loadaware 0.5", "round robin"))
    return [
        _within("imbalance under kvaware", kvaware, "imbalance", 0.2, "", "six or seven readings"),
        *changes,
        _hits(arms, "kvaware", "kvaware", 1.5),
        *hits,
        _hits(arms, "round robin", "round robin", 5.0),
        _within("requests/s under kvaware", kvaware, "throughput", 0.03, "/s",
                "nearly what is sent"),
        _within("TTFT p95 under kvaware", kvaware, "ttft_p95", 0.2, "s", "a fifth", _LATENCY),
        _within("TTFT p95, β = 0.5", balanced, "ttft_p95", 0.2, "s", "a fifth", _LATENCY),
        _within("imbalance under round robin", blind, "imbalance", 0.2, "", "a fifth", _HOST_TIER),
        _within("TTFT p95 under round robin", blind, "ttft_p95", 0.2, "s", "a fifth", _HOST_TIER),
        _within("requests/s under round robin", blind, "throughput", 0.03, "/s",
                "nearly what is sent", _HOST_TIER),
    ]  # fmt: skip


def _change(arms: dict[str, dict[str, Any]], beta: str) -> Figure:
    """Imbalance against kvaware's in the same replays, %."""
    row = arms[f"loadaware {beta}"]
    published = row["published_change"]
    if beta == "0.25":
        published = row["published_imbalance"] / SECOND_SWEEP - 1
    low, high, because = {
        "0": (-35.0, 35.0, "not significant there: as far as their medians lie apart"),
        "0.25": (-35.0, 35.0, "not significant there: as far as their medians lie apart"),
        "0.5": (-56.3, -37.7, "the published 95 % interval"),
        "1": (-63.7, -43.7, "ten points, as the published interval of β = 0.5"),
        "2": (-63.9, -43.9, "ten points, as the published interval of β = 0.5"),
    }[beta]
    what = f"imbalance against kvaware, β = {beta}"
    return Figure(what, SOURCE, 100 * published, 100 * row["change"], because, low, high, "%")


def _hits(arms: dict[str, dict[str, Any]], arm: str, label: str, points: float) -> Figure:
    published = 100 * arms[arm]["published_hit_rate"]
    because = f"{points:g} points: what LMCache evicts, and when, is not known exactly"
    return Figure(
        f"prefix hits, {label}", SOURCE, published, 100 * arms[arm]["hit_rate"], because,
        published - points, published + points, "%",
    )  # fmt: skip


def _within(
    what: str,
    row: dict[str, Any],
    column: str,
    share: float,
    unit: str,
    because: str,
    known_miss: str = "",
) -> Figure:
    published = row[f"published_{column}"]
    return Figure(
        what, SOURCE, published, row[column], f"{100 * share:g} % either way: {because}",
        (1 - share) * published, (1 + share) * published, unit, known_miss,
    )  # fmt: skip


_COLUMNS = (
    ("imbalance", "imbalance", 1),
    ("change", "change %", 100),
    ("hit_rate", "hits %", 100),
    ("ttft_p95", "TTFT p95 s", 1),
    ("throughput", "requests/s", 1),
)


def _table(arms: dict[str, dict[str, Any]]) -> Table:
    rows = [
        (
            arm,
            *(
                " / ".join(
                    "" if row[key] is None else number(scale * row[key])
                    for key in (f"published_{column}", column)
                )
                for column, _, scale in _COLUMNS
            ),
        )
        for arm, row in arms.items()
    ]
    return Table(
        "Medians over 20 replays (hits: of all requests), published / ours",
        ("router", *(name for _, name, _ in _COLUMNS)),
        rows,
    )


RESULT = Result("loadaware", "How much balance does β buy, and for how many prefix hits?", run)
