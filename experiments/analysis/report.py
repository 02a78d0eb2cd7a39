"""Runs beside each other and beside handcrafted routers, as a table and for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prefixgym.experiments.analysis.curve import Group, curve
from prefixgym.experiments.analysis.run import Figures, Run
from prefixgym.experiments.table import Table

Panels = dict[tuple[str, float], list[Group]]


@dataclass(frozen=True)
class Handcrafted:
    """A handcrafted router on the validation episodes of some run, and on its test episodes."""

    scenario: str
    rate: float
    router: str
    validation: Figures
    test: Figures | None


def handcrafted_in(runs: Iterable[Run]) -> list[Handcrafted]:
    """Each once, however many runs were held against it on the same episodes."""
    found: dict[tuple[str, float, str, Figures], Handcrafted] = {}
    for run in runs:
        for name, figures in run.handcrafted.items():
            key = (run.scenario, run.rate, name, figures)
            test = run.test_handcrafted.get(name)
            if key not in found or found[key].test is None:
                found[key] = Handcrafted(run.scenario, run.rate, name, figures, test)
    return list(found.values())


def incomparable(panels: Panels) -> list[str]:
    """Of which scenarios the runs were judged on different episodes, in words."""
    told = []
    for (scenario, rate), groups in panels.items():
        rows = handcrafted_in(run for group in groups for run in group.runs)
        if len({row.router for row in rows}) < len(rows):
            told.append(
                f"{scenario} at {rate:g} requests/s: handcrafted routers have different figures in "
                "these runs, so they were judged on different episodes and cannot be compared"
            )
    return told


def comparison_table(runs: Sequence[Run], panels: Panels) -> Table:
    """A row for each run and handcrafted router, by scenario, load and best attainment.

    `best` is of the weights that are kept, `last` of those at the last judgement.
    """
    headings = (
        "run", "learner", "scenario@rate", "decisions", "seconds", "best\n%", "TTFT\np99 ms",
        "last\n%", "TTFT\np99 ms", "test\n%", "TTFT\np99 ms",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for scenario, rate in panels:
        mine = [run for run in runs if (run.scenario, run.rate) == (scenario, rate)]
        lines = [(run.best.attainment, _run_row(run)) for run in mine]
        lines += [
            (row.validation.attainment, _handcrafted_row(row)) for row in handcrafted_in(mine)
        ]
        rows += [cells for _, cells in sorted(lines, key=lambda line: -line[0])]
    return Table("Validation and test", headings, rows)


def _run_row(run: Run) -> tuple[str, ...]:
    best, tail = _cells(run.best)
    above = "*" if run.best.ttft_p99 > run.limit else ""
    return (
        run.path.name,
        run.learner,
        f"{run.scenario}@{run.rate:g}",
        f"{run.total_decisions:,}",
        f"{run.total_seconds:,.0f}",
        best,
        tail + above,
        *_cells(Figures(float(run.attainment[-1]), float(run.ttft_p99[-1]))),
        *_cells(run.test),
    )


def _handcrafted_row(row: Handcrafted) -> tuple[str, ...]:
    validation, test = _cells(row.validation), _cells(row.test)
    place = f"{row.scenario}@{row.rate:g}"
    return (row.router, "handcrafted", place, "", "", *validation, "", "", *test)


def _cells(figures: Figures | None) -> tuple[str, str]:
    if figures is None:
        return "", ""
    return f"{100 * figures.attainment:.2f}", f"{1000 * figures.ttft_p99:,.0f}"


def analysis_json(runs: Sequence[Run], panels: Panels) -> dict[str, Any]:
    """Everything that the table and the figure show."""
    return {
        "runs": [_run_json(run) for run in runs],
        "handcrafted": [asdict(row) for row in handcrafted_in(runs)],
        "curves": [
            {
                "scenario": scenario,
                "rate": rate,
                "label": group.label,
                "runs": [str(run.path) for run in group.runs],
                **{
                    f"{metric}_by_{axis}": {
                        name: values.tolist()
                        for name, values in vars(curve(group, metric, axis)).items()
                    }
                    for metric in ("attainment", "ttft_p99")
                    for axis in ("decisions", "seconds")
                },
            }
            for (scenario, rate), groups in panels.items()
            for group in groups
        ],
    }


def _run_json(run: Run) -> dict[str, Any]:
    found = asdict(run) | {"run": str(run.path)}
    del found["path"]
    for name in ("decisions", "seconds", "attainment", "ttft_p99"):
        found[name] = found[name].tolist()
    return found
