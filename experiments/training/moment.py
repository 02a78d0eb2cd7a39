"""One decision that is kept, and what would be observed if it were a little different."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from prefixgym.agents.learned_router import Observer
from prefixgym.envs.view.view import View


@dataclass(frozen=True)
class Moment:
    """One environment's decision.

    Attributes:
        view: of one environment, its requests and instances copied.
    """

    view: View

    @classmethod
    def of(cls, view: View, env: int) -> Self:
        """The decision of this environment."""
        one = slice(env, env + 1)
        return cls(
            dataclasses.replace(
                view, requests=view.requests[one].copy(), instances=view.instances[one].copy()
            )
        )

    @property
    def instances(self) -> NDArray[np.void]:
        """INSTANCE_VIEW records, [N]."""
        rows: NDArray[np.void] = self.view.instances[0]
        return rows

    @property
    def prompt_tokens(self) -> int:
        """Of the request in hand."""
        return int(self.view.requests["prompt_tokens"][0])

    @property
    def slo_ttft(self) -> float:
        """Its objective for the first token, s."""
        return float(self.view.requests["slo_ttft"][0])

    def varied(
        self, instance: int, hit: NDArray[np.float64], backlog: NDArray[np.float64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Observations if one instance held other shares of the prompt and had other queues.

        What is observed of hits and queues follows; its prefill falls in proportion to the tokens
        that are left. All else stays as it was.

        Args:
            instance: which one.
            hit: cached shares of the prompt, [B], below 1.
            backlog: prefill booked ahead, s, [B].

        Returns:
            request [B, R] and instances [B, N, F].
        """
        count = len(hit)
        requests = np.repeat(self.view.requests, count)
        instances = np.repeat(self.view.instances, count, 0)
        row = instances[:, instance]
        left = self.prompt_tokens - row["hit_tokens"]
        per_token = row["prefill_seconds"] / left
        row["hit_tokens"] = np.minimum(hit * self.prompt_tokens, self.prompt_tokens - 1)
        row["prefill_seconds"] = per_token * (self.prompt_tokens - row["hit_tokens"])
        row["backlog_seconds"] = backlog
        observe = Observer(self.view.cluster, count)
        return observe(dataclasses.replace(self.view, requests=requests, instances=instances))


def typical(moments: Sequence[Moment], observed: NDArray[np.float64]) -> Moment:
    """The moment whose observation, a row of `observed` [D, C], is nearest to all columns' medians.

    Near is the sum of the columns' distances, since all of them lie in [0, 1].
    """
    distance = np.abs(observed - np.median(observed, axis=0)).sum(1)
    return moments[int(distance.argmin())]
