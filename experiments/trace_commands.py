"""The commands `prefixgym trace …`: recorded traces, their formats and figures."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables

app = typer.Typer(help="Recorded traces: formats, conversion, figures.", no_args_is_help=True)


@app.command()
def formats(as_json: Json = False) -> None:
    """List the formats that can be read."""
    from prefixgym.envs.workload.readers.registry import TRACE_FORMATS
    from prefixgym.experiments.table import Table

    found = {
        entry.name: {
            "description": entry.description,
            "blocks": entry.block_convention,
            "options": entry.options,
        }
        for entry in TRACE_FORMATS.values()
    }
    if as_json:
        print_json(found)
        return
    rows = [
        (
            entry.name,
            entry.block_convention,
            " ".join(f"{key}={value}" for key, value in entry.options.items()),
            entry.description,
        )
        for entry in TRACE_FORMATS.values()
    ]
    headings = ("format", "tokens, last block", "options", "description")
    print_tables([Table("Trace formats", headings, rows, prose=True)])


Trace = Annotated[Path, typer.Argument(help="A trace file, see `prefixgym trace formats`.")]
Format = Annotated[
    str | None, typer.Option("--format", help="By default told by the file's first row.")
]
ReaderOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="Of the format's reader. Repeatable."),
]
TraceBlockSize = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens in a block of the file, where it leaves that open."),
]


def reader_options(given: list[str] | None) -> dict[str, Any]:
    """`--option` arguments by key, with values as TOML spells them."""
    from prefixgym.envs.scenarios.registry import toml_value

    options: dict[str, Any] = {}
    for option in given or ():
        key, equals, value = option.partition("=")
        if not key or not equals:
            raise ValueError(f"--option: found {option!r}, must be KEY=VALUE")
        options[key] = toml_value(value)
    return options


def name_of(trace: Path) -> str:
    """What a trace is called, with its folder, as many a file is only called `requests`."""
    return f"{trace.resolve().parent.name}-{trace.name.split('.')[0]}"


@app.command()
def inspect(
    trace: Trace,
    format: Format = None,
    trace_block_size: TraceBlockSize = None,
    options: ReaderOptions = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the picture.")] = None,
    as_json: Json = False,
) -> None:
    """Show what a trace is like: arrivals, lengths, reuse, sharing, sessions, and a picture."""
    from prefixgym.envs.workload.readers.registry import read_trace
    from prefixgym.envs.workload.statistics.summary import Study
    from prefixgym.experiments.trace_plot import plot_trace
    from prefixgym.experiments.trace_tables import inspection

    tape = read_trace(trace, format, None, trace_block_size, **reader_options(options))
    study = Study.of(tape)
    found = study.statistics()
    folder = out or RUNS / "inspect"
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"{name_of(trace)}.png"
    plot_trace(study, f"{name_of(trace)}: {found.traffic.requests:,} requests", picture)
    if as_json:
        print_json({"trace": str(trace), **dataclasses.asdict(found), "picture": str(picture)})
        return
    print_tables(inspection(found))
    typer.echo(f"\nwritten: {picture}")
