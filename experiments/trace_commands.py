"""The commands `prefixgym trace …`: recorded traces, their formats and figures."""

import typer

from prefixgym.experiments.console import Json, print_json, print_tables

app = typer.Typer(help="Recorded traces: formats, conversion, figures.", no_args_is_help=True)


@app.command()
def formats(as_json: Json = False) -> None:
    """List the formats that can be read."""
    from prefixgym.envs.workload.readers.registry import TRACE_FORMATS
    from prefixgym.experiments.table import Table

    found = {
        entry.name: {"last_block": entry.last_block, "description": entry.description}
        for entry in TRACE_FORMATS.values()
    }
    if as_json:
        print_json(found)
        return
    rows = [(name, entry["last_block"], entry["description"]) for name, entry in found.items()]
    print_tables([Table("Trace formats", ("format", "last block", "description"), rows, True)])
