"""`prefixgym contest SCENARIO[@RATE]…`: the best handcrafted routers against learned ones."""

from typing import Annotated

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables
from prefixgym.experiments.settings import ScenarioSettings, scenario_settings
from prefixgym.experiments.workers import cores


def contest(
    scenario: Annotated[
        list[str],
        typer.Argument(
            help="Names or .toml files, each with @RATE in requests/s or at the middle of its "
            "ladder.",
            metavar="SCENARIO[@RATE]...",
        ),
    ],
    learned: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME or NAME:KEY=VALUE,…, as learned/NAME, learned:PATH or "
            "linear_score:weights=PATH; {scenario} stands for the scenario's name. Repeatable.",
            metavar="ROUTER",
        ),
    ] = None,
    router: Annotated[
        list[str] | None,
        typer.Option(help="Choose among these handcrafted ones, by default all. Repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Test episodes.")] = 20,
    validation: Annotated[int, typer.Option(min=1, help="Validation episodes.")] = 4,
    few: Annotated[int, typer.Option(min=1, help="Handcrafted routers to play test seeds.")] = 3,
    lookahead: Annotated[
        int, typer.Option(min=0, help="Test episodes of the look-ahead, which is dear; 0: none.")
    ] = 0,
    capacity: Annotated[
        int, typer.Option(min=0, help="Test episodes to find 99 % capacities on; 0: none.")
    ] = 0,
    settings: ScenarioSettings = None,
    name: Annotated[str, typer.Option(help="Write to runs/NAME.")] = "contest",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one a core.")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Play finished cells again.")] = False,
    as_json: Json = False,
) -> None:
    """Learned routers against the best handcrafted ones, chosen on validation seeds.

    The same command again continues a contest that was interrupted.
    """
    from prefixgym.experiments.contest.entrants import handcrafted_routers, match_of
    from prefixgym.experiments.contest.report import json_of, match_table, overall_table, write
    from prefixgym.experiments.contest.run import Contest, Player, play

    overrides = scenario_settings(settings)
    chosen = Contest(
        tuple(match_of(text, overrides) for text in scenario),
        tuple(router or handcrafted_routers()),
        tuple(learned or ()),
        validation,
        few,
        seeds,
        lookahead,
        capacity,
    )
    player = Player(RUNS / name, workers or cores(), fresh)
    results, left_out = play(chosen, player)
    failures = player.failures
    files = write(results, chosen, player.folder, left_out, failures)
    if as_json:
        paths = {key: str(path) for key, path in files.items()}
        print_json(json_of(results, left_out, failures) | {"files": paths})
    else:
        overall = overall_table(results)
        print_tables([*map(match_table, results), *([overall] if overall.rows else [])])
        typer.echo(f"\nwritten: {', '.join(map(str, files.values()))}")
        for line in left_out:
            typer.echo(f"left out: {line}", err=True)
    for failure in failures:
        typer.echo(f"failed: {failure.cell.key}: {failure.message}", err=True)
    raise typer.Exit(1 if failures else 0)
