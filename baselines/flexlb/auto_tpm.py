"""FlexLB's Auto-TPM: objectives by prompt length and priority, and a wait by dispatch intervals.

Workloads here have no priorities, so that all requests have one (`auto_tpm_default_priority`) and
a queue by priority is first come, first served.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §1.7; FlexLB `PrioritySloPolicy`,
`PrefillQueueManager`, `BatcherContext`.
"""

import math

from prefixgym.envs.jit import kernel

_SLO_BY_LENGTH = ((256, 150), (1024, 300), (4096, 600), (16384, 1200))
_LONGEST_SLO = 2400
_SLO_BY_PRIORITY = ((30, 2.0), (40, 1.5), (50, 1.0), (60, 0.75), (70, 0.5))


@kernel
def auto_tpm_slo_ms(prompt: int, priority: int) -> int:
    """The objective of a request: that of its length, times that of its priority.

    Up to 256 tokens 150 ms, 1024: 300, 4096: 600, 16384: 1200, else 2400; priority 30: twice that,
    40: 1.5, 50: 1, 60: 0.75, 70: 0.5, linear between, constant outside.
    """
    base = _LONGEST_SLO
    for k in range(len(_SLO_BY_LENGTH) - 1, -1, -1):
        if prompt <= _SLO_BY_LENGTH[k][0]:
            base = _SLO_BY_LENGTH[k][1]
    multiplier = _SLO_BY_PRIORITY[0][1]
    for k in range(len(_SLO_BY_PRIORITY) - 1):
        low, at_low = _SLO_BY_PRIORITY[k]
        high, at_high = _SLO_BY_PRIORITY[k + 1]
        if priority >= low:
            share = min(1.0, (priority - low) / (high - low))
            multiplier = at_low + share * (at_high - at_low)
    return math.floor(base * multiplier + 0.5)


@kernel
def auto_tpm_wait_ms(
    queued: int, head_age: int, size_max: int, dispatch_interval: float, window: int
) -> int:
    """How long a new request would wait in a batcher's queue, ms.

        ⌊ahead/size_max⌋ · interval + max(0, interval - head_age); an empty queue: 0

    Args:
        queued: requests in the queue, all of them ahead.
        head_age: ms that the first of them has waited.
        size_max: `flexlb_batch_size_max`.
        dispatch_interval: sliding average of the gaps between batches, ms; 0 if there was none yet,
            which takes the window instead.
        window: ms.
    """
    if queued == 0:
        return 0
    interval = max(1, math.floor(dispatch_interval + 0.5) if dispatch_interval > 0 else window)
    return queued // max(1, size_max) * interval + max(0, interval - head_age)
