"""Run results, write their files, and sum up what was met."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from prefixgym.experiments.paper.published import (
    Effort,
    Outcome,
    Result,
    Verdict,
    count_verdicts,
    figures_table,
)
from prefixgym.experiments.table import Table, number


@dataclass(frozen=True)
class Ran:
    """A result that was run.

    Attributes:
        result: which.
        seconds: that it took.
        outcome: what it found; None: it raised.
        files: those that were written, by kind: csv, md, png.
        error: what it raised.
    """

    result: Result
    seconds: float
    outcome: Outcome | None = None
    files: dict[str, Path] | None = None
    error: str = ""

    @property
    def is_good(self) -> bool:
        """It ran to its end, and no stated tolerance is broken."""
        if self.outcome is None or self.outcome.failures:
            return False
        return count_verdicts(self.outcome.figures)["missed"] == 0

    @property
    def tables(self) -> list[Table]:
        """For people: its own, and what was published."""
        if self.outcome is None:
            return []
        published = [figures_table(self.outcome.figures)] if self.outcome.figures else []
        return [*self.outcome.tables, *published]

    @property
    def complaints(self) -> list[str]:
        """A line for each thing that failed."""
        broken = [f"failed: {self.result.name}: {self.error}"] if self.error else []
        if self.outcome is None:
            return broken
        return [
            *(f"failed: {line}" for line in self.outcome.failures),
            *(
                f"missed: {self.result.name}: {figure.what}: {figure.ours} is not within "
                f"{figure.low:g} to {figure.high:g}"
                for figure in self.outcome.figures
                if figure.verdict == "missed"
            ),
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = self.outcome
        return {
            "study": self.result.name,
            "question": self.result.question,
            "seconds": self.seconds,
            "rows": list(found.rows) if found else [],
            "published": [figure.as_dict() for figure in found.figures] if found else [],
            "left_out": list(found.left_out) if found else [],
            "files": {kind: str(path) for kind, path in (self.files or {}).items()},
            "failures": [*(found.failures if found else ()), *([self.error] * bool(self.error))],
        }


def run_result(result: Result, folder: Path, effort: Effort) -> Ran:
    """Run one and write NAME.csv, NAME.md and NAME.png to its folder."""
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    outcome = result.run(folder, effort)
    files = {kind: folder / f"{result.name}.{kind}" for kind in ("csv", "png", "md")}
    pl.DataFrame(outcome.rows, infer_schema_length=None).write_csv(files["csv"])
    outcome.draw(files["png"])
    ran = Ran(result, time.perf_counter() - start, outcome, files)
    page = [f"# {result.question}\n", *(table.markdown() for table in ran.tables)]
    files["md"].write_text("\n".join(page), encoding="utf-8")
    return ran


def try_result(result: Result, folder: Path, effort: Effort) -> Ran:
    """The same; what it raises is kept, so that others can be run after it."""
    start = time.perf_counter()
    try:
        return run_result(result, folder, effort)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        return Ran(result, time.perf_counter() - start, error=message)


_VERDICTS: tuple[Verdict, ...] = ("met", "missed", "known miss", "not checked", "not run")


def results_table(rans: Sequence[Ran]) -> Table:
    """A row a result: how many figures have each verdict, and the picture."""
    rows = []
    for ran in rans:
        counts = count_verdicts(ran.outcome.figures if ran.outcome else ())
        what = str(ran.files["png"]) if ran.files else f"failed: {ran.error}"
        if ran.outcome and ran.outcome.failures:
            what += f" ({len(ran.outcome.failures)} cells failed)"
        rows.append(
            (
                ran.result.name,
                *(str(counts[verdict] or "") for verdict in _VERDICTS),
                number(ran.seconds),
                what,
            )
        )
    return Table("Results", ("result", *_VERDICTS, "seconds", "picture"), rows, prose=True)
