"""The predictor that a FlexLB is configured with (`prefillPredictorType`), as one function."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.flexlb.batch_features import COUNT, set_features
from prefixgym.baselines.flexlb.formula_predictor import deepseek_v4_flash_ms, linear_ms
from prefixgym.baselines.flexlb.learning_predictor import learning_ms
from prefixgym.envs.jit import kernel

LINEAR, DEEPSEEK_V4_FLASH, LEARNING = range(3)


@kernel
def predict_ms(
    predictor: int, parameters: NDArray[np.float64], features: NDArray[np.float64]
) -> int:
    """Predicted prefill time of a batch, cut to whole ms; `parameters` [9] are the worker's."""
    if features[COUNT] == 0:
        return 0
    if predictor == LINEAR:
        return int(linear_ms(parameters, features))
    if predictor == DEEPSEEK_V4_FLASH:
        return int(deepseek_v4_flash_ms(features))
    return int(learning_ms(parameters, features))


@kernel
def estimate_ms(
    predictor: int,
    parameters: NDArray[np.float64],
    scratch: NDArray[np.float64],
    prompt: int,
    hit: int,
) -> int:
    """Predicted prefill time of one request alone, whole ms; `scratch` [NUM_FEATURES] is ours."""
    set_features(scratch, prompt, hit)
    return predict_ms(predictor, parameters, scratch)
