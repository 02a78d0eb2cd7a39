"""The command `prefixgym references`: routers of the field beside what is possible."""

from pathlib import Path
from typing import Annotated

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables


def references(
    scenario: Annotated[
        list[str] | None, typer.Option(help="Only this one, a name or .toml file. Repeatable.")
    ] = None,
    router: Annotated[
        list[str] | None, typer.Option(help="To compare with, by default all. Repeatable.")
    ] = None,
    leaderboard: Annotated[
        str | None,
        typer.Option(help="Take the other routers' results from runs/NAME.", metavar="NAME"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Test episodes of each scenario.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    page: Annotated[
        Path | None, typer.Option(help="Also write the table there, docs/references.md say.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare routers with look-ahead and upper bound at the knee, about half an hour.

    The same command again continues a run that was interrupted.
    """
    import polars as pl

    from prefixgym.envs.scenarios.registry import load_scenario
    from prefixgym.experiments import references as study
    from prefixgym.experiments.leaderboard import (
        CALM,
        deployable_routers,
        play_missing,
        read_cells,
    )

    scenarios = [load_scenario(name) for name in scenario or CALM]
    routers = [] if leaderboard else router or deployable_routers()
    cells = study.cells_of(scenarios, seeds, routers)
    others = [study.from_leaderboard(RUNS / leaderboard, cells)] if leaderboard else []
    folder = RUNS / "references" / "cells"
    failures = play_missing(cells, folder, workers)
    bounds = {chosen.name: study.bound_of(chosen, seeds) for chosen in scenarios}
    rows = study.standings(pl.concat([read_cells(cells, folder), *others]), bounds)
    if page is not None:
        page.write_text(study.page(rows, seeds), encoding="utf-8")
    if as_json:
        print_json({"scenarios": rows.to_dicts()})
    else:
        print_tables([study.standings_table(rows)])
        if page is not None:
            typer.echo(f"\nwritten: {page}")
    for failure in failures:
        typer.echo(f"failed: {failure.cell.key}: {failure.message}", err=True)
    raise typer.Exit(1 if failures else 0)
