"""Zeroed arrays that share huge pages: with 4 KiB pages most random accesses also miss the TLB."""

import math
import mmap
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

T = TypeVar("T", bound=np.generic)

_HUGE_PAGE = 1 << 21
_LINE = 64


def widened(rows: NDArray[T], width: int) -> NDArray[T]:
    """`rows` [E, W, …] with room for `width` columns, the new ones zero."""
    wider = np.zeros((len(rows), width, *rows.shape[2:]), rows.dtype)
    wider[:, : rows.shape[1]] = rows
    return wider


def zeros_together(
    arrays: Mapping[str, tuple[tuple[int, ...], DTypeLike]],
) -> dict[str, NDArray[Any]]:
    """Zeroed arrays by name, from their shapes and types, laid one after the other in memory.

    If they fill a huge page, the system is asked for huge pages (Linux; elsewhere it need not). On
    the machine of `docs/benchmarks.md` a random access takes 200 ns instead of 300 then.
    """
    sizes = {
        name: math.prod(shape) * np.dtype(dtype).itemsize for name, (shape, dtype) in arrays.items()
    }
    total = sum(-(-size // _LINE) * _LINE for size in sizes.values())
    block = mmap.mmap(-1, max(total, 1) + _HUGE_PAGE)
    if total >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(block, np.uint8)
    start = -memory.ctypes.data % _HUGE_PAGE if total >= _HUGE_PAGE else 0
    made = {}
    for name, (shape, dtype) in arrays.items():
        made[name] = memory[start : start + sizes[name]].view(dtype).reshape(shape)
        start += -(-sizes[name] // _LINE) * _LINE
    return made
