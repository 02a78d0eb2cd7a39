"""The instance scorer as actor, with a critic beside it, for Stable-Baselines3's algorithms."""

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy, MultiInputActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from prefixgym.agents.scorer import ClusterEncoder, InstanceScorer, available, linear
from prefixgym.envs.observation import INSTANCE_FIELDS, REQUEST_FIELDS

_REJECTION = -2.0
"""Logit of rejecting, compared with that of the best instance, before anything was learned."""

Observed = tuple[Tensor, Tensor]
"""request [B, R] and instances [B, N, F]."""


class InstanceTable(BaseFeaturesExtractor):
    """An observation's two parts, the instances as a table, [B, R] and [B, N, F]."""

    def __init__(self, observation_space: gym.spaces.Dict) -> None:
        super().__init__(observation_space, len(REQUEST_FIELDS) + len(INSTANCE_FIELDS))

    def forward(self, observation: dict[str, Tensor]) -> Observed:
        """Both parts of a batch of observations."""
        request = observation["request"]
        return request, observation["instances"].reshape(len(request), -1, len(INSTANCE_FIELDS))


def rejects(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> bool:
    """Whether there is an action more than there are instances, which is to reject."""
    table = cast(gym.spaces.Dict, observation_space)["instances"]
    num_instances = int(np.prod(cast(gym.spaces.Box, table).shape)) // len(INSTANCE_FIELDS)
    return int(cast(gym.spaces.Discrete, action_space).n) == num_instances + 1


class InstanceActor(nn.Module):
    """Logits of all actions: the instances' scores, and that of rejecting where it is allowed."""

    def __init__(self, scorer: InstanceScorer, hidden: int, rejects: bool) -> None:
        super().__init__()
        self.scorer = scorer
        self.reject = linear(hidden, 1, 0.01) if rejects else None

    def forward(self, request: Tensor, instances: Tensor) -> Tensor:
        """[B, N] or, with rejection, [B, N + 1]."""
        encoded = self.scorer.encoder(request, instances)
        scores = self.scorer.judge(encoded, instances)
        if self.reject is None:
            return scores
        mask = available(instances)[:, :, None]
        mean = torch.where(mask, encoded, 0.0).sum(1) / mask.sum(1).clamp(min=1)
        best = torch.where(mask.any(1), scores.amax(1, keepdim=True), 0.0)
        return torch.cat([scores, best + _REJECTION + self.reject(mean)], 1)


class InstanceActorCritic(nn.Module):
    """Where Stable-Baselines3 wants its `MlpExtractor`: logits [B, N], and H numbers to value."""

    def __init__(self, actor: InstanceActor, hidden: int) -> None:
        super().__init__()
        self.latent_dim_pi = self.latent_dim_vf = hidden
        self.actor = actor
        self.critic = ClusterEncoder(hidden)

    def forward(self, observed: Observed) -> tuple[Tensor, Tensor]:
        """Both."""
        return self.forward_actor(observed), self.forward_critic(observed)

    def forward_actor(self, observed: Observed) -> Tensor:
        """[B, N] or [B, N + 1]."""
        logits: Tensor = self.actor(*observed)
        return logits

    def forward_critic(self, observed: Observed) -> Tensor:
        """[B, H]."""
        latent: Tensor = self.critic(*observed)
        return latent


class _InstancePolicy(BasePolicy):
    """What the policies below share.

    Args:
        observation_space, action_space, lr_schedule: given by the algorithm.
        hidden, prior, attention: as for `InstanceScorer`; the critic is as wide.
        settings: as for `MultiInputActorCriticPolicy`; `net_arch` has no effect.
    """

    def __init__(
        self,
        observation_space: gym.spaces.Dict,
        action_space: gym.spaces.Discrete,
        lr_schedule: Schedule,
        hidden: int = 32,
        prior: Sequence[float] | None = None,
        attention: bool = False,
        **settings: Any,
    ) -> None:
        self.choices = {"hidden": hidden, "prior": prior, "attention": attention}
        settings["features_extractor_class"] = InstanceTable
        settings["ortho_init"] = False  # the networks start themselves, some layers at zero
        super().__init__(observation_space, action_space, lr_schedule, **settings)

    def _build_mlp_extractor(self) -> None:
        hidden = int(cast(int, self.choices["hidden"]))
        scorer = InstanceScorer(**cast(dict[str, Any], self.choices))
        actor = InstanceActor(scorer, hidden, rejects(self.observation_space, self.action_space))
        self.mlp_extractor = InstanceActorCritic(actor, hidden)

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)  # type: ignore[misc]
        self.action_net = nn.Identity()  # the actor's outputs are the logits
        self.value_net = linear(self.mlp_extractor.latent_dim_vf, 1, 1.0)
        self.optimizer = self.optimizer_class(
            self.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | self.choices

    @property
    def scorer(self) -> InstanceActor:
        """What `LearnedRouter` routes by."""
        return self.mlp_extractor.actor


class InstanceScorerPolicy(_InstancePolicy, MultiInputActorCriticPolicy):  # type: ignore[misc]
    """Actor and critic for Stable-Baselines3's PPO and A2C."""


class MaskableInstanceScorerPolicy(_InstancePolicy, MaskableMultiInputActorCriticPolicy):  # type: ignore[misc]
    """Actor and critic for sb3-contrib's MaskablePPO."""
