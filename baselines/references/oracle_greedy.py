"""Greedy with the true state and the true output lengths: each request for itself.

For every instance the simulation is forked, the request sent there, and the cluster left to itself
without further arrivals: queues, batches, remaining outputs and evictions come out as they truly
would. What the choice does to later requests is not looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.references.reference import Reference
from prefixgym.baselines.router import register
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.forks import Forks
from prefixgym.envs.view.view import View


@register
@dataclass
class OracleGreedy(Reference):
    """The instance where this request fares best if nothing else arrives.

    Best: least max(TTFT / objective, TPOT / objective) above 1, that is, in time if possible; among
    those in time the least TTFT; the first among equals. Where the request fails, it is never
    answered: that its client may send it again is not looked at either.
    """

    name = "oracle_greedy"
    source = "greedy, with a fork of the simulation for the prediction"
    family = "references"

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """One fork for each instance."""
        self._forks = Forks(self.watched, len(cluster.instances), record=True, see_truth=True)
        self._forks.restart()

    def route(self, view: View) -> NDArray[np.int64]:
        """Where the request's own outcome is best."""
        num_envs, num_instances = view.instances.shape
        running = np.repeat(~self.watched.done, num_instances)
        taken = running & view.available.ravel()
        self._forks.take(taken)
        forks = self._forks.simulation
        ended = forks.num_ended.copy()
        self._forks.close()
        forks.step(np.tile(np.arange(num_instances), num_envs))
        late = np.full(num_envs * num_instances, np.inf)
        ttft = np.full(num_envs * num_instances, np.inf)
        rows = np.repeat(self.watched.arrays.episodes["row"], num_instances)
        for k in np.flatnonzero(taken).tolist():
            outcomes = forks.outcomes(k)[ended[k] :]
            own_outcomes = outcomes[outcomes["row"] == rows[k]]
            if len(own_outcomes) == 0:
                continue
            (own,) = own_outcomes
            ttft[k] = own["ttft"] if np.isfinite(own["ttft"]) else np.inf
            request = view.requests[k // num_instances]
            worst = max(ttft[k] / request["slo_ttft"], own["tpot"] / request["slo_tpot"])
            late[k] = 0.0 if own["good"] else worst
        shape = (num_envs, num_instances)
        order = np.lexsort((ttft.reshape(shape), late.reshape(shape), ~view.available), axis=1)
        return order[:, 0].astype(np.int64)
