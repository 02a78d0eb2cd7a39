"""The commands `prefixgym trace …`: recorded traces, their formats and figures."""

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from prefixgym.envs.workload.tape import NO_ROW
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


@app.command()
def convert(
    source: Trace,
    out: Annotated[Path, typer.Argument(help="The file to write, .parquet by convention.")],
    format: Format = None,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a block of OUT, a divisor of SOURCE's; by default it."),
    ] = None,
    trace_block_size: TraceBlockSize = None,
    options: ReaderOptions = None,
    as_json: Json = False,
) -> None:
    """Write a trace in the native format, see docs/trace-format.md."""
    from prefixgym.envs.workload.readers import native
    from prefixgym.envs.workload.readers.registry import read_trace

    tape = read_trace(source, format, block_size, trace_block_size, **reader_options(options))
    native.write([tape], out)
    roots = int((tape.requests["parent"] == NO_ROW).sum())
    if as_json:
        found = {"requests": len(tape.requests), "roots": roots, "block_size": tape.block_size}
        print_json({"source": str(source), "written": str(out), **found})
        return
    typer.echo(
        f"written: {out}, {len(tape.requests):,} requests of which {roots:,} wait for no other, "
        f"blocks of {tape.block_size} tokens"
    )


@app.command()
def fetch(
    name: Annotated[str | None, typer.Argument(help="Which one; none lists them.")] = None,
    folder: Annotated[Path | None, typer.Option(help="By default the cache's.")] = None,
    as_json: Json = False,
) -> None:
    """Download a public trace and check that it is what it should be."""
    from rich.console import Console
    from rich.progress import Progress

    from prefixgym.experiments.fetch import PUBLIC_TRACES, public_trace, trace_folder
    from prefixgym.experiments.fetch import fetch as download
    from prefixgym.experiments.table import Table

    if name is None:
        if as_json:
            print_json({key: dataclasses.asdict(known) for key, known in PUBLIC_TRACES.items()})
            return
        rows = [
            (known.name, "" if known.size is None else f"{known.size:,}", known.description)
            for known in PUBLIC_TRACES.values()
        ]
        print_tables([Table("Public traces", ("name", "bytes", "description"), rows, prose=True)])
        return
    trace = public_trace(name)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(trace.name, total=trace.size)
        path = download(
            trace, folder or trace_folder(), lambda count: progress.advance(task, count)
        )
    if as_json:
        print_json({"name": trace.name, "path": str(path), "checked": trace.sha256 is not None})
        return
    note = "" if trace.sha256 is not None else " (its sha256 is not known here: not checked)"
    typer.echo(f"{path}{note}")


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


@app.command()
def fit(
    trace: Trace,
    format: Format = None,
    trace_block_size: TraceBlockSize = None,
    options: ReaderOptions = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the generator there, as a scenario, .toml.")
    ] = None,
    first_half: Annotated[
        bool, typer.Option("--first-half", help="Fit to its first half, compare with the second.")
    ] = False,
    family: Annotated[
        str | None,
        typer.Option(
            help="chat, agentic, shared-prompts or unique-prompts; by default what fits best."
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Also write the table there, docs/trace-fit.md say.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit a generator to a trace, say how well, and write a scenario to train on."""
    from prefixgym.envs.workload.readers.registry import read_trace
    from prefixgym.experiments.fitted_scenario import fitted_scenario
    from prefixgym.experiments.trace_fit import describe, fit_trace
    from prefixgym.experiments.trace_fit import page as page_of

    if out is not None and out.suffix != ".toml":
        raise ValueError(f"--out: found {out}, must end in .toml")
    if page is not None and not first_half:
        raise ValueError("--page: shows halves side by side, it needs --first-half")
    tape = read_trace(trace, format, None, trace_block_size, **reader_options(options))
    report = fit_trace(tape, first_half, family)
    if out is not None:
        name = re.sub("[^a-z0-9.-]+", "-", out.stem.lower()).strip("-.") or "fitted"
        text = fitted_scenario(report.fit, name, name_of(trace), report.requests[0])
        out.write_text(text, encoding="utf-8")
    if page is not None:
        command = f"prefixgym trace fit {trace} --first-half --page {page}"
        page.write_text(page_of(report, command), encoding="utf-8")
    if as_json:
        print_json({"trace": str(trace), **report.json()})
        return
    print_tables([report.table()])
    typer.echo("\n".join(["", *describe(report)]))
    for written in filter(None, (out, page)):
        typer.echo(f"written: {written}")
