"""`prefixgym analyze RUN…`: runs of all that learns beside each other and handcrafted routers."""

from pathlib import Path
from typing import Annotated

import typer

from prefixgym.experiments.console import RUNS, Json, print_json, print_tables


def analyze(
    run: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of prefixgym train, evolve or imitate, in any mix.", metavar="RUN..."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to, by default runs/analysis.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs by their TensorBoard events: a table, and learning curves as a picture.

    Runs that differ by nothing but their seed are one curve, with a 95 % interval.
    """
    from prefixgym.experiments.analysis.curve import panels_of
    from prefixgym.experiments.analysis.figure import plot_curves
    from prefixgym.experiments.analysis.report import (
        analysis_json,
        comparison_table,
        incomparable,
    )
    from prefixgym.experiments.analysis.run import read_run

    runs = [read_run(path) for path in dict.fromkeys(run)]
    panels = panels_of(runs)
    table = comparison_table(runs, panels)
    folder = out or RUNS / "analysis"
    folder.mkdir(parents=True, exist_ok=True)
    files = {"png": folder / "curves.png", "markdown": folder / "comparison.md"}
    plot_curves(panels, files["png"])
    files["markdown"].write_text(table.markdown(), encoding="utf-8")
    for warning in incomparable(panels):
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        written = {kind: str(path) for kind, path in files.items()}
        print_json(analysis_json(runs, panels) | {"files": written})
        return
    print_tables([table])
    if any(one.best.ttft_p99 > one.limit for one in runs):
        typer.echo("* above the limit within which attainment counts, see docs/training.md")
    typer.echo(f"\nwritten: {', '.join(map(str, files.values()))}")
