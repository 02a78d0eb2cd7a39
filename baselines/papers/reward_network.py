"""Lodestar's predictor: a multilayer perceptron for each environment.

3 hidden layers of 128 rectified units, a scalar output, and dropout of 0.1 behind the first two
while training. Trained on the mean squared error by Adam with weight decay 1e-5 and gradients
clipped to a norm of 1; weights start as Xavier's uniform ones, biases at 0.01.

Compiled, and with sums in a fixed order, so that it learns the same bits on every machine. Rows of
small matrices are also not worth a linear-algebra library's threads.

Source: arXiv 2606.00946 §4.1; numbers that the paper does not state read in gangmuk/Lodestar
`python/routing_agent_service/agent_codes/reward_predictor.py` at 32a7ab0d.
"""

import math

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import draw
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import uniform, uniforms

HIDDEN = 128
_HIDDEN_LAYERS = 3
_OUTPUT = 3  # the output layer's number
_DROPOUT = 0.1
_DROPOUT_LAYERS = 2
_WEIGHT_DECAY = 1e-5
_MOST_NORM = 1.0
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8

Floats = NDArray[np.float32]


class RewardNetwork:
    """E networks of one shape.

    Attributes:
        parameters: float32 [E, P], layer by layer: weights [inputs, outputs], biases [outputs].
        mean: of each feature in the last training data, float32 [E, F].
        deviation: standard deviations of the same, 1 where a feature is constant.
    """

    def __init__(self, keys: NDArray[np.uint64], num_features: int, dropout: float = _DROPOUT):
        self._keys, self._dropout = keys, dropout
        num_envs = len(keys)
        size = _start(num_features, _OUTPUT) + HIDDEN + 1
        draws = uniforms(np.repeat(keys, size), np.tile(np.arange(size), num_envs))
        self.parameters = draws.reshape(num_envs, size).astype(np.float32)
        self._draws = np.full(num_envs, size, np.int64)
        for layer in range(_OUTPUT + 1):
            for e in range(num_envs):
                weights, biases = layer_of(self.parameters[e], num_features, layer)
                limit = math.sqrt(6 / sum(weights.shape))
                weights[:] = limit * (2 * weights - 1)
                biases[:] = 0.01
        self.mean = np.zeros((num_envs, num_features), np.float32)
        self.deviation = np.ones((num_envs, num_features), np.float32)

    def predict(self, features: Floats, rewards: NDArray[np.float64]) -> None:
        """Write the rewards [E, N] of features [E, N, F]."""
        _predict(self.parameters, self.mean, self.deviation, features, rewards)

    def last_hidden(self, e: int, features: Floats) -> tuple[Floats, Floats]:
        """Last activations [M, HIDDEN] and rewards [M] of features [M, F] in environment e."""
        activations = np.empty((len(features), HIDDEN), np.float32)
        rewards = np.empty(len(features), np.float32)
        inputs = (features - self.mean[e]) / self.deviation[e]
        _forward(self.parameters[e], inputs, activations, rewards)
        return activations, rewards

    def train(
        self,
        e: int,
        features: Floats,
        rewards: Floats,
        *,
        epochs: int,
        batch_size: int,
        learning_rate: float,
    ) -> None:
        """Fit environment e's network to samples [M, F] and [M], from its present weights on."""
        self.mean[e] = features.mean(axis=0)
        deviation = features.std(axis=0)
        self.deviation[e] = np.where(deviation > 0, deviation, 1)
        inputs = (features - self.mean[e]) / self.deviation[e]
        self._draws[e] = _train(
            self.parameters[e],
            inputs,
            rewards,
            epochs,
            batch_size,
            learning_rate,
            self._dropout,
            self._keys[e],
            self._draws[e],
        )


@kernel
def _start(num_features: int, layer: int) -> int:
    """Where a layer's parameters start."""
    return 0 if layer == 0 else (num_features + 1 + (layer - 1) * (HIDDEN + 1)) * HIDDEN


@kernel
def layer_of(parameters: Floats, num_features: int, layer: int) -> tuple[Floats, Floats]:
    """The part of one network's parameters that are a layer's weights and biases."""
    inputs = num_features if layer == 0 else HIDDEN
    outputs = 1 if layer == _OUTPUT else HIDDEN
    start = _start(num_features, layer)
    end = start + inputs * outputs
    return parameters[start:end].reshape(inputs, outputs), parameters[end : end + outputs]


@kernel
def _add_product(left: Floats, right: Floats, out: Floats) -> None:
    """out [J] += left [K] · right [K, J]. Rectified units are often 0."""
    for k in range(right.shape[0]):
        factor = left[k]
        if factor != 0:
            for j in range(right.shape[1]):
                out[j] += factor * right[k, j]


@kernel
def _activate(
    parameters: Floats, num_features: int, layer: int, inputs: Floats, out: Floats
) -> None:
    """A layer's output for one sample."""
    weights, biases = layer_of(parameters, num_features, layer)
    for j in range(len(out)):
        out[j] = biases[j]
    _add_product(inputs, weights, out)
    if layer < _OUTPUT:
        for j in range(len(out)):
            out[j] = max(out[j], np.float32(0))


@kernel
def _forward(parameters: Floats, inputs: Floats, activations: Floats, rewards: Floats) -> None:
    num_features = inputs.shape[1]
    values = np.empty((2, HIDDEN), np.float32)
    for m in range(len(rewards)):
        _activate(parameters, num_features, 0, inputs[m], values[0])
        _activate(parameters, num_features, 1, values[0], values[1])
        _activate(parameters, num_features, 2, values[1], activations[m])
        _activate(parameters, num_features, 3, activations[m], rewards[m : m + 1])


@kernel
def _predict(
    parameters: Floats,
    mean: Floats,
    deviation: Floats,
    features: Floats,
    rewards: NDArray[np.float64],
) -> None:
    num_instances, num_features = features.shape[1:]
    inputs = np.empty((num_instances, num_features), np.float32)
    activations = np.empty((num_instances, HIDDEN), np.float32)
    outputs = np.empty(num_instances, np.float32)
    for e in range(len(rewards)):
        for i in range(num_instances):
            for f in range(num_features):
                inputs[i, f] = (features[e, i, f] - mean[e, f]) / deviation[e, f]
        _forward(parameters[e], inputs, activations, outputs)
        for i in range(num_instances):
            rewards[e, i] = outputs[i]


@kernel
def _train(
    parameters: Floats,
    inputs: Floats,
    rewards: Floats,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    dropout: float,
    key: np.uint64,
    draws: int,
) -> int:
    """Train one network with the draws from number `draws` on; return the number of the next."""
    gradient = np.empty(len(parameters), np.float32)
    first = np.zeros(len(parameters), np.float32)
    second = np.zeros(len(parameters), np.float32)
    transposed = np.empty((_OUTPUT + 1, HIDDEN, HIDDEN), np.float32)
    order = np.arange(len(inputs))
    step = 0
    for _ in range(epochs):
        for k in range(len(order) - 1, 0, -1):
            other = draw(key, draws, k + 1)
            draws += 1
            order[k], order[other] = order[other], order[k]
        for begin in range(0, len(order), batch_size):
            batch = order[begin : begin + batch_size]
            gradient[:] = 0
            _transpose(parameters, inputs.shape[1], transposed)
            for m in batch:
                draws = _add_gradient(
                    parameters,
                    transposed,
                    inputs[m],
                    rewards[m],
                    len(batch),
                    dropout,
                    key,
                    draws,
                    gradient,
                )
            step += 1
            _adam_step(parameters, gradient, first, second, step, learning_rate)
    return draws


@kernel
def _transpose(parameters: Floats, num_features: int, transposed: Floats) -> None:
    """Weights of the layers above the first, outputs first: slopes go through them downwards."""
    for layer in range(1, _OUTPUT + 1):
        weights, biases = layer_of(parameters, num_features, layer)
        for k in range(HIDDEN):
            for j in range(len(biases)):
                transposed[layer, j, k] = weights[k, j]


@kernel
def _adam_step(
    parameters: Floats,
    gradient: Floats,
    first: Floats,
    second: Floats,
    step: int,
    learning_rate: float,
) -> None:
    squares = 0.0
    for p in range(len(parameters)):
        squares += gradient[p] * gradient[p]
    clip = np.float32(min(1.0, _MOST_NORM / (math.sqrt(squares) + 1e-6)))
    unbiased = math.sqrt(1 - _BETA2**step)
    rate = np.float32(learning_rate * unbiased / (1 - _BETA1**step))
    epsilon, decay = np.float32(_EPSILON * unbiased), np.float32(_WEIGHT_DECAY)
    share1, share2 = np.float32(1 - _BETA1), np.float32(1 - _BETA2)
    for p in range(len(parameters)):
        slope = clip * gradient[p] + decay * parameters[p]
        first[p] += share1 * (slope - first[p])
        second[p] += share2 * (slope * slope - second[p])
        parameters[p] -= rate * first[p] / (np.sqrt(second[p]) + epsilon)


@kernel
def _add_gradient(
    parameters: Floats,
    transposed: Floats,
    inputs: Floats,
    reward: float,
    batch_size: int,
    dropout: float,
    key: np.uint64,
    draws: int,
    gradient: Floats,
) -> int:
    """Add one sample's gradient of the mean squared error; return the number of the next draw."""
    num_features = len(inputs)
    values = np.empty((_HIDDEN_LAYERS, HIDDEN), np.float32)
    output = np.empty(1, np.float32)
    kept = np.float32(1 / (1 - dropout))
    for layer in range(_HIDDEN_LAYERS):
        below = inputs if layer == 0 else values[layer - 1]
        _activate(parameters, num_features, layer, below, values[layer])
        if layer < _DROPOUT_LAYERS:
            for j in range(HIDDEN):
                if values[layer, j] > 0:
                    values[layer, j] *= kept if uniform(key, draws + j) >= dropout else 0
            draws += HIDDEN
    _activate(parameters, num_features, _OUTPUT, values[-1], output)

    slopes, slopes_below = np.zeros(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32)
    slopes[0] = 2 * (output[0] - np.float32(reward)) / batch_size
    for layer in range(_OUTPUT, -1, -1):
        by_weights, by_biases = layer_of(gradient, num_features, layer)
        below = inputs if layer == 0 else values[layer - 1]
        outputs = len(by_biases)
        for j in range(outputs):
            by_biases[j] += slopes[j]
        for k in range(len(below)):
            if below[k] != 0:
                for j in range(outputs):
                    by_weights[k, j] += below[k] * slopes[j]
        if layer > 0:
            slopes_below[:] = 0
            _add_product(slopes, transposed[layer, :outputs], slopes_below)
            scale = kept if layer <= _DROPOUT_LAYERS else np.float32(1)
            for k in range(HIDDEN):
                # A unit that was cut off or dropped has value 0, and nothing passes through it.
                slopes_below[k] *= scale if below[k] > 0 else np.float32(0)
            slopes, slopes_below = slopes_below, slopes
    return draws
