"""`prefixgym paper RESULT`: a figure for a question, and what was published about it."""

from pathlib import Path
from typing import Annotated

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables
from prefixgym.experiments.workers import cores


def paper(
    result: Annotated[
        str,
        typer.Argument(
            help="loadaware, cachegen, prfaas, mooncake-cache; staleness, loss, replicas, faults, "
            "transfer, information; or all.",
        ),
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
        Path | None,
        typer.Option(help="Of transfer and mooncake-cache: the Mooncake conversation trace."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Test episodes of each cell.")] = 3,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="Of an episode; with few, it may end before a fault happens."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write to, of all: of the folders; by default runs/paper-RESULT."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one a core.")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Evaluate finished cells again.")] = False,
    as_json: Json = False,
) -> None:
    """Run a published result: a figure, a table, and published numbers beside ours.

    The exit code is 1 where something failed or a stated tolerance is broken. The same command
    again continues a run that was interrupted; `all` goes on after a failure.
    """
    from prefixgym.experiments.paper.published import Effort
    from prefixgym.experiments.paper.registry import all_results, result_called, study_called
    from prefixgym.experiments.paper.running import results_table, run_result, try_result
    from prefixgym.experiments.paper.simulated import result_of

    effort = Effort(seeds, requests, workers or cores(), fresh, trace)
    rans = []
    if result == "all":
        if router or learned:
            raise ValueError("--router, --learned: found with all, allowed: with one study")
        for each in all_results():
            if not as_json:
                typer.echo(f"\n{each.name}: {each.question}")
            ran = try_result(each, (out or RUNS) / f"paper-{each.name}", effort)
            rans.append(ran)
            if not as_json:
                print_tables(ran.tables[-1:] if ran.outcome and ran.outcome.figures else [])
        if as_json:
            print_json({"results": [ran.as_dict() for ran in rans]})
        else:
            print_tables([results_table(rans)])
    else:
        chosen = result_called(result)
        if router or learned:
            study = study_called(result)
            study = study.with_routers(router) if router else study
            chosen = result_of(study, tuple(learned or ()))
        ran = run_result(chosen, out or RUNS / f"paper-{result}", effort)
        rans.append(ran)
        if as_json:
            print_json(ran.as_dict())
        else:
            print_tables(ran.tables)
            typer.echo(f"\nwritten: {', '.join(map(str, (ran.files or {}).values()))}")
    for ran in rans:
        lines = [f"left out: {line}" for line in (ran.outcome.left_out if ran.outcome else ())]
        for line in (*(() if as_json else lines), *ran.complaints):
            typer.echo(line, err=True)
    raise typer.Exit(0 if all(ran.is_good for ran in rans) else 1)
