"""Lodestar's training data: the most recent samples, and a diverse choice of those before them.

What falls out of the recent samples joins the replay samples. Where these become too many, a greedy
k-center choice keeps the ones that differ most in direction: of all candidates' last hidden
activations times |predicted - measured|, the longest vector first, then always the one whose
largest cosine similarity with the chosen ones is least. A proxy for keeping different gradients.

Source: arXiv 2606.00946 §4.3.2; the choice as in gangmuk/Lodestar
`python/routing_agent_service/agent_codes/replay_buffer.py` at 3c0df4cc.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel

Floats = NDArray[np.float32]


class TrainingData:
    """Samples of one environment.

    Attributes:
        features: of the recent samples, float32 [M, F], oldest first.
        rewards: of the same, float32 [M].
        old_features: of the replay samples, float32 [R, F].
        old_rewards: of the same, float32 [R].
    """

    def __init__(self, num_features: int, fifo_size: int, replay_size: int) -> None:
        self._fifo_size, self._replay_size = fifo_size, replay_size
        self.features: Floats = np.empty((0, num_features), np.float32)
        self.rewards: Floats = np.empty(0, np.float32)
        self.old_features: Floats = np.empty((0, num_features), np.float32)
        self.old_rewards: Floats = np.empty(0, np.float32)

    def add(self, features: Floats, rewards: Floats) -> None:
        """New samples, [m, F] and [m], oldest first."""
        self.features = np.concatenate([self.features, features])
        self.rewards = np.concatenate([self.rewards, rewards])
        excess = max(0, len(self.rewards) - self._fifo_size)
        self.old_features = np.concatenate([self.old_features, self.features[:excess]])
        self.old_rewards = np.concatenate([self.old_rewards, self.rewards[:excess]])
        self.features, self.rewards = self.features[excess:], self.rewards[excess:]

    @property
    def too_many_old(self) -> bool:
        """Whether `keep_diverse` has to run."""
        return len(self.old_rewards) > self._replay_size

    def keep_diverse(self, activations: Floats, predicted: Floats) -> None:
        """Reduce the replay samples to their size.

        Args:
            activations: of the last hidden layer for each replay sample, [R, H].
            predicted: its reward by the same network, [R].
        """
        residuals = np.abs(predicted - self.old_rewards)
        kept = k_center(activations * residuals[:, None], self._replay_size)
        self.old_features, self.old_rewards = self.old_features[kept], self.old_rewards[kept]

    def all(self) -> tuple[Floats, Floats]:
        """Features and rewards of replay and recent samples."""
        return (
            np.concatenate([self.old_features, self.features]),
            np.concatenate([self.old_rewards, self.rewards]),
        )


def k_center(vectors: Floats, number: int) -> NDArray[np.int64]:
    """Indices of `number` of the vectors [M, H] that point in different directions."""
    lengths = np.sqrt((vectors * vectors).sum(axis=1))
    directions = (vectors / np.maximum(lengths, np.float32(1e-8))[:, None]).T.copy()
    chosen = np.empty(number, np.int64)
    chosen[0] = np.argmax(lengths)
    _spread(directions, chosen)
    return chosen


@kernel
def _spread(directions: Floats, chosen: NDArray[np.int64]) -> None:
    """Choose all but the first of the directions [H, M]."""
    num_vectors = directions.shape[1]
    nearest = np.full(num_vectors, np.inf, np.float32)  # cosine distance to the chosen ones
    distances = np.empty(num_vectors, np.float32)
    for k in range(1, len(chosen)):
        last = chosen[k - 1]
        distances[:] = 1
        for h in range(directions.shape[0]):
            factor = directions[h, last]
            for m in range(num_vectors):
                distances[m] -= factor * directions[h, m]
        best = 0
        for m in range(num_vectors):
            nearest[m] = min(nearest[m], distances[m])
        nearest[last] = -1  # below every distance, for good
        for m in range(num_vectors):
            if nearest[m] > nearest[best]:
                best = m
        chosen[k] = best
