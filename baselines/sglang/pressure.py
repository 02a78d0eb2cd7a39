"""How SGLang's in-tree router orders prefill instances by what their engines report.

Source: `routers_sglang_vllm_aibrix_llmd.md` §1.14; read in sglang
`experimental/sgl-router/src/policies/admission.rs` and `power_of_two.rs` at 0939ce07.

Its reports can also hold an estimate of the prefill queue in ms, which comes first then; ours do
not. There a report that is older than 5 s, or missing, makes it compare requests in flight alone;
here every instance always has one, as old as the scenario's telemetry interval.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import draw_two
from prefixgym.envs.jit import Record, kernel

NOWHERE = -1


@kernel
def is_more_pressed(left: Record, right: Record) -> bool:
    """By waiting uncached tokens, waiting requests, running requests, requests in flight."""
    if left["waiting_tokens"] != right["waiting_tokens"]:
        return bool(left["waiting_tokens"] > right["waiting_tokens"])
    if left["waiting"] != right["waiting"]:
        return bool(left["waiting"] > right["waiting"])
    if left["running"] != right["running"]:
        return bool(left["running"] > right["running"])
    return bool(left["requests"] > right["requests"])


@kernel
def least_pressed(rows: NDArray[np.void], picks: NDArray[np.int64], count: int) -> int:
    """The first of the least pressed among the `count` instances in `picks`; NOWHERE for none."""
    if count == 0:
        return NOWHERE
    best = picks[0]
    for k in range(1, count):
        if is_more_pressed(rows[best], rows[picks[k]]):
            best = picks[k]
    return int(best)


@kernel
def less_pressed_of_two(
    rows: NDArray[np.void], picks: NDArray[np.int64], count: int, key: np.uint64, index: int
) -> tuple[int, int]:
    """Two different ones of the `count` instances in `picks`, drawn for decision number `index`.

    The less pressed first, equals in the order in which they were drawn; a single one twice.
    """
    left, right = draw_two(key, index, picks, count)
    if is_more_pressed(rows[left], rows[right]):
        return right, left
    return left, right
