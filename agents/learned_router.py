"""A network that scores instances, as a `Router`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prefixgym.agents.files import pinned
from prefixgym.agents.seen import Seen, seen_in
from prefixgym.agents.weights import load_weights
from prefixgym.baselines.router import Router
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.observation import (
    INSTANCE_FIELDS,
    REQUEST_FIELDS,
    instance_constants,
    write_observation,
)
from prefixgym.envs.view.view import View


@kernel
def _observe(
    seen: Seen,
    constants: NDArray[np.float64],
    requests: NDArray[np.float32],
    instances: NDArray[np.float32],
) -> None:
    for e in range(len(requests)):
        write_observation(seen, e, constants, requests[e], instances[e])  # type: ignore[arg-type]


class Observer:
    """Observations of what a router sees, written by the kernel that the environments use.

    Args:
        cluster: what the episodes run on.
        num_envs: E.
    """

    def __init__(self, cluster: ClusterSpec, num_envs: int) -> None:
        shape = (num_envs, len(cluster.instances), len(INSTANCE_FIELDS))
        self._constants = instance_constants(cluster)
        # Torch's memory is always aligned alike; a product's last bits would vary with NumPy's.
        self._requests = torch.empty((num_envs, len(REQUEST_FIELDS))).numpy()
        self._instances = torch.empty(shape).numpy()

    def __call__(self, view: View) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """request [E, R] and instances [E, N, F], in arrays that the next call writes over."""
        _observe(seen_in(view), self._constants, self._requests, self._instances)
        return self._requests, self._instances


class LearnedRouter(Router):
    """The instance that the network scores highest, of those available.

    Args:
        network: request [E, R] and instances [E, N, F], as in `prefixgym.envs.observation`, to
            scores [E, N], with one column more if it may reject: an `InstanceScorer`, a
            `FlatScorer`, or `scorer` of a Stable-Baselines3 policy of this package.
    """

    name = "learned"
    source = "trained in this environment (rl.md §5)"
    family = "learned"
    knows = ("index", "ledger", "telemetry")

    def __init__(self, network: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.network = network

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing is remembered but what the cluster is made of."""
        self._observe = Observer(cluster, len(seeds))

    def route(self, view: View) -> NDArray[np.int64]:
        """Highest score, lowest index among equals."""
        request, instances = self._observe(view)
        with torch.no_grad():
            tensors = torch.from_numpy(request), torch.from_numpy(instances)
            scores = self.network(*tensors).numpy()
        allowed = np.ones(scores.shape, np.bool_)
        num_instances = instances.shape[1]
        allowed[:, :num_instances] = view.available | ~view.available.any(1, keepdims=True)
        chosen: NDArray[np.int64] = np.where(allowed, scores, -np.inf).argmax(1)
        return chosen


@dataclass
class WeightsRouter(LearnedRouter):
    """A network with the weights of one file; `named_weights` makes a class for each file.

    Attributes:
        weights: first digits of the SHA-256 of the file. Given, the file must have it, so that a
            result says which weights it is of.
    """

    path: ClassVar[Path]

    weights: str = ""

    def __post_init__(self) -> None:
        self.weights = pinned(self, self.path, self.weights)
        super().__init__(load_weights(self.path)[0])
