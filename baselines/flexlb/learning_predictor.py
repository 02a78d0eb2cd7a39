"""FlexLB's LearningPredictor: nine parameters for each worker, trained on finished batches by Adam.

With R = H/1024 and M = (L - H)/1024 of each member of batch B:

    x(B) = [1, |B|, ΣR, ΣM, ΣM², ΣR·M]
    z = (w·x)/320 + 1 + p8
    T̂ = p6/0.005 + (p7/0.02) (z + √(z² + 4))  ms

Nothing bounds T̂ from below but p6/0.005, which may become negative. Memory only: a restarted
router starts from the initial values, where T̂ is nearly flat below 32K tokens.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §0, §1.9; FlexLB `LearningPredictor`.
"""

import math

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.flexlb.batch_features import (
    COMPUTE,
    COMPUTE_SQUARED,
    COUNT,
    HIT,
    HIT_COMPUTE,
)
from prefixgym.envs.jit import kernel

NUM_LINEAR, NUM_PARAMETERS = 6, 9

INITIAL_PARAMETERS = (
    -4.40538432604287,
    10.522208701202377,
    1.5043093890711503,
    21.40103419118763,
    0.11145680735428248,
    0.08305932028650383,
    1.451617309598213,
    1.0268830123611967,
    -4.405384326042869,
)
"""w0 … w5, p6, p7, p8."""

_P6_UNIT, _P7_UNIT, _Z_UNIT = 0.005, 0.02, 320.0
_RATE, _BETA1, _BETA2, _EPSILON = 0.022, 0.9, 0.95, 1e-20
_SAMPLES = 4

STEP_COUNT = np.dtype([("samples", np.int64), ("updates", np.int64)], align=True)
"""Of one worker: samples since its last update, and updates."""


@kernel
def learning_ms(parameters: NDArray[np.float64], features: NDArray[np.float64]) -> float:
    """T̂ of a batch in ms; `parameters` [9]."""
    z = _z(parameters, features)
    return parameters[6] / _P6_UNIT + parameters[7] / _P7_UNIT * (z + math.sqrt(z * z + 4.0))


@kernel
def _z(parameters: NDArray[np.float64], features: NDArray[np.float64]) -> float:
    linear = 0.0
    for k in range(NUM_LINEAR):
        linear += parameters[k] * _input(features, k)
    return linear / _Z_UNIT + 1.0 + parameters[8]


@kernel
def _input(features: NDArray[np.float64], k: int) -> float:
    """x_k; the features are in tokens, x in units of 1024."""
    unit = 1024.0
    if k == 0:
        return 1.0
    if k == 1:
        return features[COUNT]
    if k == 2:
        return features[HIT] / unit
    if k == 3:
        return features[COMPUTE] / unit
    if k == 4:
        return features[COMPUTE_SQUARED] / (unit * unit)
    return features[HIT_COMPUTE] / (unit * unit)


@kernel
def add_gradient(
    parameters: NDArray[np.float64],
    features: NDArray[np.float64],
    weight: float,
    gradient: NDArray[np.float64],
) -> None:
    """Add `weight` ∂T̂/∂parameters to `gradient` [9].

    With g = (p7/0.02)(1 + z/√(z² + 4)): ∂/∂w_k = g x_k/320, ∂/∂p6 = 200,
    ∂/∂p7 = (z + √(z² + 4))/0.02, ∂/∂p8 = g.
    """
    z = _z(parameters, features)
    root = math.sqrt(z * z + 4.0)
    slope = parameters[7] / _P7_UNIT * (1.0 + z / root)
    for k in range(NUM_LINEAR):
        gradient[k] += weight * slope * _input(features, k) / _Z_UNIT
    gradient[6] += weight / _P6_UNIT
    gradient[7] += weight * (z + root) / _P7_UNIT
    gradient[8] += weight * slope


@kernel
def learn(
    parameters: NDArray[np.float64],
    gradient: NDArray[np.float64],
    moments: NDArray[np.float64],
    counts: NDArray[np.void],
    features: NDArray[np.float64],
    label: float,
) -> None:
    """Take in a finished batch that took `label` ms; every fourth one changes the parameters.

    Loss ½(T̂ - y)², averaged over four batches, all at the parameters before the update. Adam with
    rate 0.022, β1 0.9, β2 0.95 and ε 1e-20 inside the root:

        p -= rate √(1 - β2^t)/(1 - β1^t) · m/√(v + ε),  t = 1, 2, …

    Args:
        parameters: [9].
        gradient: [9], summed over the samples since the last update.
        moments: m and v, [2, 9].
        counts: the worker's STEP_COUNT record, as an array of shape [1].
        features: of the batch as it was dispatched.
        label: ms.
    """
    add_gradient(parameters, features, learning_ms(parameters, features) - label, gradient)
    counts[0]["samples"] += 1
    if counts[0]["samples"] < _SAMPLES:
        return
    counts[0]["samples"] = 0
    counts[0]["updates"] += 1
    t = counts[0]["updates"]
    step = _RATE * math.sqrt(1.0 - _BETA2**t) / (1.0 - _BETA1**t)
    for k in range(NUM_PARAMETERS):
        mean = gradient[k] / _SAMPLES
        gradient[k] = 0.0
        moments[0, k] = _BETA1 * moments[0, k] + (1.0 - _BETA1) * mean
        moments[1, k] = _BETA2 * moments[1, k] + (1.0 - _BETA2) * mean * mean
        parameters[k] -= step * moments[0, k] / math.sqrt(moments[1, k] + _EPSILON)
