"""Plays a contest: handcrafted routers on validation seeds, then the best of them on test seeds.

Cells are as in `prefixgym.experiments.leaderboard`: kept one by one, so that a contest that was
interrupted goes on with those that are missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from prefixgym.experiments.contest.capacities import measure_capacity
from prefixgym.experiments.contest.choice import best_few
from prefixgym.experiments.contest.comparison import Row, compare
from prefixgym.experiments.contest.entrants import (
    DUMP,
    Entry,
    Match,
    handcrafted_arms,
    learned_arms,
    lookahead_entry,
)
from prefixgym.experiments.evaluate import Cell, evaluate
from prefixgym.experiments.leaderboard import Failure, cell_path, play_missing
from prefixgym.experiments.paper.study import Arm


@dataclass(frozen=True)
class Contest:
    """What is played.

    Attributes:
        matches: scenarios at their loads.
        handcrafted: routers to choose from, as `described` takes them.
        learned: routers that are compared, likewise.
        validation: seeds to choose by.
        few: handcrafted routers that play the test seeds, at most.
        seeds: test seeds.
        lookahead: of these, how many the look-ahead plays; 0: none.
        capacity: of these, how many the capacity is found on; 0: none.
    """

    matches: tuple[Match, ...]
    handcrafted: tuple[str, ...]
    learned: tuple[str, ...]
    validation: int = 4
    few: int = 3
    seeds: int = 20
    lookahead: int = 0
    capacity: int = 0


@dataclass(frozen=True)
class Result:
    """A match.

    Attributes:
        match: which.
        chosen: labels of the handcrafted routers that were chosen on validation seeds, best first.
        candidates: how many they were chosen from.
        rows: all routers beside the best of `chosen`, which is the reference.
        capacities: requests/s by label, where they were wanted.
        episodes: a row an episode, `router` being the label.
    """

    match: Match
    chosen: tuple[str, ...]
    candidates: int
    rows: tuple[Row, ...]
    capacities: dict[str, float]
    episodes: pl.DataFrame


@dataclass
class Player:
    """Plays cells into a folder.

    Attributes:
        folder: of the run.
        workers: processes.
        fresh: finished cells are played again.
        failures: cells that raised.
    """

    folder: Path
    workers: int
    fresh: bool = False
    failures: list[Failure] = field(default_factory=list)

    def play(
        self,
        cells: Sequence[Cell],
        folder: str = "cells",
        measure: Callable[[Cell], pl.DataFrame] = evaluate,
    ) -> None:
        """Play what is missing."""
        wanted = list({cell.key: cell for cell in cells}.values())
        self.failures += play_missing(
            wanted, self.folder / folder, self.workers, fresh=self.fresh, evaluate=measure
        )

    def found(self, cell: Cell, folder: str = "cells") -> pl.DataFrame | None:
        """What was measured, None if that failed."""
        path = cell_path(self.folder / folder, cell)
        return pl.read_parquet(path) if path.exists() else None


def play(contest: Contest, player: Player) -> tuple[list[Result], list[str]]:
    """Play a contest.

    Returns:
        The matches, and what was left out for want of weights.

    Raises:
        ValueError: unknown routers, or a match in which no handcrafted router could be played.
    """
    left_out: list[str] = []
    learned = []
    for match in contest.matches:  # before anything is played: mistakes are to come at once
        arms, missing = learned_arms(contest.learned, match.scenario)
        learned.append(arms)
        left_out += missing
    fields = [_candidates(contest, match) for match in contest.matches]
    player.play([entry.cell for entries in fields for entry in entries])
    entries = []
    for match, candidates, arms in zip(contest.matches, fields, learned, strict=True):
        chosen = _chosen(match, candidates, player, contest.few)
        own = [
            *(Entry(match, arm, "handcrafted", match.cell(arm, "test", contest.seeds))
              for arm in chosen),
            *(Entry(match, arm, "learned", match.cell(arm, "test", contest.seeds))
              for arm in arms),
            Entry(match, DUMP, "dump", match.cell(DUMP, "test", contest.seeds)),
        ]  # fmt: skip
        if contest.lookahead:
            own.append(lookahead_entry(match, min(contest.lookahead, contest.seeds)))
        entries.append(own)
    player.play([entry.cell for own in entries for entry in own])
    loads = [_capacity_cells(contest, own) for own in entries]
    if contest.capacity:
        player.play([c for own in loads for c in own.values()], "capacity", measure_capacity)
    return [
        _result(own, len(candidates), cells, player)
        for own, candidates, cells in zip(entries, fields, loads, strict=True)
    ], left_out


def _candidates(contest: Contest, match: Match) -> list[Entry]:
    return [
        Entry(match, arm, "handcrafted", match.cell(arm, "validation", contest.validation))
        for arm in handcrafted_arms(match.scenario, contest.handcrafted)
    ]


def _chosen(match: Match, candidates: Sequence[Entry], player: Player, few: int) -> list[Arm]:
    arms = {entry.arm.label: entry.arm for entry in candidates}
    played = {
        entry.arm.label: found
        for entry in candidates
        if (found := player.found(entry.cell)) is not None
    }
    if not played:
        reasons = "; ".join(sorted({failure.message for failure in player.failures}))
        raise ValueError(f"{match.title}: no handcrafted router could be played ({reasons})")
    return [arms[label] for label in best_few(played, few)]


def _capacity_cells(contest: Contest, entries: Sequence[Entry]) -> dict[str, Cell]:
    """Of the handcrafted and the learned routers, by label."""
    return {
        entry.arm.label: entry.match.cell(entry.arm, "test", contest.capacity)
        for entry in entries
        if contest.capacity and entry.kind in ("handcrafted", "learned")
    }


def _result(
    entries: Sequence[Entry], candidates: int, cells: dict[str, Cell], player: Player
) -> Result:
    match = entries[0].match
    episodes = {
        entry.arm.label: found
        for entry in entries
        if (found := player.found(entry.cell)) is not None
    }
    kinds = {entry.arm.label: entry.kind for entry in entries}
    chosen = [entry.arm.label for entry in entries if entry.kind == "handcrafted"]
    if chosen[0] not in episodes:
        raise ValueError(f"{match.title}: {chosen[0]}, the best on validation, could not be played")
    loads = {label: player.found(cell, "capacity") for label, cell in cells.items()}
    return Result(
        match,
        tuple(chosen),
        candidates,
        tuple(compare(episodes, kinds, chosen[0])),
        {label: float(row["capacity"][0]) for label, row in loads.items() if row is not None},
        pl.concat(
            [table.with_columns(pl.lit(label).alias("router")) for label, table in episodes.items()]
        ),
    )
