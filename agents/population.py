"""Many members of one family of routers at once, each in environments of its own.

Evolution compares members. Played as one batch, M members cost what one does in as many
environments; on the same episodes they differ by nothing but their parameters.

Shapes: M members, P parameters, K episodes, E = M·K environments. Member m routes environments
m·K … m·K + K − 1.
"""

import copy
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, vmap

from prefixgym.agents.learned_router import LearnedRouter, Observer
from prefixgym.agents.linear_score import (
    WEIGHED_COLUMNS,
    LinearScore,
    highest_score,
    linear_score,
    weight_row,
)
from prefixgym.agents.scorer import InstanceScorer
from prefixgym.baselines.router import Router
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.observation import instance_constants
from prefixgym.envs.view.view import View


class Population(Router):
    """A router of E environments that is M routers.

    Attributes:
        members: parameters, float64 [M, P]; may be replaced between episodes.
    """

    source = "trained in this environment (rl.md §5)"
    family = "learned"
    knows = ("index", "ledger", "telemetry")

    def __init__(self, members: NDArray[np.float64]) -> None:
        self.members = members

    @property
    def origin(self) -> NDArray[np.float64]:
        """Parameters [P] to start a search from."""
        raise NotImplementedError

    def router(self, member: NDArray[np.float64]) -> Router:
        """A router of its own with the parameters [P]."""
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """Tells populations apart that start elsewhere."""
        return hashlib.sha256(self.origin.tobytes()).hexdigest()[:12]

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing is remembered, but there must be as many environments for each member."""
        if len(seeds) % len(self.members) != 0:
            raise ValueError(
                f"seeds: found {len(seeds)}, must be a multiple of the {len(self.members)} members"
            )


class LinearPopulation(Population):
    """Linear scores: a member's parameters are the weights of `WEIGHED_COLUMNS`.

    Args:
        prior: weights by column to start from.
        members: by default one, the prior.
    """

    name = "linear_population"

    def __init__(self, prior: dict[str, float], members: NDArray[np.float64] | None = None) -> None:
        self._prior = np.array([prior[column] for column in WEIGHED_COLUMNS])
        super().__init__(self._prior[None] if members is None else members)

    @property
    def origin(self) -> NDArray[np.float64]:
        """The prior's weights."""
        return self._prior.copy()

    def router(self, member: NDArray[np.float64]) -> LinearScore:
        """A linear score with these weights."""
        return linear_score(self._weights(member))

    def _weights(self, member: NDArray[np.float64]) -> dict[str, float]:
        return dict(zip(WEIGHED_COLUMNS, member.tolist(), strict=True))

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Members become rows over all instance columns."""
        super().reset(cluster, seeds)
        self._constants = instance_constants(cluster)
        self._rows = np.array([weight_row(self._weights(member)) for member in self.members])

    def route(self, view: View) -> NDArray[np.int64]:
        """Highest score, lowest index among equals."""
        return highest_score(view, self._constants, self._rows)


class NetworkPopulation(Population):
    """Networks of one shape: a member's parameters are all of `scorer`'s, one after the other.

    All members are evaluated in one call of PyTorch, whatever their number.

    Args:
        scorer: the shape, and the origin of the search.
        members: by default one, the scorer as it is.
    """

    name = "network_population"

    def __init__(self, scorer: InstanceScorer, members: NDArray[np.float64] | None = None) -> None:
        self.scorer = scorer
        self._shapes = {name: p.shape for name, p in scorer.named_parameters()}
        super().__init__(self.origin[None] if members is None else members)

    @property
    def origin(self) -> NDArray[np.float64]:
        """The scorer's own parameters."""
        flat = torch.cat([p.detach().flatten() for p in self.scorer.parameters()])
        found: NDArray[np.float64] = flat.numpy().astype(np.float64)
        return found

    @property
    def digest(self) -> str:
        """The linear score that they correct counts as well."""
        prior = self.scorer.prior
        fixed = b"" if prior is None else prior.numpy().tobytes()
        return hashlib.sha256(self.origin.tobytes() + fixed).hexdigest()[:12]

    def _tensors(self, members: NDArray[np.float64]) -> dict[str, Tensor]:
        """Parameters [M, P] as the scorer's own, each [M, …] float32."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        parts = torch.split(torch.from_numpy(members.astype(np.float32)), sizes, 1)
        shapes = self._shapes.items()
        return {
            name: part.reshape(-1, *shape).clone()  # see `route`
            for (name, shape), part in zip(shapes, parts, strict=True)
        }

    def network(self, member: NDArray[np.float64]) -> InstanceScorer:
        """A scorer with the parameters [P]."""
        network = copy.deepcopy(self.scorer)
        state = {name: tensor[0] for name, tensor in self._tensors(member[None]).items()}
        network.load_state_dict(state, strict=False)  # the prior is no parameter
        return network

    def router(self, member: NDArray[np.float64]) -> LearnedRouter:
        """A router with such a scorer."""
        return LearnedRouter(self.network(member))

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Members become stacked parameters."""
        super().reset(cluster, seeds)
        self._stacked = self._tensors(self.members)
        self._observe = Observer(cluster, len(seeds))

    def route(self, view: View) -> NDArray[np.int64]:
        """Highest score, lowest index among equals."""
        blocks = [
            torch.from_numpy(rows).reshape(len(self.members), -1, *rows.shape[1:])
            for rows in self._observe(view)
        ]
        with torch.no_grad():
            scores: Tensor = vmap(self._scores)(self._stacked, *blocks)
        chosen: NDArray[np.int64] = scores.flatten(0, 1).numpy().argmax(1)
        return chosen

    def _scores(self, parameters: dict[str, Tensor], requests: Tensor, instances: Tensor) -> Any:
        return functional_call(self.scorer, parameters, (requests, instances))
