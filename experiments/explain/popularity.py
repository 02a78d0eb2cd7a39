"""How often each prefix was asked for lately, and how many instances hold it."""

from collections import Counter, deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

WINDOW = 60.0
"""s for which a request counts."""

CLASSES = 12
"""Classes of popularity; class k is 2^k requests in a window or more, below 2^(k+1)."""


class Popularity:
    """Requests of one episode by prefix.

    A block's id names all that comes before it too, so a request with that id has the prefix that
    ends with it.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._recent: deque[tuple[float, list[int]]] = deque()

    def ask(self, time: float, block_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Earlier requests in the window with each prefix of this one; then count this one in.

        Args:
            time: s, not before the last one.
            block_ids: of the prompt, [B].

        Returns:
            [B], never rising.
        """
        while self._recent and self._recent[0][0] < time - WINDOW:
            self._counts.subtract(self._recent.popleft()[1])
        ids = block_ids.tolist()
        found = np.array([self._counts[id] for id in ids], np.int64)
        self._counts.update(ids)
        self._recent.append((time, ids))
        return found


def copies_by_class(
    popularity: NDArray[np.int64],
    hit_tokens: NDArray[np.int64],
    prompt_tokens: int,
    block_size: int,
) -> Iterator[tuple[int, int]]:
    """(class, copies) of the longest prefix of each class of popularity that the prompt has.

    Args:
        popularity: as `Popularity.ask` says, [B].
        hit_tokens: leading tokens cached on each instance, [N]; the last token never counts.
        prompt_tokens: length of the prompt.
        block_size: tokens in a block.
    """
    asked = popularity[popularity > 0]
    classes = np.minimum(np.log2(asked).astype(np.int64), CLASSES - 1)
    for found in np.unique(classes):
        blocks = int((classes >= found).sum())
        tokens = min(blocks * block_size, prompt_tokens - 1)
        yield int(found), int((hit_tokens >= tokens).sum())
