"""FlexLB's predictors at the figures of part B §0, §1.8 and §1.9."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from prefixgym.baselines.flexlb.batch_features import (
    COMPUTE,
    COMPUTE_SQUARED,
    COUNT,
    HIT,
    HIT_COMPUTE,
    HIT_SHARE,
    NUM_FEATURES,
    WITH_HIT,
    change_features,
)
from prefixgym.baselines.flexlb.formula_predictor import deepseek_v4_flash_ms, linear_ms
from prefixgym.baselines.flexlb.learning_predictor import (
    INITIAL_PARAMETERS,
    NUM_PARAMETERS,
    STEP_COUNT,
    add_gradient,
    learn,
    learning_ms,
)
from prefixgym.baselines.flexlb.prefill_predictor import (
    LEARNING,
    LINEAR,
    estimate_ms,
    predict_ms,
)

Batch = list[tuple[int, int]]  # prompt and hit tokens of each member
DEFAULT = np.array([0.0, 1.0, 0.3])
INITIAL = np.array(INITIAL_PARAMETERS)


def features_of(batch: Batch) -> NDArray[np.float64]:
    features = np.zeros(NUM_FEATURES)
    for prompt, hit in batch:
        change_features(features, prompt, hit, 1)
    return features


def test_features_are_sums_and_a_member_can_leave() -> None:
    features = features_of([(8192, 4096), (2048, 0)])
    expected = np.zeros(NUM_FEATURES)
    expected[COUNT], expected[WITH_HIT], expected[HIT_SHARE] = 2, 1, 0.5
    expected[HIT], expected[COMPUTE] = 4096, 6144
    expected[COMPUTE_SQUARED] = 4096**2 + 2048**2
    expected[HIT_COMPUTE] = 4096 * 4096
    assert features.tolist() == expected.tolist()
    change_features(features, 2048, 0, -1)
    assert features.tolist() == features_of([(8192, 4096)]).tolist()


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([(1000, 0)], 1000.0),
        ([(1000, 500)], 650.0),  # L - 0.7 H
        ([(8192, 4096), (2048, 0)], 6144 + 0.3 * 4096),
    ],
)
def test_formula_by_default(batch: Batch, expected: float) -> None:
    assert linear_ms(DEFAULT, features_of(batch)) == pytest.approx(expected)


def test_formula_with_other_coefficients() -> None:
    coefficients = np.array([5.0, 0.05, 0.001])
    assert linear_ms(coefficients, features_of([(1000, 400), (200, 0)])) == pytest.approx(45.4)


def test_calibrated_example_is_flat_until_prompts_are_long() -> None:
    assert deepseek_v4_flash_ms(features_of([(1000, 0)])) == 300.0
    # One prompt of 32,768: softplus(2) = 2.126928, softplus(-6) = 0.002476.
    alone = 244.87 + 37.27 * math.log(2) + 0.00768 * 4096 * 2.126928 + 0.000913 * 8192 * 0.002476
    assert deepseek_v4_flash_ms(features_of([(32768, 0)])) == pytest.approx(alone, abs=1e-4)
    # Two, one of them cached to a half: ΣM = 49152, softplus(6) = 6.002476, softplus(-4) = 0.01815;
    # half of the requests have a hit, the mean of H/L is 1/4.
    two = 244.87 + 37.27 * math.log(3) + 0.00768 * 4096 * 6.002476 + 0.000913 * 8192 * 0.018150
    two += 0.000238 * 16384 + 48.18 / 2 + 14.65 / 4
    batch = [(32768, 16384), (32768, 0)]
    assert deepseek_v4_flash_ms(features_of(batch)) == pytest.approx(two, abs=1e-3)


VECTORS: list[tuple[Batch, float]] = [
    ([(1024, 0)], 318.871),
    ([(4096, 0)], 320.466),
    ([(9400, 0)], 323.785),
    ([(9400, 9216)], 318.780),
    ([(32768, 0)], 357.039),
    ([(32768, 16384)], 331.607),
    ([(131072, 0)], 1417.007),
    ([(4096, 0)] * 8, 354.607),
]


@pytest.mark.parametrize(("batch", "expected"), VECTORS)
def test_learning_predictor_at_its_initial_parameters(batch: Batch, expected: float) -> None:
    assert learning_ms(INITIAL, features_of(batch)) == pytest.approx(expected, abs=5e-4)
    assert predict_ms(LEARNING, INITIAL, features_of(batch)) == int(expected)


def test_learning_predictors_gradient() -> None:
    features = features_of([(8192, 4096), (2048, 0)])
    assert learning_ms(INITIAL, features) == pytest.approx(322.0994, abs=5e-5)
    gradient = np.zeros(NUM_PARAMETERS)
    add_gradient(INITIAL, features, 1.0, gradient)
    assert gradient == pytest.approx(
        [0.028042, 0.056085, 0.112169, 0.168254, 0.560845, 0.448676, 200, 30.94408, 8.973528],
        rel=2e-5,
    )


@given(
    st.lists(st.tuples(st.integers(1, 65536), st.integers(0, 65536)), min_size=1, max_size=8),
    st.integers(0, NUM_PARAMETERS - 1),
)
def test_gradient_is_the_slope(batch: Batch, k: int) -> None:
    features = features_of([(prompt, min(hit, prompt)) for prompt, hit in batch])
    gradient = np.zeros(NUM_PARAMETERS)
    add_gradient(INITIAL, features, 1.0, gradient)
    above, below = INITIAL.copy(), INITIAL.copy()
    above[k] += 1e-5
    below[k] -= 1e-5
    slope = (learning_ms(above, features) - learning_ms(below, features)) / 2e-5
    assert gradient[k] == pytest.approx(slope, rel=1e-4, abs=1e-5)


class Trained:
    """A worker's predictor that learns."""

    def __init__(self) -> None:
        self.parameters = INITIAL.copy()
        self.gradient = np.zeros(NUM_PARAMETERS)
        self.moments = np.zeros((2, NUM_PARAMETERS))
        self.counts = np.zeros(1, STEP_COUNT)

    def learn(self, batch: Batch, label: float) -> None:
        learn(self.parameters, self.gradient, self.moments, self.counts, features_of(batch), label)

    def predict(self, prompt: int, hit: int = 0) -> float:
        return learning_ms(self.parameters, features_of([(prompt, hit)]))


def test_adam_takes_four_samples_and_moves_every_parameter_by_its_rate() -> None:
    model = Trained()
    for _ in range(3):
        model.learn([(8192, 4096)], 1000.0)
    assert (model.parameters == INITIAL).all()
    model.learn([(8192, 4096)], 1000.0)
    # m/√v = 0.1 g / √(0.05 g²) at t = 1, and √(1 - 0.95)/(1 - 0.9) makes that 1. All four labels
    # are above the prediction, so every parameter with a positive gradient grows.
    assert model.parameters - INITIAL == pytest.approx([0.022] * NUM_PARAMETERS)


def test_adams_second_step_by_hand() -> None:
    model, features = Trained(), features_of([(2048, 0)])
    reference, m, v = INITIAL.copy(), np.zeros(9), np.zeros(9)
    for t, label in [(1, 900.0), (2, 100.0)]:
        gradient = np.zeros(NUM_PARAMETERS)
        add_gradient(reference, features, learning_ms(reference, features) - label, gradient)
        m = 0.9 * m + 0.1 * gradient
        v = 0.95 * v + 0.05 * gradient**2
        reference -= 0.022 * math.sqrt(1 - 0.95**t) / (1 - 0.9**t) * m / np.sqrt(v + 1e-20)
        for _ in range(4):
            model.learn([(2048, 0)], label)
    assert model.parameters == pytest.approx(reference)


def test_untrained_predictor_is_blind_to_caches() -> None:
    # Below 32K tokens everything lies within 319 to 357 ms, and what a cached prefix saves within
    # the tolerance of near ties, 10 % of the least score.
    least, most = learning_ms(INITIAL, features_of([(1, 0)])), 357.1
    for prompt in range(256, 32769, 256):
        whole = learning_ms(INITIAL, features_of([(prompt, 0)]))
        assert 318 < least <= whole <= most
        cached = learning_ms(INITIAL, features_of([(prompt, prompt - 1)]))
        assert whole - cached < (0.1 if prompt <= 16384 else 0.13) * cached


def test_slow_start() -> None:
    """400 batches do not teach to tell 1K from 8K tokens; 4000 do, but not beyond what was seen.

    §1.9 has 560 to 654 ms after 100 updates, p6 = -7.6 and 8918 ms for 32,768 tokens after 1000,
    from another sequence of the same targets.
    """
    model, prompts = Trained(), (1024, 2048, 4096, 8192)
    for _ in range(100):
        for prompt in prompts:
            model.learn([(prompt, 0)], 0.13 * prompt)
    early = [model.predict(prompt) for prompt in prompts]
    assert 450 < early[0] < early[-1] < 660
    assert early[-1] < 1.25 * early[0]  # the targets differ eightfold
    for _ in range(900):
        for prompt in prompts:
            model.learn([(prompt, 0)], 0.13 * prompt)
    late = [model.predict(prompt) for prompt in prompts]
    assert late == pytest.approx([0.13 * prompt for prompt in prompts], rel=0.15)
    assert model.parameters[6] / 0.005 < -1000  # the only lower bound is far below zero
    assert model.predict(32768) > 1.3 * 0.13 * 32768


def test_estimates_are_cut_to_whole_ms() -> None:
    scratch = np.zeros(NUM_FEATURES)
    assert estimate_ms(LINEAR, DEFAULT, scratch, 1001, 999) == 301  # 2 + 299.7
    assert estimate_ms(LINEAR, DEFAULT, scratch, 10, 99) == 3  # a hit is at most the prompt
    negative = np.array([-1.5, 0.0, 0.0])
    assert estimate_ms(LINEAR, negative, scratch, 10, 0) == -1
    assert predict_ms(LINEAR, np.array([9.0, 1.0, 1.0]), np.zeros(NUM_FEATURES)) == 0
