"""What a leaderboard leaves behind: Parquet, Markdown, PNG, and one JSON object."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from prefixgym.experiments.leaderboard import Failure
from prefixgym.experiments.plot import plot_leaderboard
from prefixgym.experiments.ranking import Standing, knee, rank, summarise
from prefixgym.experiments.table import Table, ladder_table, overall_table, scenario_table


@dataclass(frozen=True)
class Report:
    """Statements about a leaderboard's episodes.

    Attributes:
        episodes: a row an episode, from `leaderboard.read_cells`.
        summary: a row for each scenario, rate and router, with intervals.
        standings: the ranking.
        failures: cells that are missing, and why.
    """

    episodes: pl.DataFrame
    summary: pl.DataFrame
    standings: list[Standing]
    failures: Sequence[Failure]

    @classmethod
    def of(cls, episodes: pl.DataFrame, failures: Sequence[Failure]) -> "Report":
        """Summarise and rank."""
        return cls(episodes, summarise(episodes), rank(episodes), failures)

    def tables(self) -> list[Table]:
        """One for each scenario at its knee, then the ranking."""
        return [*map(scenario_table, self._by_scenario()), overall_table(self.standings)]

    def write(self, folder: Path, title: str) -> dict[str, Path]:
        """Write all files; returns their paths by what they hold."""
        files = {
            "episodes": folder / "episodes.parquet",
            "summary": folder / "summary.parquet",
            "markdown": folder / "leaderboard.md",
            "picture": folder / "leaderboard.png",
        }
        self.episodes.write_parquet(files["episodes"])
        self.summary.write_parquet(files["summary"])
        files["markdown"].write_text(self.markdown(title), encoding="utf-8")
        plot_leaderboard(self.summary, self.standings, files["picture"])
        return files

    def markdown(self, title: str) -> str:
        """The ranking, each scenario at its knee, and each ladder."""
        *scenarios, overall = self.tables()
        parts = [f"# {title}\n", _HOW_TO_READ, overall.markdown(), "![](leaderboard.png)\n"]
        for table, summary in zip(scenarios, self._by_scenario(), strict=True):
            parts += [table.markdown(), ladder_table(summary).markdown()]
        if self.failures:
            parts.append("### Failed cells\n")
            parts += [f"- {f.cell.key}: {f.message}" for f in self.failures]
        return "\n".join(parts)

    def json(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "ranking": [
                {
                    "router": s.router,
                    "rank": [s.best_rank, s.worst_rank],
                    "attainment": s.attainment._asdict(),
                    "gain": s.gain and s.gain._asdict(),
                }
                for s in self.standings
            ],
            "knees": {part["scenario"][0]: knee(part) for part in self._by_scenario()},
            "cells": self.summary.to_dicts(),
            "failures": [{"cell": f.cell.key, "message": f.message} for f in self.failures],
        }

    def _by_scenario(self) -> list[pl.DataFrame]:
        return self.summary.partition_by("scenario", maintain_order=True)


_HOW_TO_READ = """\
Attainment: share of arrived requests within both objectives. Brackets: 95 % stratified-bootstrap
intervals over seeds; routers whose intervals overlap share a range of ranks. All routers of a row
of loads met the same requests. IQM: interquartile mean over scenarios, loads and seeds. Capacity:
highest rate with 90 % attainment, between the rungs of the ladder. Tardiness: mean s by which the
first token missed its objective. Worst sess.: attainment of the worst 5 % of sessions. Busy/idle:
mean running requests of the busiest instance over those of the idlest.
"""
