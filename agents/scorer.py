"""Networks that treat instances alike: a score for each, and a value of the whole cluster.

Nothing in routing depends on an instance's number, so a network need not learn it N times. One
encoder sees every instance beside the request; its embeddings are summarised over the instances
that are available, and each is judged beside that summary (Deep Sets, arXiv 1703.06114;
RLScheduler's kernel network, SC20). A plain network over the whole observation does not learn this
task (`rl.md` §5.2, §5.4).

Shapes: B observations, N instances, F instance columns, R request columns, H hidden units.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from prefixgym.envs.observation import INSTANCE_FIELDS, REQUEST_FIELDS

NEVER = -1e9
"""A score that no sampling picks; minus infinity would make an entropy NaN."""

COLUMNS = tuple(field.name for field in INSTANCE_FIELDS)
"""Names of the F instance columns."""

_AVAILABLE = COLUMNS.index("available")
_ROW = len(INSTANCE_FIELDS) + len(REQUEST_FIELDS)


def available(instances: Tensor) -> Tensor:
    """Which instances may be chosen, bool [B, N], from their columns [B, N, F]."""
    return instances[..., _AVAILABLE] > 0


class InstanceEncoder(nn.Module):
    """Each instance beside the request and a summary of all available ones, as H numbers.

    Args:
        hidden: H.
        attention: let available instances also look at each other (one head, as a residual).
    """

    def __init__(self, hidden: int, attention: bool = False) -> None:
        super().__init__()
        self.rows = linear(_ROW, hidden)
        self.attention = nn.ModuleList(linear(hidden, hidden, 1.0) for _ in range(3 * attention))
        self.together = linear(3 * hidden, hidden)

    def embed(self, request: Tensor, instances: Tensor) -> Tensor:
        """[B, N, H] of request [B, R] and instances [B, N, F], before any summary."""
        embedded = _beside(self.rows, instances, request).tanh()
        if len(self.attention) == 0:
            return embedded
        query, key, value = (layer(embedded) for layer in self.attention)
        weights = query @ key.transpose(1, 2) / query.shape[2] ** 0.5
        weights = weights.masked_fill(~available(instances)[:, None], NEVER).softmax(2)
        return embedded + weights @ value

    def forward(self, request: Tensor, instances: Tensor) -> Tensor:
        """[B, N, H]; rows of unavailable instances mean nothing and influence no other."""
        embedded = self.embed(request, instances)
        summary = summarised(embedded, available(instances))
        return _beside(self.together, embedded, summary).tanh()


def _beside(layer: nn.Linear, rows: Tensor, common: Tensor) -> Tensor:
    """A layer over rows [B, N, P], each followed by the same common [B, Q]: [B, N, H].

    The common part is multiplied once for all rows, which makes training twice as fast.
    """
    of_rows, of_common = layer.weight[:, : rows.shape[2]], layer.weight[:, rows.shape[2] :]
    return (
        functional.linear(rows, of_rows) + functional.linear(common, of_common, layer.bias)[:, None]
    )


def summarised(embedded: Tensor, chosen: Tensor) -> Tensor:
    """Mean and maximum over the chosen (bool [B, N]) of N embeddings, [B, 2H]; 0 if none is."""
    left_out = ~chosen[:, :, None]
    mean = embedded.masked_fill(left_out, 0.0).sum(1) / chosen.sum(1, keepdim=True).clamp(min=1)
    largest = embedded.masked_fill(left_out, NEVER).amax(1)
    return torch.cat([mean, largest.masked_fill(left_out.all(1), 0.0)], 1)


class InstanceScorer(nn.Module):
    """One score for every instance from one shared network: any N, in any order.

    Args:
        hidden: H.
        prior: weights [F] of a linear score over the instance columns. The network then learns
            what to add to it and starts at nothing: untrained, it decides as the linear score does.
        attention: as for `InstanceEncoder`.
    """

    prior: Tensor | None

    def __init__(
        self, hidden: int = 32, *, prior: Sequence[float] | None = None, attention: bool = False
    ) -> None:
        super().__init__()
        if hidden < 1:
            raise ValueError(f"hidden: found {hidden}, must be at least 1")
        if prior is not None and len(prior) != len(COLUMNS):
            raise ValueError(
                f"prior: found {len(prior)} weights, expected {len(COLUMNS)}: {', '.join(COLUMNS)}"
            )
        self.encoder = InstanceEncoder(hidden, attention)
        self.head = linear(hidden, 1, 0.01)  # nearly equal chances at first
        if prior is not None:
            nn.init.zeros_(self.head.weight)
        self.register_buffer("prior", None if prior is None else torch.tensor(list(prior)))

    def forward(self, request: Tensor, instances: Tensor) -> Tensor:
        """Scores [B, N] of request [B, R] and instances [B, N, F]; NEVER where unavailable."""
        return self.judge(self.encoder(request, instances), instances)

    def judge(self, encoded: Tensor, instances: Tensor) -> Tensor:
        """The same, of what `encoder` gave, [B, N, H]."""
        scores: Tensor = self.head(encoded).squeeze(2)
        if self.prior is not None:
            scores = scores + instances @ self.prior.to(scores.dtype)
        return scores.masked_fill(~available(instances), NEVER)


class ClusterEncoder(nn.Module):
    """The whole cluster and the request as H numbers, whatever the instances' order; for values."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.encoder = InstanceEncoder(hidden)
        self.together = nn.Sequential(linear(2 * hidden, hidden), nn.Tanh())

    def forward(self, request: Tensor, instances: Tensor) -> Tensor:
        """[B, H] of request [B, R] and instances [B, N, F]."""
        embedded = self.encoder(request, instances)
        together: Tensor = self.together(summarised(embedded, available(instances)))
        return together


def linear(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """A layer with orthogonal weights and biases of 0, as PPO's networks are usually started."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
