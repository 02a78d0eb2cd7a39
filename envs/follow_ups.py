"""Follow-ups whose arrival is known: a binary heap of rows, ordered by (time, row)."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel

PENDING = np.dtype([("time", np.int64), ("row", np.int64)], align=True)


@kernel
def _precedes(heap: NDArray[np.void], a: int, b: int) -> bool:
    if heap[a].time != heap[b].time:
        return heap[a].time < heap[b].time
    return heap[a].row < heap[b].row


@kernel
def _swap(heap: NDArray[np.void], a: int, b: int) -> None:
    time, row = heap[a].time, heap[a].row
    heap[a].time, heap[a].row = heap[b].time, heap[b].row
    heap[b].time, heap[b].row = time, row


@kernel
def push(heap: NDArray[np.void], size: int, time: int, row: int) -> None:
    """Add `row`, due at `time`, to a heap of `size` rows."""
    position = size
    heap[position].time = time
    heap[position].row = row
    while position > 0 and _precedes(heap, position, (position - 1) // 2):
        _swap(heap, position, (position - 1) // 2)
        position = (position - 1) // 2


@kernel
def pop(heap: NDArray[np.void], size: int) -> int:
    """Remove the first row of a heap of `size` rows."""
    row = heap[0].row
    size -= 1
    _swap(heap, 0, size)
    position = 0
    while True:
        smallest = position
        for child in (2 * position + 1, 2 * position + 2):
            if child < size and _precedes(heap, child, smallest):
                smallest = child
        if smallest == position:
            return row
        _swap(heap, position, smallest)
        position = smallest
