"""A policy that scores every instance with one shared network.

Nothing in routing depends on an instance's number, so a network need not learn it N times: it sees
one instance beside a summary of all, and gives a score. Permuting the instances permutes the scores
(Deep Sets, arXiv 1703.06114; RLScheduler's kernel network, SC20). A plain network over the whole
observation does not learn this task (`rl.md` §5.2, §5.4).
"""

import functools
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.policies import MultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from prefixgym.envs.observation import INSTANCE_FIELDS, REQUEST_FIELDS

ROW = len(INSTANCE_FIELDS) + len(REQUEST_FIELDS)
_AVAILABLE = next(k for k, field in enumerate(INSTANCE_FIELDS) if field.name == "available")
_NEVER = -1e9  # a score that no sampling picks; infinity would make the entropy NaN


class InstanceRows(BaseFeaturesExtractor):
    """Observation to one row an instance, [B, N, F + R]: its columns, then the request's."""

    def __init__(self, observation_space: gym.spaces.Dict) -> None:
        super().__init__(observation_space, features_dim=ROW)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Rows of a batch of observations."""
        request = observation["request"]
        instances = observation["instances"].reshape(len(request), -1, len(INSTANCE_FIELDS))
        return torch.cat([instances, request[:, None].expand(-1, instances.shape[1], -1)], 2)


class InstanceNetwork(nn.Module):
    """Two towers over rows [B, N, F + R]: [B, N, H + 1] for the policy, [B, H] for the value.

    Each embeds the rows and summarises them by mean and maximum. The policy looks at an embedding
    beside the summary, the value at the summary alone. The policy's last column says which
    instances are available.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.latent_dim_pi = self.latent_dim_vf = hidden
        self.policy_rows = nn.Sequential(nn.Linear(ROW, hidden), nn.Tanh())
        self.policy = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.Tanh())
        self.value_rows = nn.Sequential(nn.Linear(ROW, hidden), nn.Tanh())
        self.value = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.Tanh())

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Both."""
        return self.forward_actor(rows), self.forward_critic(rows)

    def forward_actor(self, rows: Tensor) -> Tensor:
        """[B, N, H + 1]."""
        embedded = self.policy_rows(rows)
        summary = _summary(embedded)[:, None].expand(-1, embedded.shape[1], -1)
        latent: Tensor = self.policy(torch.cat([embedded, summary], 2))
        return torch.cat([latent, rows[:, :, _AVAILABLE, None]], 2)

    def forward_critic(self, rows: Tensor) -> Tensor:
        """[B, H]."""
        latent: Tensor = self.value(_summary(self.value_rows(rows)))
        return latent


def _summary(embedded: Tensor) -> Tensor:
    return torch.cat([embedded.mean(1), embedded.amax(1)], 1)


class Scores(nn.Module):
    """One score for each of N instances, [B, N], from their latent rows [B, N, H + 1].

    Instances that are not available score as good as never. Where requests may be rejected, a last
    column scores that, from the mean of the rows.
    """

    def __init__(self, hidden: int, rejects: bool) -> None:
        super().__init__()
        self.score = nn.Linear(hidden, 1)
        self.reject = nn.Linear(hidden, 1) if rejects else None

    def forward(self, latent: Tensor) -> Tensor:
        """[B, N], or [B, N + 1]."""
        rows, available = latent[:, :, :-1], latent[:, :, -1]
        scores = self.score(rows).squeeze(2).masked_fill(available == 0, _NEVER)
        return scores if self.reject is None else torch.cat([scores, self.reject(rows.mean(1))], 1)


class InstanceScorerPolicy(MultiInputActorCriticPolicy):
    """Actor and critic on `PrefixRouting` for Stable-Baselines3's PPO and A2C.

    Args:
        observation_space, action_space, lr_schedule: given by the algorithm.
        hidden: H, width of every layer.
        settings: as for `MultiInputActorCriticPolicy`; `net_arch` has no effect.
    """

    def __init__(
        self,
        observation_space: gym.spaces.Dict,
        action_space: gym.spaces.Discrete,
        lr_schedule: Schedule,
        hidden: int = 32,
        **settings: Any,
    ) -> None:
        self.hidden = hidden
        settings["features_extractor_class"] = InstanceRows
        super().__init__(observation_space, action_space, lr_schedule, **settings)

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = InstanceNetwork(self.hidden)  # type: ignore[assignment]

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        # Not N outputs from one latent, but one output from each of N.
        space = cast(gym.spaces.Dict, self.observation_space)["instances"]
        num_instances = int(np.prod(cast(gym.spaces.Box, space).shape)) // len(INSTANCE_FIELDS)
        num_actions = int(cast(gym.spaces.Discrete, self.action_space).n)
        self.action_net = Scores(self.hidden, rejects=num_actions == num_instances + 1)
        self.action_net.apply(functools.partial(self.init_weights, gain=0.01))
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"hidden": self.hidden}
