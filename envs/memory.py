"""Large zeroed arrays in huge pages: with 4 KiB pages most random accesses also miss the TLB."""

import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_HUGE_PAGE = 1 << 21


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Like `numpy.zeros`; arrays of several huge pages ask the system for those (Linux)."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < 2 * _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, dtype)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, dtype, math.prod(shape)).reshape(shape)
