"""An episode for people: played at its own pace in a terminal, or filmed as a GIF."""

import contextlib
import itertools
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.live import Live
from rich.text import Text

from prefixgym.baselines.router import Router
from prefixgym.envs.rendering.frame import Frame
from prefixgym.envs.rendering.picture import colours, draw
from prefixgym.envs.rendering.spectator import Spectator
from prefixgym.envs.rendering.text import WIDTH, frame_text
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.simulation import Simulation
from prefixgym.experiments.evaluate import begin

MAX_FILM_FRAMES = 1000
"""A GIF is put together in memory, half a megabyte a frame."""

_LAST_SECONDS = 2.0  # how long a film stands still before it starts again
_SHORTEST = 2  # centiseconds of a GIF's frame; browsers slow down anything shorter
_REDRAW = 0.04  # s, at least, from one drawing in the terminal to the next


@dataclass(frozen=True)
class Episode:
    """What is watched.

    Attributes:
        scenario: cluster, workload, objectives and what the router may know.
        rate: requests/s.
        router: who decides.
        seed: of the requests and of the router.
        skip: decisions before the first that is shown.
        steps: decisions to show; None for all that follow.
        every: show each so many-th of them.

    Raises:
        ValueError: nothing would be left to show.
    """

    scenario: Scenario
    rate: float
    router: Router
    seed: int
    skip: int = 0
    steps: int | None = None
    every: int = 1

    def __post_init__(self) -> None:
        if self.skip >= self.scenario.num_requests:
            raise ValueError(
                f"skip: found {self.skip}, the episode has {self.scenario.num_requests} decisions"
            )

    @property
    def num_frames(self) -> int:
        """How many frames there will be."""
        left = self.scenario.num_requests - self.skip
        shown = left if self.steps is None else min(left, self.steps)
        return -(-shown // self.every) + (shown == left)

    def frames(self) -> Iterator[Frame]:
        """Each decision that is shown, as it is taken; then the episode's end, if it is reached."""
        setup = self.scenario.build(self.rate)
        simulation = Simulation(**setup._asdict(), record=True)
        title = f"{self.router.name} on {self.scenario.name} at {self.rate:g} requests/s"
        spectator = Spectator(simulation, title)
        decider = begin(simulation, self.router, setup.cluster, [self.seed])
        for k in itertools.count(-self.skip):
            if simulation.is_over(0):
                break
            if k == self.steps:
                return
            actions = decider.route(simulation.view)
            spectator.note(actions)
            if k >= 0 and k % self.every == 0:
                yield spectator.frame(0)
            simulation.step(actions)
        yield spectator.frame(0)


class Film:
    """A GIF in the making.

    Args:
        path: where it is written.
        speed: simulated seconds a second.
        num_frames: frames to come.

    Raises:
        ValueError: more than `MAX_FILM_FRAMES`.
    """

    def __init__(self, path: Path, speed: float, num_frames: int) -> None:
        if num_frames > MAX_FILM_FRAMES:
            raise ValueError(
                f"{path}: would hold {num_frames} frames, at most {MAX_FILM_FRAMES} are allowed: "
                "show fewer decisions (steps) or not each of them (every)"
            )
        self._path = path
        self._speed = speed
        self._images: list[Image.Image] = []
        self._times: list[float] = []

    def add(self, frame: Frame) -> None:
        """The next frame."""
        image = Image.fromarray(draw(frame))
        self._images.append(image.quantize(palette=colours(), dither=Image.Dither.NONE))
        self._times.append(frame.time)

    def write(self) -> None:
        """Write the file, replacing what was there; it starts again after its end."""
        # Stamps are rounded, not durations, so that the film keeps pace.
        stamps = np.rint(100 * np.array(self._times) / self._speed)
        durations = 10 * np.maximum(_SHORTEST, np.diff(stamps))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        first, *others = self._images
        first.save(
            self._path,
            format="GIF",
            save_all=True,
            append_images=others,
            duration=[*durations.astype(int).tolist(), int(1000 * _LAST_SECONDS)],
            loop=0,
        )


def watch(frames: Iterable[Frame], speed: float, film: Film | None) -> None:
    """Show frames until they end or Ctrl-C comes, and film them.

    In a terminal they come at their pace; elsewhere only the last one is printed.

    Args:
        frames: what to show.
        speed: simulated seconds a second.
        film: takes every frame, if given.
    """
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else WIDTH)
    start, drawn = time.monotonic(), -math.inf
    began: float | None = None
    # Without a terminal, Live prints what it holds when it ends.
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        for frame in frames:
            if film is not None:
                film.add(frame)
            began = frame.time if began is None else began
            if terminal:
                time.sleep(max(0.0, start + (frame.time - began) / speed - time.monotonic()))
            # Drawing more often than an eye can follow would hold the episode up.
            due = time.monotonic() >= drawn + _REDRAW
            live.update(_text(frame), refresh=terminal and due)
            if due:
                drawn = time.monotonic()
    if not terminal:
        console.line()


def _text(frame: Frame) -> Text:
    text = Text.from_ansi(frame_text(frame, colours=True))
    text.no_wrap, text.overflow = True, "crop"
    return text
