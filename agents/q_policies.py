"""The instance scorer as action values, for Stable-Baselines3's DQN and sb3-contrib's QRDQN.

Values are dueling (Wang et al., arXiv 1511.06581): one of the whole cluster, and how much better or
worse than the average each instance is. The first is in hundreds of requests, the second in
fractions of one, so that a network without this split hardly sees what it is to choose by.

These algorithms explore by drawing from all actions, also from those that are masked. The
environment refuses these, so they learn only where every instance is available throughout.
"""

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import torch
from sb3_contrib.qrdqn.policies import QRDQNPolicy, QuantileNetwork
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor, nn

from prefixgym.agents.instance_scorer import InstanceTable, rejects
from prefixgym.agents.scorer import NEVER, ClusterEncoder, InstanceScorer, available, linear


class InstanceValues(nn.Module):
    """Quantiles of the value of sending the request to each instance.

    Args:
        quantiles: K; one stands for the mean.
        hidden, prior, attention: as for `InstanceScorer`, which gives the advantages; the tower for
            the common value is as wide.
    """

    def __init__(
        self,
        quantiles: int = 1,
        hidden: int = 32,
        prior: Sequence[float] | None = None,
        attention: bool = False,
    ) -> None:
        super().__init__()
        self.scorer = InstanceScorer(hidden, prior=prior, attention=attention)
        self.spread = linear(hidden, quantiles, 0.01) if quantiles > 1 else None
        self.cluster = ClusterEncoder(hidden)
        self.value = linear(hidden, quantiles, 1.0)

    def quantiles(self, request: Tensor, instances: Tensor) -> Tensor:
        """[B, K, N]; NEVER for unavailable instances, unless none is available."""
        chosen = available(instances)
        chosen = chosen | ~chosen.any(1, keepdim=True)
        encoded = self.scorer.encoder(request, instances)
        advantages = self.scorer.judge(encoded, instances)[:, None]
        if self.spread is not None:
            advantages = advantages + self.spread(encoded).transpose(1, 2)
        mask = chosen[:, None]
        advantages = torch.where(mask & (advantages > NEVER / 2), advantages, 0.0)
        average = advantages.sum(2, keepdim=True) / mask.sum(2, keepdim=True)
        value = self.value(self.cluster(request, instances))[:, :, None]
        return torch.where(mask, value + advantages - average, NEVER)

    def forward(self, request: Tensor, instances: Tensor) -> Tensor:
        """[B, N], means of the quantiles."""
        return self.quantiles(request, instances).mean(1)


class _InstanceQNetwork(QNetwork):
    def __init__(self, *, choices: dict[str, Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.q_net = InstanceValues(**choices)  # type: ignore[assignment]

    def forward(self, observation: Any) -> Tensor:
        values: Tensor = self.q_net(*self.extract_features(observation, self.features_extractor))
        return values


class _InstanceQuantileNetwork(QuantileNetwork):
    def __init__(self, *, choices: dict[str, Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.quantile_net = InstanceValues(self.n_quantiles, **choices)  # type: ignore[assignment]

    def forward(self, observation: Any) -> Tensor:
        request, instances = self.extract_features(observation, self.features_extractor)
        net = cast(InstanceValues, self.quantile_net)
        return net.quantiles(request, instances)


class _InstanceQPolicy(BasePolicy):
    """What both policies share.

    Args:
        observation_space, action_space, lr_schedule: given by the algorithm.
        hidden, prior, attention: as for `InstanceValues`.
        settings: as for `DQNPolicy`; `net_arch` has no effect.

    Raises:
        ValueError: requests may be rejected, which these values have no column for.
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
        if rejects(observation_space, action_space):
            raise ValueError("allow_reject: found True, Q policies score instances only")
        self.choices = {"hidden": hidden, "prior": prior, "attention": attention}
        settings["features_extractor_class"] = InstanceTable
        super().__init__(observation_space, action_space, lr_schedule, **settings)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | self.choices

    def _network_settings(self) -> dict[str, Any]:
        net_args: Any = self.net_args
        return self._update_features_extractor(net_args) | {"choices": self.choices}


class InstanceQPolicy(_InstanceQPolicy, DQNPolicy):
    """Action values for Stable-Baselines3's DQN."""

    def make_q_net(self) -> QNetwork:
        """One of the two networks."""
        return _InstanceQNetwork(**self._network_settings()).to(self.device)

    @property
    def scorer(self) -> InstanceValues:
        """What `LearnedRouter` routes by."""
        return cast(InstanceValues, self.q_net.q_net)


class InstanceQuantilePolicy(_InstanceQPolicy, QRDQNPolicy):
    """Quantiles of action values for sb3-contrib's QRDQN."""

    def make_quantile_net(self) -> QuantileNetwork:
        """One of the two networks."""
        return _InstanceQuantileNetwork(**self._network_settings()).to(self.device)

    @property
    def scorer(self) -> InstanceValues:
        """What `LearnedRouter` routes by."""
        return cast(InstanceValues, self.quantile_net.quantile_net)
