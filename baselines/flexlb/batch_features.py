"""What FlexLB's predictors know of a prefill batch: sums over its members.

Both predictors depend on a batch only through these sums, so that a member's leaving is a
subtraction. Source: `routers_flexlb_dynamo_preble_mooncake.md` §0, §1.8, §1.9.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel

COUNT, HIT, COMPUTE, COMPUTE_SQUARED, HIT_COMPUTE, WITH_HIT, HIT_SHARE = range(7)
"""|B|, ΣH, ΣM, ΣM², ΣH·M, members with H > 0, ΣH/L; H hit tokens and M = L - H of each member."""

NUM_FEATURES = 7


@kernel
def change_features(features: NDArray[np.float64], prompt: int, hit: int, sign: int) -> None:
    """Add (`sign` 1) or take away (-1) a member of `prompt` tokens, `hit` of them cached."""
    hit = min(max(hit, 0), prompt)
    compute = float(prompt - hit)
    features[COUNT] += sign
    features[HIT] += sign * hit
    features[COMPUTE] += sign * compute
    features[COMPUTE_SQUARED] += sign * compute * compute
    features[HIT_COMPUTE] += sign * hit * compute
    features[WITH_HIT] += sign * (hit > 0)
    features[HIT_SHARE] += sign * (hit / max(prompt, 1))


@kernel
def set_features(features: NDArray[np.float64], prompt: int, hit: int) -> None:
    """The features of a batch of one."""
    for k in range(NUM_FEATURES):
        features[k] = 0.0
    change_features(features, prompt, hit, 1)
