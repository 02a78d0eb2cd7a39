"""What surrounds every learner: its judge, its folder, what is kept and what is shown."""

import json
from collections.abc import Callable
from pathlib import Path

from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.weights import Scorer, card_of
from prefixgym.experiments.provenance import command, commit
from prefixgym.experiments.training import ppo, sb3
from prefixgym.experiments.training.config import PPO, OffTheShelf, Training
from prefixgym.experiments.training.judge import Judge, Verdict
from prefixgym.experiments.training.report import TrainingReport, report
from prefixgym.experiments.training.run_folder import RunFolder
from prefixgym.experiments.training.tensorboard import Events
from prefixgym.experiments.whole_files import replaced


def judge_of(training: Training, folder: RunFolder) -> Judge:
    """A judge on validation seeds, who has seen the handcrafted routers."""
    scenario = training.load_scenario()
    seeds = scenario.seeds.of("validation")[: training.validation_episodes]
    judge = Judge(scenario, training.rate_of(scenario), seeds, training.tail_limit)
    path = folder.path / "handcrafted.json"
    if path.exists():
        known = json.loads(path.read_text("utf-8"))
        judge.handcrafted = {name: Verdict(metrics) for name, metrics in known.items()}
        return judge
    for text in training.handcrafted:
        judge.add_handcrafted(text)
    found = {name: dict(verdict.metrics) for name, verdict in judge.handcrafted.items()}
    with replaced(path) as partial:
        partial.write_text(json.dumps(found), encoding="utf-8")
    return judge


def keeper(training: Training, folder: RunFolder) -> Callable[[Scorer, float], None]:
    """What writes weights, and what is known of them by then, to the folder."""

    def keep(scorer: Scorer, seconds: float) -> None:
        card = card_of(
            scorer,
            command=command(),
            commit=commit(),
            seed=training.seed,
            training_seconds=round(seconds, 1),
            scenario=f"{training.scenario} at {judged_rate:g} requests/s",
        )
        folder.save_best(scorer, card)

    judged_rate = training.rate_of(training.load_scenario())
    return keep


def finished(training: Training, folder: RunFolder) -> TrainingReport | None:
    """The report of a training that has come to its end, else None."""
    return report(training, folder) if (folder.path / "report.json").exists() else None


def run_ppo(training: PPO, path: Path, on_update: Callable[[int], None]) -> TrainingReport:
    """Train by PPO, or go on with it, and report.

    Args:
        training: what to do.
        path: its folder.
        on_update: told after every update how many decisions it took.
    """
    folder = RunFolder(path, training, "ppo")
    judge = judge_of(training, folder)
    decisions = training.clusters * training.rollout
    made = ppo.updates_made(folder)
    with Events(path, judge, made + 1 if made else 0, "ppo", training.model_dump()) as events:

        def note(
            update: int, notes: dict[str, float], router: LearnedRouter, verdict: Verdict | None
        ) -> None:
            events.note(update, notes)
            if verdict is not None:
                events.behaviour(update, verdict, router)
            if update > 0:
                on_update(decisions)

        ppo.train(training, folder, judge, note, keeper(training, folder))
        found = report(training, folder)
        events.result(found.card.table["learned"])
    return found


def run_off_the_shelf(
    training: OffTheShelf, algorithm: str, path: Path, on_steps: Callable[[int], None]
) -> TrainingReport:
    """Train with one of `sb3.SHELVES` from the start, and report; see `run_ppo`."""
    folder = RunFolder(path, training, algorithm)
    judge = judge_of(training, folder)
    folder.cut_curve(0)
    with Events(path, judge, 0, algorithm, training.model_dump()) as events:

        def note(
            decisions: int, notes: dict[str, float], router: LearnedRouter, verdict: Verdict
        ) -> None:
            events.note(decisions, notes)
            events.behaviour(decisions, verdict, router)
            folder.note({"decisions": decisions, **notes})

        keep = keeper(training, folder)
        model = sb3.train(training, algorithm, str(path), judge, on_steps, note, keep)
        model.save(path / "model.zip")
        found = report(training, folder)
        events.result(found.card.table["learned"])
    return found
