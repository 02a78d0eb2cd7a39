"""What a contest says: a table a match, one over all of them, and the files."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from prefixgym.experiments.contest.capacities import WANTED
from prefixgym.experiments.contest.comparison import CONTESTED, Row
from prefixgym.experiments.contest.run import Contest, Result
from prefixgym.experiments.leaderboard import Failure
from prefixgym.experiments.provenance import command, commit
from prefixgym.experiments.statistics import Estimate, probability_of_improvement
from prefixgym.experiments.table import Table, number, percent, times
from prefixgym.experiments.training.judge import TAIL_LIMIT


def match_table(result: Result) -> Table:
    """All routers of a match beside the best handcrafted one, which is the first row."""
    capacities = bool(result.capacities)
    limit = max(
        (result.capacities.get(label, math.nan) for label in result.chosen), default=math.nan
    )
    ahead = any(row.kind == "lookahead" for row in result.rows)
    headings = (
        "router", "attainment\n%", "violations\n/ best", "P(im-\nproves)", "TTFT p99\n/ best",
        "worst\nsess. %", *(("gap\nclosed %",) if ahead else ()),
        *(("capacity\n/s", "/ best") if capacities else ()),
        "worse by\n> 10 %",
    )  # fmt: skip
    rows = []
    for row in result.rows:
        load = result.capacities.get(row.router)
        carried = ("", "") if load is None else (number(load), number(load / limit))
        rows.append(
            (
                row.router,
                percent(row.attainment, digits=2),
                times(row.violations),
                f"{row.improvement.value:.2f}",
                f"{row.ttft_p99_ratio:.2f}",
                f"{100 * row.worst_sessions:.1f}",
                *((_gap(row),) if ahead else ()),
                *(carried if capacities else ()),
                ", ".join(row.worse),
            )
        )
    return Table(result.match.title + _contested(result), headings, rows)


def _gap(row: Row) -> str:
    return "" if row.gap_closed is None else f"{100 * row.gap_closed:.0f}"


def _contested(result: Result) -> str:
    low, high = CONTESTED
    share = result.rows[0].attainment.value
    return "" if low <= share <= high else f" (not contested: {100 * share:.1f} %)"


def overall_table(results: Sequence[Result]) -> Table:
    """A row for each learned router, over the contested matches that it was in."""
    contested = [result for result in results if not _contested(result)]
    found: dict[str, list[tuple[Result, Row]]] = {}
    for result in contested:
        for row in result.rows:
            if row.kind in ("learned", "dump"):
                found.setdefault(row.router, []).append((result, row))
    return Table(
        f"Over the contested matches (best handcrafted router at {100 * CONTESTED[0]:g} to "
        f"{100 * CONTESTED[1]:g} %)",
        (
            "router", "matches", "violations / best\n(geometric mean)", "halved\nin", "fewer\nin",
            "more\nin", "P(im-\nproves)", "tail\nworse in", "half the gap\nclosed in",
        ),
        [_overall(router, matches) for router, matches in found.items()],
    )  # fmt: skip


def _overall(router: str, matches: Sequence[tuple[Result, Row]]) -> tuple[str, ...]:
    rows = [row for _, row in matches]
    ratios = np.array([row.violations.value for row in rows])
    with np.errstate(divide="ignore"):  # none at all makes the mean 0
        mean = float(np.exp(np.log(ratios).mean()))
    gaps = [row.gap_closed for row in rows if row.gap_closed is not None]
    return (
        router,
        f"{len(rows)}",
        f"{mean:.2f}",
        f"{int((ratios <= 0.5).sum())}",
        f"{sum(row.violations.high < 1 for row in rows)}",
        f"{sum(row.violations.low > 1 for row in rows)}",
        f"{improvement(router, [result for result, _ in matches]).value:.2f}",
        f"{sum(bool(row.worse) for row in rows)}",
        f"{sum(gap >= 0.5 for gap in gaps)} of {len(gaps)}" if gaps else "",
    )


def improvement(router: str, results: Sequence[Result]) -> Estimate:
    """Probability of improvement over matches; loads of one scenario are drawn together."""
    own, best = ({}, {})  # type: dict[str, list[Any]], dict[str, list[Any]]
    for result in results:
        name = result.match.scenario.name
        for strata, label in ((own, router), (best, result.chosen[0])):
            episodes = result.episodes.filter(pl.col("router") == label)
            strata.setdefault(name, []).append(episodes["attainment"].to_numpy())
    return probability_of_improvement(
        [np.stack(loads, 1) for loads in own.values()],
        [np.stack(loads, 1) for loads in best.values()],
    )


def rows_of(results: Sequence[Result]) -> pl.DataFrame:
    """A row for each match and router; intervals as columns `…_low` and `…_high`."""
    rows = []
    for result in results:
        for row in result.rows:
            flat: dict[str, Any] = {
                "scenario": result.match.scenario.name,
                "rate": result.match.rate,
                "reference": result.chosen[0],
                "capacity": result.capacities.get(row.router),
            }
            for field in dataclasses.fields(row):
                value = getattr(row, field.name)
                if isinstance(value, Estimate):
                    flat |= {field.name: value.value}
                    flat |= {f"{field.name}_low": value.low, f"{field.name}_high": value.high}
                else:
                    flat[field.name] = ", ".join(value) if isinstance(value, tuple) else value
            rows.append(flat)
    return pl.DataFrame(rows, infer_schema_length=None)


def write(
    results: Sequence[Result],
    contest: Contest,
    folder: Path,
    left_out: Sequence[str],
    failures: Sequence[Failure],
) -> dict[str, Path]:
    """Write all files; returns their paths by what they hold."""
    files = {
        "rows": folder / "contest.parquet",
        "episodes": folder / "episodes.parquet",
        "markdown": folder / "contest.md",
    }
    rows_of(results).write_parquet(files["rows"])
    pl.concat([result.episodes for result in results]).write_parquet(files["episodes"])
    files["markdown"].write_text(
        markdown(results, contest, folder.name, left_out, failures), encoding="utf-8"
    )
    return files


def markdown(
    results: Sequence[Result],
    contest: Contest,
    name: str,
    left_out: Sequence[str],
    failures: Sequence[Failure],
) -> str:
    """The page."""
    parts = [f"# Contest: {name}\n", f"`{command()}`, commit {commit()}\n", _how_to_read(contest)]
    overall = overall_table(results)
    if overall.rows:
        parts.append(overall.markdown())
    for result in results:
        parts.append(match_table(result).markdown())
        parts.append(
            f"Chosen of {result.candidates} handcrafted entries on validation seeds: "
            f"{', '.join(result.chosen)}.\n"
        )
    for title, lines in (
        ("Left out", left_out),
        ("Failed cells", [f"{f.cell.key}: {f.message}" for f in failures]),
    ):
        if lines:
            parts += [f"### {title}\n", *(f"- {line}" for line in lines), ""]
    return "\n".join(parts)


def _how_to_read(contest: Contest) -> str:
    text = f"""\
Every handcrafted router, with its defaults and with tuned parameters where there are any, played
{contest.validation} validation seeds; the best {contest.few} by attainment, of those with a p99
TTFT of at most {TAIL_LIMIT:g} times that of the best, play {contest.seeds} test seeds beside the
learned ones. *Best* is the first of them, as chosen on validation. Brackets: 95 % bootstrap
intervals over seeds. *Violations*: share of requests that miss an objective, as a ratio, paired by
seeds. *P(improves)*: share of seeds on which more is attained, ties count half (rliable's,
paired by seeds). *Worst sess.*: attainment of the worst 5 % of sessions. *Worse by > 10 %*: p99
TTFT or worst sessions, whichever is. *Fewer*, *more*: violations beyond noise.
"""
    if contest.lookahead:
        text += (
            "*Gap closed*: attainment beyond the best / that of the look-ahead beyond the best, on "
            f"the first {contest.lookahead} test seeds.\n"
        )
    if contest.capacity:
        text += (
            f"*Capacity*: highest rate with {100 * WANTED:g} % attainment, on the first "
            f"{contest.capacity} test seeds; *best*: of the handcrafted routers shown.\n"
        )
    return text


def json_of(
    results: Sequence[Result], left_out: Sequence[str], failures: Sequence[Failure]
) -> dict[str, Any]:
    """The same for machines."""
    return {
        "matches": [
            {
                "scenario": result.match.scenario.name,
                "rate": result.match.rate,
                "chosen": list(result.chosen),
                "candidates": result.candidates,
                "capacities": result.capacities,
            }
            for result in results
        ],
        "rows": rows_of(results).to_dicts(),
        "left_out": list(left_out),
        "failures": [{"cell": f.cell.key, "message": f.message} for f in failures],
    }
