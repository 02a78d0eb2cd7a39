"""Prompts that share prefixes, as text for a real router and as block ids for ours.

A block is a run of `CHARS` equal characters, and blocks that follow the same prefix differ in their
first character. So two texts have common characters exactly as far as their block ids are common,
and matching characters is matching blocks.
"""

import random

import numpy as np
from made_views import BLOCK
from numpy.typing import NDArray

CHARS = 64
"""Characters in a block."""
CHARS_PER_TOKEN = CHARS / BLOCK
MOST_BLOCKS = 8

# All of these take three bytes, so that shares of bytes are shares of characters.
_FIRST_CHARACTER = 0x4E00

Path = tuple[int, ...]
"""A prompt: the number of each of its blocks among those that follow the same prefix."""


class MixedPrefixes:
    """Draws prompts from a tree of shared prefixes, with and without blocks of their own."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._ids: dict[Path, int] = {}
        self._num_unique = 0

    def draw(self) -> Path:
        """A prompt of 1 to `MOST_BLOCKS` blocks; a few prefixes are much more common."""
        depth = self._rng.choice([0, 1, 2, 3, 4])
        path = [min(int(self._rng.expovariate(0.7)), 30) for _ in range(depth)]
        for _ in range(self._rng.choice([0, 1, 1, 2, 4]) or depth == 0):
            self._num_unique += 1
            path.append(100 + self._num_unique)
        return tuple(path)

    def text(self, path: Path) -> str:
        """What the real router sees."""
        return "".join(chr(_FIRST_CHARACTER + number) * CHARS for number in path)

    def block_ids(self, path: Path) -> list[int]:
        """What our router sees."""
        prefixes = (path[: k + 1] for k in range(len(path)))
        return [self._ids.setdefault(prefix, len(self._ids)) for prefix in prefixes]


def shares(choices: list[int], num_workers: int) -> NDArray[np.float64]:
    """The share of each worker among the choices."""
    return np.bincount(choices, minlength=num_workers) / len(choices)
