"""What commands print: tables for people, one JSON object for programs."""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
from rich.console import Console

if TYPE_CHECKING:
    from prefixgym.experiments.table import Table

RUNS = Path("runs")
"""Where commands write, unless told otherwise."""

_PIPE_WIDTH = 120

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


class NameIsACommand(typer.core.TyperGroup):
    """`prefixgym scenarios NAME` is `prefixgym scenarios show NAME`, and so for what has it too."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Put `show` in front of what is no command."""
        known = args[0] in self.commands or args[0].startswith("-")
        return super().resolve_command(ctx, args if known else ["show", *args])


def print_json(value: Any) -> None:
    """One line on stdout; nan and infinities, which JSON cannot say, become null."""
    typer.echo(json.dumps(_finite(value), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_tables(tables: "Sequence[Table]") -> None:
    """Each below its title, as wide as the terminal."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    for table in tables:
        console.print()
        console.print(table.title, style="bold", markup=False, highlight=False)
        console.print(table.rich())
