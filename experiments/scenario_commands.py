"""The commands `prefixgym scenarios …`: list, explain, place the ladder, write the page."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from prefixgym.experiments.console import Json, NameIsACommand, print_json, print_tables
from prefixgym.experiments.settings import ScenarioSettings, scenario_settings

app = typer.Typer(
    cls=NameIsACommand,
    help="List the built-in scenarios, or explain one: prefixgym scenarios NAME.",
    invoke_without_command=True,
    subcommand_metavar="[NAME | COMMAND] [ARGS]...",
)

Name = Annotated[str, typer.Argument(help="A name or a .toml file.")]


@app.callback()
def list_scenarios(ctx: typer.Context, as_json: Json = False) -> None:
    """List the built-in scenarios, or explain one: prefixgym scenarios NAME."""
    from prefixgym.envs.scenarios.registry import load_scenario, scenario_names
    from prefixgym.envs.workload.reuse import reuse
    from prefixgym.experiments.scenario_tables import sample_tape, scenarios_table

    if ctx.invoked_subcommand is not None:
        return
    found = [load_scenario(name) for name in scenario_names()]
    if as_json:
        print_json(
            {
                scenario.name: scenario.model_dump(mode="json")
                | {"reuse": dataclasses.asdict(reuse(sample_tape(scenario)))}
                for scenario in found
            }
        )
        return
    print_tables([scenarios_table(found)])
    typer.echo(
        "\nhit %: of the prompt tokens, in a cache without limits; knee: highest rate at which a "
        "router attains 90 %\nAll about one: prefixgym scenarios NAME"
    )


@app.command()
def show(scenario: Name, settings: ScenarioSettings = None, as_json: Json = False) -> None:
    """Explain a scenario: each key, what a sample of its requests is like, what to try."""
    from prefixgym.envs.scenarios.registry import load_scenario
    from prefixgym.envs.workload.statistics.summary import Study
    from prefixgym.experiments.scenario_tables import keys_table, middle_rate, sample_tape
    from prefixgym.experiments.trace_tables import inspection

    chosen = load_scenario(scenario, scenario_settings(settings))
    found = Study.of(sample_tape(chosen)).statistics()
    if as_json:
        print_json(chosen.model_dump(mode="json") | {"statistics": dataclasses.asdict(found)})
        return
    typer.echo(f"{chosen.name}: {chosen.description}\n\n{chosen.source.strip()}")
    print_tables([keys_table(chosen)])
    typer.echo(
        f"\nAn episode: the first to train with, at {middle_rate(chosen):g} requests/s, its "
        f"prompts in a cache of any size"
    )
    print_tables(inspection(found))
    groups = chosen.cluster.instances
    count = "cluster.instances" if len(groups) == 1 else "cluster.instances.0.count"
    typer.echo(
        f"\nTry it: prefixgym evaluate min_ttft --scenario {scenario} "
        f"--set {count}={2 * groups[0].count}"
    )


@app.command()
def knee(
    scenario: Name,
    write: Annotated[
        bool, typer.Option("--write", help="Write knee and ladder into the scenario's file.")
    ] = False,
    router: Annotated[
        str | None, typer.Option(help="Whose knee, see `prefixgym routers`; by default min_ttft's.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Validation seeds to average over, by default 3.")
    ] = None,
    settings: ScenarioSettings = None,
    as_json: Json = False,
) -> None:
    """Find the highest load with 90 % attainment, about a minute."""
    from prefixgym.baselines.router import router_class
    from prefixgym.envs.scenarios.knee import ladder
    from prefixgym.envs.scenarios.registry import load_scenario, scenario_path
    from prefixgym.experiments.knee import KNEE_EPISODES, KNEE_ROUTER, find_knee, with_knee

    overrides = scenario_settings(settings)
    if write and overrides:
        raise ValueError("--write: found with --set, a file's knee is that of the file as it is")
    router_class(router or KNEE_ROUTER)
    chosen = load_scenario(scenario, overrides)
    found = find_knee(
        chosen,
        router or KNEE_ROUTER,
        episodes or KNEE_EPISODES,
        lambda cell, attainment: typer.echo(
            f"{cell.router} at {cell.rate:.4g} requests/s: {100 * attainment:.1f} %", err=True
        ),
    )
    if write:
        path = scenario_path(scenario)
        path.write_text(with_knee(path.read_text(encoding="utf-8"), chosen.name, found), "utf-8")
    if as_json:
        print_json(found.model_dump() | {"rates": ladder(found.rate)})
        return
    rates = ", ".join(f"{rate:g}" for rate in ladder(found.rate))
    typer.echo(f"knee: {found.rate:g} requests/s; ladder: {rates}")
    if write:
        typer.echo(f"written: {path}")


@app.command()
def page(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("docs/scenarios.md"),
) -> None:
    """Write the page on the built-in scenarios."""
    from prefixgym.envs.scenarios.registry import load_scenario, scenario_names
    from prefixgym.experiments.scenario_page import scenario_page

    text = scenario_page([load_scenario(name) for name in scenario_names()])
    path.write_text(text, encoding="utf-8")
    typer.echo(f"written: {path}")
