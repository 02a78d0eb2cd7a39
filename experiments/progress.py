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
    with _bar(disable=not work) as bar:
        task = bar.add_task(f"{finished} of {cells} {unit}", total=sum(work))

        def on_end(decisions: int) -> None:
            nonlocal finished
            finished += 1
            bar.update(task, advance=decisions, description=f"{finished} of {cells} {unit}")

        yield on_end


@contextmanager
def progress_of_requests(total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` requests have ended; yields a function that tells of some more."""
    with _bar() as bar:
        task = bar.add_task("", total=total)
        done = 0

        def on_end(requests: int) -> None:
            nonlocal done
            done += requests
            bar.update(task, completed=done, description=f"{done:,} of {total:,} requests")

        on_end(0)
        yield on_end


def _bar(disable: bool = False) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=disable,
    )
