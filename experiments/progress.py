"""A progress bar with the time left, on stderr."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_of(
    work: Sequence[int], cells: int, unit: str = "cells"
) -> Iterator[Callable[[int], None]]:
    """Show how much of `work` is done, while the context lasts.

    Args:
        work: decisions of each cell that is left to do: cells differ in size, the time left is
            estimated from decisions.
        cells: all cells, finished ones included.
        unit: what a cell is called.

    Yields:
        A function to call after each cell with its decisions.
    """
    finished = cells - len(work)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not work,
    )
    with bar:
        task = bar.add_task(f"{finished} of {cells} {unit}", total=sum(work))

        def on_end(decisions: int) -> None:
            nonlocal finished
            finished += 1
            bar.update(task, advance=decisions, description=f"{finished} of {cells} {unit}")

        yield on_end
