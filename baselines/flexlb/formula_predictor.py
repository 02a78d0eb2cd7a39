"""FlexLB's FormulaPredictor: prefill time by a formula that an operator writes.

The real one parses an expression over a batch's requests (`costFormula`). Two of them are here by
name: `linear`, with settable coefficients and by default the shipped expression, and the example of
a calibrated one that ships with the repository.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §1.8; FlexLB `FormulaPredictor`, `FlexlbConfig`.
"""

import math

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.flexlb.batch_features import (
    COMPUTE,
    COUNT,
    HIT,
    HIT_SHARE,
    WITH_HIT,
)
from prefixgym.envs.jit import kernel


@kernel
def linear_ms(coefficients: NDArray[np.float64], features: NDArray[np.float64]) -> float:
    """a + b ΣM + c ΣH in ms; `coefficients` [≥ 3] are a, b, c (ms, ms/token, ms/token)."""
    a, b, c = coefficients[0], coefficients[1], coefficients[2]
    return a + b * features[COMPUTE] + c * features[HIT]


@kernel
def deepseek_v4_flash_ms(features: NDArray[np.float64]) -> float:
    """The profile of DeepSeek-V4-flash in ms.

    max(300, 244.87 + 37.27 ln(|B| + 1)
             + 0.00768 · 4096 softplus((ΣM - 24576) / 4096)
             + 0.000913 · 8192 softplus((ΣM - 81920) / 8192)
             + 0.000238 ΣH + 48.18 (share of requests with a hit) + 14.65 mean(H/L))
    """
    count, compute = features[COUNT], features[COMPUTE]
    predicted = 244.87 + 37.27 * math.log(count + 1.0)
    predicted += 0.00768 * 4096.0 * _softplus((compute - 24576.0) / 4096.0)
    predicted += 0.000913 * 8192.0 * _softplus((compute - 81920.0) / 8192.0)
    predicted += 0.000238 * features[HIT]
    predicted += (48.18 * features[WITH_HIT] + 14.65 * features[HIT_SHARE]) / count
    return max(300.0, predicted)


@kernel
def _softplus(x: float) -> float:
    """ln(1 + e^x), without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
