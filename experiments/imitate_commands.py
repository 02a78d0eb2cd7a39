"""`prefixgym imitate TEACHER`: a network that decides as another router does."""

from pathlib import Path
from typing import Annotated

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables
from prefixgym.experiments.settings import Settings, split_settings


def imitate(
    teacher: Annotated[str, typer.Argument(help="See `prefixgym routers`; lookahead, say.")],
    scenario: Annotated[str, typer.Option(help="A name or a .toml file.")],
    settings: Settings = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests/s, by default the middle of the ladder.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=0, help="Of DAgger; 0 only clones.")] = 2,
    episodes: Annotated[int, typer.Option(min=1, help="Labelled in each round.")] = 4,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Of a training episode, by default the scenario's.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over all labels in a round.")] = 10,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the network.")] = 32,
    seeds: Annotated[int, typer.Option(min=1, help="Validation and test episodes.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of the network.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder, by default runs/imitate-TEACHER-SCENARIO-SEED.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Clone a router, then let it correct the clone in the situations that the clone gets into.

    The same command again goes on from where it was interrupted.
    """
    import json

    import torch

    from prefixgym.agents.learned_router import LearnedRouter
    from prefixgym.agents.linear_score import LinearScore, weight_row, weights_of
    from prefixgym.agents.weights import card_of, save_weights
    from prefixgym.baselines.router import make_router
    from prefixgym.envs.scenarios.registry import load_scenario
    from prefixgym.experiments.evolution.report import WEIGHTS, compare, table_of
    from prefixgym.experiments.imitation.rounds import Imitation, Round, learn
    from prefixgym.experiments.progress import progress_of
    from prefixgym.experiments.provenance import command, commit
    from prefixgym.experiments.ranking import summarise
    from prefixgym.experiments.scenario_tables import middle_rate
    from prefixgym.experiments.table import scenario_table
    from prefixgym.experiments.training.judge import HANDCRAFTED, Judge
    from prefixgym.experiments.training.tensorboard import Events, kept

    torch.set_num_threads(1)  # networks this small are slower on two
    parameters, overrides = split_settings(settings)
    whole = load_scenario(scenario, overrides)
    imitation = Imitation(
        whole if requests is None else whole.with_num_requests(requests),
        middle_rate(whole) if rate is None else rate,
        tuple(weight_row(weights_of(LinearScore())).tolist()),
        rounds,
        episodes,
        hidden,
        epochs,
        seed,
    )
    taught = make_router(teacher, parameters)
    folder = out or RUNS / f"imitate-{teacher}-{whole.name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    asked = {
        "teacher": repr(taught),
        "scenario": json.loads(json.dumps(imitation.scenario.identity())),
        "rate": imitation.rate,
        "episodes": episodes,
        "hidden": hidden,
        "epochs": epochs,
        "seed": seed,
    }
    _check_same(folder / "imitation.json", asked)
    judge = Judge(whole, imitation.rate, whole.seeds.of("validation")[:seeds])
    for name in HANDCRAFTED:
        judge.add_handcrafted(name)
    shown = {key: value for key, value in asked.items() if key != "scenario"}
    shown |= {"scenario": scenario, "settings": sorted(overrides.items()), "seeds": seeds}
    learner = f"{'imitate' if rounds else 'clone'} {teacher}"
    best: Round | None = None
    with (
        Events(folder, judge, 0, learner, shown | {"requests": requests}) as events,
        progress_of([1] * (rounds + 1), rounds + 1, "rounds") as on_end,
    ):

        def on_round(one: Round) -> None:
            nonlocal best
            if best is None or judge.prefers(one.verdict, best.verdict):
                best = one
            events.note(one.number, one.figures() | kept(best.verdict, judge))
            events.behaviour(one.number, one.verdict, LearnedRouter(one.scorer))
            on_end(1)

        found = learn(imitation, taught, judge, folder, on_round)
    assert best is not None
    compared = compare(
        LearnedRouter(best.scorer), whole, imitation.rate, whole.seeds.of("test")[:seeds]
    )
    known = card_of(
        best.scorer,
        command=command(),
        commit=commit(),
        seed=seed,
        training_seconds=round(best.seconds, 1),
        scenario=whole.name,
        table=table_of(compared),
    )
    save_weights(folder / WEIGHTS, best.scorer, known)
    summary = summarise(compared)
    if as_json:
        figures = [{"round": one.number} | one.figures() for one in found]
        print_json({"folder": str(folder), "rounds": figures, "cells": summary.to_dicts()})
        return
    print_tables([scenario_table(summary)])
    for one in found:
        typer.echo(
            f"round {one.number}: {one.labels} labels, agrees with the teacher on "
            f"{100 * one.agreement:.1f} %, validation attainment "
            f"{100 * one.verdict.attainment:.2f} %, p99 TTFT {one.verdict.tail:.3f} s"
        )
    told = "within" if judge.allows(best.verdict) else "ABOVE"
    typer.echo(f"written: {folder / WEIGHTS}, of round {best.number}, {told} {judge.limit:.3f} s")


def _check_same(path: Path, settings: dict[str, object]) -> None:
    """Labels in a folder are of one imitation; ValueError if it is another one's."""
    import json

    if not path.exists():
        path.write_text(json.dumps(settings), encoding="utf-8")
    known = json.loads(path.read_text(encoding="utf-8"))
    for key, value in settings.items():
        if known.get(key) != value:
            raise ValueError(
                f"{path}: its labels are of another {key}; choose another folder with --out"
            )
