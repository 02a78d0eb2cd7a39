"""What `render()` of the environments does: Gymnasium's render modes over frames."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.rendering.picture import draw
from prefixgym.envs.rendering.spectator import Spectator
from prefixgym.envs.rendering.text import frame_text
from prefixgym.envs.rendering.window import Window
from prefixgym.envs.simulation import Simulation

Rendering = str | NDArray[np.uint8] | None
"""What a rendered environment is, by mode."""

RENDER_FPS = 10
"""Decisions a second that a person can follow."""

VECTOR_RENDER_MODES = ("ansi", "rgb_array")
RENDER_MODES = (*VECTOR_RENDER_MODES, "human")


def check_render_mode(mode: str | None, allowed: Sequence[str]) -> None:
    """Raise ValueError unless `mode` is allowed or None."""
    if mode is not None and mode not in allowed:
        raise ValueError(f"render_mode: found {mode!r}, allowed: {', '.join(allowed)}")


class Renderer:
    """Renders the environments of a simulation in one mode.

    Args:
        mode: `ansi` (str), `rgb_array` (uint8 [height, width, 3]) or `human` (a window).
        simulation: made with `record=True`.
        title: what is played, in a few words.

    Raises:
        gymnasium.error.DependencyNotInstalled: `human` without pygame.
    """

    def __init__(self, mode: str, simulation: Simulation, title: str) -> None:
        self.mode = mode
        self.spectator = Spectator(simulation, title)
        self._window = Window(RENDER_FPS) if mode == "human" else None

    def render(self, e: int) -> Rendering:
        """Environment e now; None in mode `human`, which shows it in the window."""
        frame = self.spectator.frame(e)
        if self.mode == "ansi":
            return frame_text(frame)
        if self._window is None:
            return draw(frame)
        self._window.show(draw(frame))
        return None

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._window.close()
