"""A network trained with Stable-Baselines3 as a `Router`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.policies import ActorCriticPolicy

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


class _Seen(NamedTuple):
    """Of the view's arrays, those that an observation is written from."""

    requests: NDArray[np.void]  # REQUEST_VIEW [E]
    shown_instances: NDArray[np.void]  # INSTANCE_VIEW [E, N]


@kernel
def _observe(
    seen: _Seen,
    constants: NDArray[np.float64],
    requests: NDArray[np.float32],
    instances: NDArray[np.float32],
) -> None:
    for e in range(len(requests)):
        write_observation(seen, e, constants, requests[e], instances[e])  # type: ignore[arg-type]


class LearnedRouter(Router):
    """The instance that the policy finds most likely, of those available.

    Observations are written by the kernel that the environments use.

    Args:
        policy: of a Stable-Baselines3 actor-critic algorithm, trained on `PrefixRouting`.
    """

    name = "learned"
    source = "trained in this environment (rl.md §5)"

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self.policy = policy

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing is remembered but what the cluster is made of."""
        shape = (len(seeds), len(cluster.instances), len(INSTANCE_FIELDS))
        self._constants = instance_constants(cluster)
        self._requests = np.empty((len(seeds), len(REQUEST_FIELDS)), np.float32)
        self._instances = np.empty(shape, np.float32)

    def route(self, view: View) -> NDArray[np.int64]:
        """Highest score, lowest index among equals."""
        seen = _Seen(view.requests, view.instances)
        _observe(seen, self._constants, self._requests, self._instances)
        observation = {
            "request": torch.from_numpy(self._requests),
            "instances": torch.from_numpy(self._instances).flatten(1),
        }
        with torch.no_grad():
            distribution: Any = self.policy.get_distribution(observation).distribution
        logits = distribution.logits.numpy()
        allowed = view.available | ~view.available.any(1, keepdims=True)
        chosen: NDArray[np.int64] = np.where(allowed, logits, -np.inf).argmax(1)
        return chosen
