"""`prefixgym evolve KIND`: a linear score or a small network bred by CMA-ES."""

import math
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables
from prefixgym.experiments.settings import ScenarioSettings, scenario_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prefixgym.experiments.evolution.checkpoint import Progress
    from prefixgym.experiments.evolution.search import Budget
    from prefixgym.experiments.training.judge import Verdict

KINDS = ("linear", "network")
_SIGMA = {"linear": 0.2, "network": 0.1}


def evolve(
    kind: Annotated[str, typer.Argument(help="linear or network.")],
    scenario: Annotated[str, typer.Option(help="A name or a .toml file.")],
    settings: ScenarioSettings = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests/s, by default the middle of the ladder.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Of work, those before an interruption included.")
    ] = None,
    generations: Annotated[
        int | None, typer.Option(min=1, help="In all; default 100, unless --minutes is given.")
    ] = None,
    members: Annotated[
        int, typer.Option(min=0, help="Of a generation; 0 is CMA-ES's own default.")
    ] = 0,
    episodes: Annotated[int, typer.Option(min=1, help="Of each member in a generation.")] = 4,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Of a training episode, by default the scenario's.")
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="First standard deviation, by default 0.2 or 0.1.")
    ] = None,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the network.")] = 8,
    prior: Annotated[
        Path | None,
        typer.Option(help="Weights of a linear score to start from, by default its defaults."),
    ] = None,
    judge_every: Annotated[
        int, typer.Option(min=1, help="Generations between two looks at validation episodes.")
    ] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Validation and test episodes.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of the search.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder, by default runs/evolve-KIND-SCENARIO-SEED.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Breed a router by CMA-ES; the best on validation seeds whose tail is no worse is kept.

    The same command again goes on from where it was interrupted.
    """
    import torch

    from prefixgym.agents.linear_score import LinearScore, weight_row, weights_of
    from prefixgym.agents.population import LinearPopulation, NetworkPopulation, Population
    from prefixgym.agents.scorer import InstanceScorer
    from prefixgym.envs.scenarios.registry import load_scenario
    from prefixgym.experiments.evolution.report import WEIGHTS, compare, save, table_of
    from prefixgym.experiments.evolution.search import Budget, Search, begin
    from prefixgym.experiments.evolution.search import evolve as search_on
    from prefixgym.experiments.ranking import summarise
    from prefixgym.experiments.scenario_tables import middle_rate
    from prefixgym.experiments.table import scenario_table
    from prefixgym.experiments.training.tensorboard import Events

    if kind not in KINDS:
        raise ValueError(f"kind: found {kind!r}, allowed: {', '.join(KINDS)}")
    if minutes is not None and minutes <= 0:
        raise ValueError(f"--minutes: found {minutes}, must be above 0")
    width = _SIGMA[kind] if sigma is None else sigma
    if not width > 0:
        raise ValueError(f"--sigma: found {sigma}, must be above 0")
    torch.set_num_threads(1)  # networks this small are slower on two
    whole = load_scenario(scenario, scenario_settings(settings))
    search = Search(
        whole if requests is None else whole.with_num_requests(requests),
        whole,
        middle_rate(whole) if rate is None else rate,
        seed,
        members,
        episodes,
        width,
        judge_every,
        seeds,
    )
    budget = Budget(
        generations or (100 if minutes is None else math.inf),
        math.inf if minutes is None else 60 * minutes,
    )
    start = weights_of(LinearScore(weights="" if prior is None else str(prior)))
    torch.manual_seed(seed)
    population: Population = (
        LinearPopulation(start)
        if kind == "linear"
        else NetworkPopulation(InstanceScorer(hidden, prior=weight_row(start).tolist()))
    )
    folder = out or RUNS / f"evolve-{kind}-{whole.name}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    progress = begin(search, population, folder)
    judge = search.judge()
    judge.handcrafted = progress.handcrafted
    asked = {
        **{"kind": kind, "scenario": scenario, "settings": sorted(settings or [])},
        **{"rate": search.rate, "members": members, "episodes": episodes, "requests": requests},
        **{"sigma": width, "hidden": hidden, "prior": str(prior or ""), "seed": seed},
        **{"judge_every": judge_every, "seeds": seeds},
    }
    done = progress.generation
    events = Events(folder, judge, done + 1 if done else 0, f"evolve {kind}", asked)

    def show(now: "Progress", verdict: "Verdict | None") -> None:
        events.note(now.generation, now.history[-1] | {"charts/seconds": now.seconds})
        if verdict is not None:
            centre = population.router(now.optimizer.mean)
            events.behaviour(now.generation, verdict, centre)

    if done == 0:
        show(progress, progress.best.verdict)
    with events, _bar(budget, progress) as advance:

        def on_generation(now: "Progress", verdict: "Verdict | None") -> None:
            show(now, verdict)
            advance(now)

        progress = search_on(search, population, budget, folder, progress, on_generation)
    best, test = progress.best, whole.seeds.of("test")[:seeds]
    validated, within = best.verdict, judge.allows(best.verdict)
    compared = compare(population.router(best.member), whole, search.rate, test)
    save(
        folder / WEIGHTS,
        population,
        best.member,
        seed=seed,
        scenario=whole.name,
        training_seconds=round(progress.seconds, 1),
        table=table_of(compared),
    )
    summary = summarise(compared)
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "generations": progress.generation,
                "seconds": progress.seconds,
                "validation": {
                    "attainment": validated.attainment,
                    "ttft_p99": validated.tail,
                    "ttft_p99_limit": judge.limit,
                    "found_in_generation": best.generation,
                    "handcrafted": {k: dict(v.metrics) for k, v in judge.handcrafted.items()},
                },
                "cells": summary.to_dicts(),
            }
        )
        return
    print_tables([scenario_table(summary)])
    typer.echo(
        f"\nBest of {progress.generation} generations, found in {best.generation}: "
        f"validation attainment {100 * validated.attainment:.2f} %, "
        f"p99 TTFT {validated.tail:.3f} s ({'within' if within else 'ABOVE'} {judge.limit:.3f} s)"
    )
    typer.echo(f"written: {folder / WEIGHTS}; see it with tensorboard --logdir {folder}")


@contextmanager
def _bar(budget: "Budget", progress: "Progress") -> "Iterator[Callable[[Progress], None]]":
    """A progress bar in generations, or in seconds if only these are limited."""
    from prefixgym.experiments.progress import progress_of

    timed = math.isinf(budget.generations)
    total = math.ceil(budget.seconds) if timed else int(budget.generations)

    def done(now: "Progress") -> int:
        return min(total, int(now.seconds) if timed else now.generation)

    shown = done(progress)
    unit = "seconds" if timed else "generations"
    with progress_of([1] * (total - shown), total, unit) as on_end:

        def advance(now: "Progress") -> None:
            nonlocal shown
            for _ in range(done(now) - shown):
                on_end(1)
            shown = done(now)

        yield advance
