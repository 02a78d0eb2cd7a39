"""A window that shows pictures, through pygame, which the extra `human` installs."""

import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray


class Window:
    """Opens with the first picture.

    Args:
        fps: pictures a second at most; `show` waits for its turn.

    Raises:
        gymnasium.error.DependencyNotInstalled: there is no pygame.
    """

    def __init__(self, fps: int) -> None:
        if importlib.util.find_spec("pygame") is None:
            raise gym.error.DependencyNotInstalled(
                'render_mode="human" needs pygame: pip install "prefixgym[human]"'
            )
        self._fps = fps
        self._surface: Any = None
        self._clock: Any = None

    def show(self, picture: NDArray[np.uint8]) -> None:
        """Show a picture [height, width, 3] and answer the window system."""
        import pygame

        height, width, _ = picture.shape
        if self._surface is None:
            pygame.display.init()
            pygame.display.set_caption("prefixgym")
            self._surface = pygame.display.set_mode((width, height))
            self._clock = pygame.time.Clock()
        image = pygame.image.frombuffer(picture.tobytes(), (width, height), "RGB")
        self._surface.blit(image, (0, 0))
        pygame.event.pump()
        self._clock.tick(self._fps)
        pygame.display.flip()

    def close(self) -> None:
        """Close the window; the next picture would open a new one."""
        if self._surface is not None:
            import pygame

            pygame.display.quit()
            self._surface = None
