"""Lodestar's network against PyTorch, and its choice of training data."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from prefixgym.baselines.papers.reward_network import HIDDEN, Floats, RewardNetwork, layer_of
from prefixgym.baselines.papers.training_data import TrainingData, k_center

FEATURES = 3


def samples(number: int, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    features = rng.normal(5, 2, (number, FEATURES)).astype(np.float32)
    rewards = -(np.abs(features[:, 0] - 5) + 0.1 * features[:, 1])
    return features, rewards.astype(np.float32)


def network(num_envs: int = 1, **settings: float) -> RewardNetwork:
    return RewardNetwork(np.arange(num_envs, dtype=np.uint64), FEATURES, **settings)


def rewards_of(ours: RewardNetwork, e: int, features: Floats) -> NDArray[np.float64]:
    num_envs = len(ours.parameters)
    rewards = np.empty((num_envs, len(features)))
    ours.predict(np.tile(features, (num_envs, 1, 1)), rewards)
    return rewards[e]


def torch_twin(ours: RewardNetwork, e: int) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for layer in range(4):
        weights, biases = layer_of(ours.parameters[e], FEATURES, layer)
        linear = torch.nn.Linear(*weights.shape)
        linear.weight.data = torch.from_numpy(weights.T.copy())
        linear.bias.data = torch.from_numpy(biases.copy())
        layers += [linear, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def test_shape_and_start() -> None:
    ours = network(2)
    shapes = [layer_of(ours.parameters[1], FEATURES, k)[0].shape for k in range(4)]
    assert shapes == [(FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 1)]
    # The layers take up all parameters, one after the other.
    last, bias = layer_of(ours.parameters[1], FEATURES, 3)
    last[:], bias[:] = 7, 8
    assert ours.parameters[1, -HIDDEN - 1 :].tolist() == [7.0] * HIDDEN + [8.0]
    # Xavier: uniform up to the root of 6 / (inputs + outputs).
    middle, bias = layer_of(ours.parameters[0], FEATURES, 1)
    assert np.abs(middle).max() == pytest.approx((6 / (2 * HIDDEN)) ** 0.5, rel=1e-3)
    assert abs(float(middle.mean())) < 0.003
    assert set(bias.tolist()) == {np.float32(0.01)}


def test_it_predicts_and_learns_as_pytorch_does() -> None:
    ours, (features, rewards) = network(2, dropout=0.0), samples(32)
    twin = torch_twin(ours, 1)
    ours.train(1, features, rewards, epochs=4, batch_size=32, learning_rate=0.01)
    inputs = torch.from_numpy((features - features.mean(axis=0)) / features.std(axis=0))
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.01, weight_decay=1e-5)
    for _ in range(4):
        loss = torch.nn.functional.mse_loss(twin(inputs)[:, 0], torch.from_numpy(rewards))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
        optimizer.step()
    expected = twin(inputs)[:, 0].detach().numpy()
    # Adam divides by gradients near 0, hence the tolerance.
    np.testing.assert_allclose(rewards_of(ours, 1, features), expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(ours.last_hidden(1, features)[1], expected, rtol=1e-3, atol=1e-3)


def test_training_one_environment_leaves_the_others() -> None:
    ours, (features, rewards) = network(2), samples(100)
    before = ours.parameters.copy()
    ours.train(0, features, rewards, epochs=1, batch_size=50, learning_rate=0.01)
    assert (before[1] == ours.parameters[1]).all()
    assert (before[0] != ours.parameters[0]).mean() > 0.9


def test_it_learns_a_bend_with_dropout() -> None:
    ours, (features, rewards) = network(), samples(2000)
    ours.train(0, features, rewards, epochs=10, batch_size=256, learning_rate=0.001)
    new_features, new_rewards = samples(500, seed=1)
    error = rewards_of(ours, 0, new_features) - new_rewards
    assert error.var() < 0.1 * new_rewards.var()
    # It draws orders and units to drop, always the same ones.
    again, same = network(), network()
    for learner in (again, same):
        learner.train(0, features, rewards, epochs=2, batch_size=256, learning_rate=0.001)
    assert (again.parameters == same.parameters).all()


def test_a_constant_feature_does_no_harm() -> None:
    ours, (features, rewards) = network(), samples(50)
    features[:, 2] = 7
    ours.train(0, features, rewards, epochs=1, batch_size=50, learning_rate=0.001)
    assert np.isfinite(rewards_of(ours, 0, features)).all()


# --- training data -----------------------------------------------------------------------------


def column(*values: float) -> Floats:
    return np.array(values, np.float32)[:, None]


def test_what_is_no_longer_recent_becomes_old() -> None:
    data = TrainingData(1, fifo_size=3, replay_size=2)
    data.add(column(0, 1), column(0, 1)[:, 0])
    data.add(column(2, 3), column(2, 3)[:, 0])
    assert data.features[:, 0].tolist() == data.rewards.tolist() == [1, 2, 3]
    assert data.old_rewards.tolist() == [0]
    too_many = [data.too_many_old]
    data.add(column(4, 5), column(4, 5)[:, 0])
    too_many.append(data.too_many_old)
    assert too_many == [False, True]
    assert data.old_features[:, 0].tolist() == [0, 1, 2]
    features, rewards = data.all()
    assert features[:, 0].tolist() == rewards.tolist() == [0, 1, 2, 3, 4, 5]


def test_k_center_takes_the_longest_and_then_the_most_different() -> None:
    vectors = np.array([[1, 0], [5, 0.1], [0, 1], [3, 0], [-1, 0.5]], np.float32)
    # 1 is the longest; 4 points the other way; of 2 (90° from 1, 63° from 4), 0 and 3, then 2.
    assert k_center(vectors, 3).tolist() == [1, 4, 2]
    assert sorted(k_center(vectors, 5).tolist()) == [0, 1, 2, 3, 4]


def test_replay_prefers_what_is_predicted_badly() -> None:
    data = TrainingData(1, fifo_size=1, replay_size=2)
    data.add(column(0, 1, 2, 3), np.array([0, 0, 0, 0], np.float32))
    activations = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    # Residuals 1, 3, 0: the second is the longest. The third has no direction at all, the first the
    # same one: distances 1 and 0.
    data.keep_diverse(activations, np.array([1, 3, 0], np.float32))
    assert data.old_features[:, 0].tolist() == [1, 2]
