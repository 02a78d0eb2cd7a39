"""The last decisions of all clusters, and what each of them has earned."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixgym.experiments.training.clusters import Played


class RolloutBuffer:
    """A window over the last L decisions of E clusters; row 0 holds the oldest.

    A request that ends pays the decision that routed it, if that is still here, else, and with
    credit other than `attributed` always, the last one made. Every request ends once, so that one
    can be taken from each payment: good ones then pay nothing and bad ones cost, which orders
    policies as before but hides when requests happen to end, a noise much larger than what there
    is to learn.

    Args:
        length: L.
        num_envs: E.
        request_columns, instance_shape: R and (N, F).
        attributed: pay the decision that routed a request.
        per_request: take one from each payment; needs the environment's attribution.
    """

    def __init__(
        self,
        length: int,
        num_envs: int,
        request_columns: int,
        instance_shape: tuple[int, int],
        *,
        attributed: bool,
        per_request: bool,
    ) -> None:
        steps = (length, num_envs)
        self.request = np.zeros((*steps, request_columns), np.float32)
        self.instances = np.zeros((*steps, *instance_shape), np.float32)
        self.action = np.zeros(steps, np.int64)
        self.log_probability = np.zeros(steps, np.float32)
        self.reward = np.zeros(steps)
        self.discount = np.zeros(steps)
        self._first = np.full(num_envs, length, np.int64)  # row of decision 0 of the episode
        self._attributed = attributed
        self._per_request = per_request
        self.filled = 0
        """Rows that hold decisions, the last ones."""

    def make_room(self, rows: int) -> None:
        """Forget the oldest `rows` rows, to `add` as many."""
        kept = len(self.action) - rows
        for array in self._arrays().values():
            array[:kept] = array[rows:]
        self.reward[kept:] = 0.0
        self._first -= rows
        self.filled = min(self.filled, kept)

    def add(
        self,
        row: int,
        seen: tuple[NDArray[np.float32], NDArray[np.float32]],
        action: NDArray[np.int64],
        log_probability: NDArray[np.float32],
        played: Played,
    ) -> None:
        """One decision of every cluster, [E], and what came of it, into a row from the end on."""
        self.request[row], self.instances[row] = seen
        self.action[row] = action
        self.log_probability[row] = log_probability
        self.discount[row] = played.discount
        self.filled += 1
        paid = played.attribution
        if paid is None:
            self.reward[row] += played.reward
        else:
            rows = np.full(len(paid.env), row)
            if self._attributed:
                routed = self._first[paid.env] + paid.decision
                rows = np.where(routed >= 0, routed, row)
            np.add.at(self.reward, (rows, paid.env), paid.units - float(self._per_request))
        self.begin(row + 1, played.ended)

    def begin(self, row: int, chosen: NDArray[np.bool_]) -> None:
        """Episodes begin in the chosen clusters, bool [E], with the decision of this row."""
        self.discount[row - 1, chosen] = 0.0
        self._first[chosen] = row

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "request": self.request,
            "instances": self.instances,
            "action": self.action,
            "log_probability": self.log_probability,
            "reward": self.reward,
            "discount": self.discount,
        }

    def state(self) -> dict[str, NDArray[Any]]:
        """All that `resume` needs."""
        return self._arrays() | {"first": self._first, "filled": np.array([self.filled])}

    def resume(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Hold what was held then."""
        for name, array in self._arrays().items():
            array[...] = state[name]
        self._first[:] = state["first"]
        self.filled = int(state["filled"][0])
