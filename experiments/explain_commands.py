"""`prefixgym explain ROUTER…`: what routers do, in a figure, a table and a sentence each."""

from pathlib import Path
from typing import Annotated

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables
from prefixgym.experiments.settings import ScenarioSettings, scenario_settings


def explain(
    router: Annotated[
        list[str],
        typer.Argument(
            help="NAME or NAME:KEY=VALUE,…, learned or handcrafted, as learned/NAME, learned:PATH "
            "or linear_score:weights=PATH."
        ),
    ],
    scenario: Annotated[str, typer.Option(help="A name or a .toml file.")],
    rate: Annotated[
        float | None, typer.Option(help="Requests/s, by default the middle of the ladder.")
    ] = None,
    settings: ScenarioSettings = None,
    seeds: Annotated[int, typer.Option(min=1, help="Validation episodes.")] = 4,
    out: Annotated[
        Path | None, typer.Option(help="The figure, by default runs/explain-SCENARIO.png.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What routers do: when they leave cached prefixes, how many copies they keep, how they spread.

    All play the same validation episodes. What instances hold, and how busy they are, is as the
    routers were told.
    """
    import dataclasses

    import numpy as np

    from prefixgym.baselines.router import make_router
    from prefixgym.envs.scenarios.registry import load_scenario
    from prefixgym.experiments.described import described
    from prefixgym.experiments.evaluate import played
    from prefixgym.experiments.explain.figure import plot
    from prefixgym.experiments.explain.findings import HOW_TO_READ, findings, findings_table
    from prefixgym.experiments.explain.watcher import Watcher
    from prefixgym.experiments.progress import progress_of
    from prefixgym.experiments.scenario_tables import middle_rate

    chosen = load_scenario(scenario, scenario_settings(settings))
    load = middle_rate(chosen) if rate is None else rate
    if not load > 0:
        raise ValueError(f"--rate: found {rate}, must be above 0")
    arms = [described(text) for text in router]
    episodes = chosen.seeds.of("validation")[:seeds]
    found = []
    with progress_of([1] * len(arms), len(arms), "routers") as on_end:
        for arm in arms:
            watcher = Watcher()
            acting = make_router(arm.router, arm.parameters)
            _, metrics = played(acting, chosen, load, episodes, watcher)
            means = {
                field.name: float(np.mean([getattr(one, field.name) for one in metrics]))
                for field in dataclasses.fields(metrics[0])
            }
            found.append(findings(arm, means, watcher.decisions()))
            on_end(1)
    title = f"{chosen.name} at {load:g} requests/s"
    path = out or RUNS / f"explain-{chosen.name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    plot(title, found, path)
    if as_json:
        print_json(
            {
                "scenario": chosen.name,
                "rate": load,
                "seeds": list(episodes),
                "routers": [one.json() for one in found],
                "file": str(path),
            }
        )
        return
    print_tables([findings_table(title, found)])
    typer.echo(HOW_TO_READ + "\n\n" + "\n\n".join(one.sentence() for one in found))
    typer.echo(f"\nwritten: {path}")
