"""A study as a result: its cells are played, those that are missing, and summed up."""

from functools import partial
from pathlib import Path

from prefixgym.experiments.leaderboard import play_missing
from prefixgym.experiments.paper.figure import plot_study
from prefixgym.experiments.paper.learned import with_learned, with_trace, worth_table
from prefixgym.experiments.paper.measure import measure
from prefixgym.experiments.paper.published import Effort, Outcome, Result
from prefixgym.experiments.paper.results import figures_of, summarise, sweep_table
from prefixgym.experiments.paper.study import Study, trials_of


def result_of(study: Study, learned: tuple[str, ...] = ()) -> Result:
    """The study as a result.

    Args:
        study: which.
        learned: learned routers besides, in place of the study's own, see `with_learned`.
    """
    return Result(study.name, study.question, partial(_run, study, learned or study.learned))


def _run(study: Study, learned: tuple[str, ...], folder: Path, effort: Effort) -> Outcome:
    chosen, untrained = with_learned(study, learned)
    chosen, absent = with_trace(chosen, effort.trace)
    trials = trials_of(chosen, effort.seeds, effort.requests)
    cells = list({trial.cell.key: trial.cell for trial in trials}.values())
    kept = folder / "cells"
    failures = play_missing(cells, kept, effort.workers, fresh=effort.fresh, evaluate=measure)
    summary = summarise(trials, kept)
    worth = [worth_table(sweep, trials, kept) for sweep in chosen.sweeps]
    return Outcome(
        tables=[
            *(sweep_table(sweep, summary) for sweep in chosen.sweeps),
            *(table for table in worth if table is not None),
        ],
        figures=figures_of(chosen, summary, effort),
        draw=lambda path: plot_study(chosen, summary, path),
        rows=summary.to_dicts(),
        left_out=absent + untrained,
        failures=[f"{failure.cell.key}: {failure.message}" for failure in failures],
    )
