"""`prefixgym paper STUDY`: a figure for a question, and what was published about it."""

from pathlib import Path
from typing import Annotated

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables
from prefixgym.experiments.workers import cores


def paper(
    study: Annotated[
        str, typer.Argument(help="staleness, loss, replicas, faults, transfer or information.")
    ],
    router: Annotated[
        list[str] | None,
        typer.Option(help="Compare these, by default ten of each kind. Repeatable."),
    ] = None,
    learned: Annotated[
        list[str] | None,
        typer.Option(
            help="Compare this one besides: learned/NAME, learned:PATH or NAME:KEY=VALUE,…; with "
            "{setting} and {scenario} in it, one for each setting. Repeatable.",
            metavar="ROUTER",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Of transfer: the Mooncake conversation trace.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Test episodes of each cell.")] = 3,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="Of an episode; with few, it may end before a fault happens."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; by default runs/paper-STUDY.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one a core.")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Evaluate finished cells again.")] = False,
    as_json: Json = False,
) -> None:
    """Vary one thing and compare routers: a figure, a table, and published numbers beside ours.

    The same command again continues a run that was interrupted.
    """
    from prefixgym.experiments.leaderboard import play_missing
    from prefixgym.experiments.paper.figure import plot_study
    from prefixgym.experiments.paper.learned import with_learned, with_trace, worth_table
    from prefixgym.experiments.paper.measure import measure
    from prefixgym.experiments.paper.registry import study_called
    from prefixgym.experiments.paper.results import (
        claims_of,
        claims_table,
        summarise,
        sweep_table,
    )
    from prefixgym.experiments.paper.study import trials_of

    chosen = study_called(study)
    if router:
        chosen = chosen.with_routers(router)
    chosen, untrained = with_learned(chosen, learned or chosen.learned)
    chosen, absent = with_trace(chosen, trace)
    left_out = absent + untrained
    folder = out or RUNS / f"paper-{study}"
    trials = trials_of(chosen, seeds, requests)
    cells = list({trial.cell.key: trial.cell for trial in trials}.values())
    failures = play_missing(
        cells, folder / "cells", workers or cores(), fresh=fresh, evaluate=measure
    )
    summary = summarise(trials, folder / "cells")
    claims = claims_of(chosen, summary)
    worth = [worth_table(sweep, trials, folder / "cells") for sweep in chosen.sweeps]
    tables = [
        *(sweep_table(sweep, summary) for sweep in chosen.sweeps),
        *(table for table in worth if table is not None),
        *([claims_table(claims)] if claims else []),
    ]
    files = {kind: folder / f"{study}.{kind}" for kind in ("csv", "png", "md")}
    summary.write_csv(files["csv"])
    plot_study(chosen, summary, files["png"])
    files["md"].write_text(
        "\n".join([f"# {chosen.question}\n", *(table.markdown() for table in tables)]),
        encoding="utf-8",
    )
    if as_json:
        print_json(
            {
                "study": study,
                "question": chosen.question,
                "rows": summary.to_dicts(),
                "published": claims,
                "left_out": left_out,
                "files": {key: str(path) for key, path in files.items()},
                "failures": [{"cell": f.cell.key, "message": f.message} for f in failures],
            }
        )
    else:
        print_tables(tables)
        typer.echo(f"\nwritten: {', '.join(map(str, files.values()))}")
        for line in left_out:
            typer.echo(f"left out: {line}", err=True)
    for failure in failures:
        typer.echo(f"failed: {failure.cell.key}: {failure.message}", err=True)
    raise typer.Exit(1 if failures else 0)
