"""A window that shows pictures, through pygame, which is installed by the extra `human`."""

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
        try:
            import pygame
        except ImportError:
            raise gym.error.DependencyNotInstalled(
                'render_mode="human" needs pygame: pip install "prefixgym[human]"'
            ) from None
        self._pygame = pygame
        self._fps = fps
        self._surface: Any = None
        self._clock: Any = None

    def show(self, picture: NDArray[np.uint8]) -> None:
        """Show a picture [height, width, 3] and answer the window system."""
        pygame = self._pygame
        height, width, _ = picture.shape
        if self._surface is None:
            pygame.display.init()
            pygame.display.set_caption("prefixgym")
            self._surface = pygame.display.set_mode((width, height))
            self._clock = pygame.time.Clock()
        pixels = np.ascontiguousarray(picture)
        self._surface.blit(pygame.image.frombuffer(pixels, (width, height), "RGB"), (0, 0))
        pygame.event.pump()
        self._clock.tick(self._fps)
        pygame.display.flip()

    def close(self) -> None:
        """Close the window; the next picture would open a new one."""
        if self._surface is not None:
            self._pygame.display.quit()
            self._surface = None
