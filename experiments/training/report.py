"""The end of a training: its best weights on test seeds beside the handcrafted routers."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import polars as pl

from prefixgym.agents.weights import Card, load_weights, save_weights
from prefixgym.baselines.router import make_router
from prefixgym.experiments.evaluate import evaluate_router
from prefixgym.experiments.ranking import summarise
from prefixgym.experiments.table import Table, scenario_table
from prefixgym.experiments.training.config import Training
from prefixgym.experiments.training.judge import described_router
from prefixgym.experiments.training.run_folder import RunFolder
from prefixgym.experiments.whole_files import replaced

LEARNED = "learned"
"""What the trained router is called in the table."""

_ON_CARD = ("attainment", "ttft_p99", "tpot_p99", "worst_sessions", "hit_rate")


@dataclass(frozen=True)
class TrainingReport:
    """A row for each router on test seeds, with intervals, and the card of the weights."""

    summary: pl.DataFrame
    card: Card

    def table(self) -> Table:
        """For people."""
        return scenario_table(self.summary)

    def json(self) -> dict[str, Any]:
        """For programs."""
        return {"card": dataclasses.asdict(self.card), "cells": self.summary.to_dicts()}


def report(training: Training, folder: RunFolder) -> TrainingReport:
    """Play the test seeds, write `report.md` and `report.json`, and complete the weights' card.

    Where the folder has a report already, that one is read.
    """
    scenario = training.load_scenario()
    rate = training.rate_of(scenario)
    written = folder.path / "report.json"
    scorer, card = load_weights(folder.best)
    if written.exists():
        return TrainingReport(pl.DataFrame(json.loads(written.read_text("utf-8"))["cells"]), card)
    seeds = scenario.seeds.of("test")[: training.test_episodes]
    routers = {LEARNED: make_router(f"learned:{folder.best}")}
    routers |= {text: described_router(text) for text in training.handcrafted}
    summary = summarise(
        pl.concat(
            evaluate_router(router, scenario, rate, seeds).with_columns(router=pl.lit(text))
            for text, router in routers.items()
        )
    )
    means = {row["router"]: {m: row[m] for m in _ON_CARD} for row in summary.to_dicts()}
    card = dataclasses.replace(card, table=means)
    save_weights(folder.best, scorer, card)
    found = TrainingReport(summary, card)
    title = f"# {folder.path.name}, {len(seeds)} test seeds\n\n"
    (folder.path / "report.md").write_text(title + found.table().markdown(), encoding="utf-8")
    with replaced(written) as partial:
        partial.write_text(json.dumps(found.json()), encoding="utf-8")
    return found
