"""A plain network over the whole observation: what one tries first, kept to compare with.

It learns every instance anew, knows nothing of their order and serves one number of them; compare
`prefixgym.agents.scorer`.
"""

import torch
from torch import Tensor, nn

from prefixgym.agents.scorer import NEVER, available
from prefixgym.envs.observation import INSTANCE_FIELDS, REQUEST_FIELDS


class FlatScorer(nn.Module):
    """A score for each of N instances from two hidden layers over all columns side by side.

    Args:
        num_instances: N.
        hidden: units of each hidden layer.
    """

    def __init__(self, num_instances: int, hidden: int = 64) -> None:
        super().__init__()
        if num_instances < 1 or hidden < 1:
            raise ValueError(
                f"num_instances, hidden: found {num_instances}, {hidden}, must be at least 1"
            )
        self.num_instances, self.hidden = num_instances, hidden
        inputs = num_instances * len(INSTANCE_FIELDS) + len(REQUEST_FIELDS)
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, num_instances),
        )

    def forward(self, request: Tensor, instances: Tensor) -> Tensor:
        """Scores [B, N] of request [B, R] and instances [B, N, F]; NEVER where unavailable.

        Raises:
            ValueError: another number of instances than it was made for.
        """
        if instances.shape[1] != self.num_instances:
            raise ValueError(
                f"instances: found {instances.shape[1]}, this flat network is for "
                f"{self.num_instances} only"
            )
        # Stable-Baselines3 puts a dict's parts in the order of their names.
        scores: Tensor = self.layers(torch.cat([instances.flatten(1), request], 1))
        return scores.masked_fill(~available(instances), NEVER)
