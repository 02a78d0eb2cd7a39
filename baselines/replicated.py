"""Several routers of one kind side by side, each of which decides for its share of the requests.

They are the processes of one deployment: the same parameters, the same hashes (a key has one home,
whoever is asked), and of random draws each its own, since these are numbered by the environment's
decisions and every decision is made once. (So `round_robin`, whose turns are those numbers, is one
sequence for all of them.) All else each has for itself: history, ledger, trees, what it learns.

What they may tell each other is part of the scenario, `knowledge.replicas`: `load_sync` exchanges
the ledger's columns of the view, `shared_index` what instances report; both are done before a
router is asked. `history_sync` is done here: what one has decided is told to the others so many
seconds later (`Router.overhear`), 0 before any other request. Routers that keep books of their own
(FlexLB, Dynamo, Preble and whoever else counts what `View.events` tells) hear of their own
requests only; no option changes that.
"""

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import NOWHERE, Router
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.view.knowledge import Replicas
from prefixgym.envs.view.view import View


@dataclass(frozen=True)
class _Decision:
    """One decision in each environment, on its way to one of the other routers."""

    requests: NDArray[np.void]  # REQUEST_VIEW [E]
    block_ids: NDArray[np.int64]  # [E, B]
    chosen: NDArray[np.int64]  # [E], NOWHERE for what went nowhere
    untold: NDArray[np.bool_]  # [E]: it has not arrived yet; each receiver's own


class Replicated(Router):
    """As many copies of a router as a scenario has.

    Decision number k reaches the same copy in every environment, so the environments have to be in
    step, as whole episodes are that are played together until the last has ended.

    Args:
        router: what there are copies of.
        replicas: how many, and when they learn of each other's decisions.
    """

    name = "replicated"
    source = "several gateways side by side (§1.13)"
    family = "replicas"

    def __init__(self, router: Router, replicas: Replicas) -> None:
        self.routers = [copy.deepcopy(router) for _ in range(replicas.count)]
        self._delay = replicas.history_sync

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Every copy forgets everything."""
        for router in self.routers:
            router.reset(cluster, seeds)
        self._num_instances = len(cluster.instances)
        self._decisions = 0
        self._last = np.full(len(seeds), -1, np.int64)
        self._on_their_way: list[deque[_Decision]] = [deque() for _ in self.routers]

    def route(self, view: View) -> NDArray[np.int64]:
        """The choice of the router that the requests have reached.

        Raises:
            ValueError: the environments are not in step.
        """
        active = self._active(view)
        replica = int(view.requests["replica"][active][0])
        self._tell(replica, view.requests["time"], active)
        chosen = self.routers[replica].route(view)
        if self._delay is not None:
            self._send(replica, view, chosen, active)
        return chosen

    def _active(self, view: View) -> NDArray[np.bool_]:
        """Environments whose episodes are not over, [E]: the others show their last decision."""
        numbers = view.requests["index"]
        active: NDArray[np.bool_] = numbers == self._decisions
        if not (active.any() and (active | (numbers == self._last)).all()):
            raise ValueError(
                f"environments: found at decisions {sorted(set(numbers.tolist()))}, all that are "
                f"not over must be at {self._decisions}: routers side by side are in step, which "
                "environments that start anew by themselves are not"
            )
        self._last = numbers.copy()
        self._decisions += 1
        return active

    def _send(
        self, sender: int, view: View, chosen: NDArray[np.int64], active: NDArray[np.bool_]
    ) -> None:
        requests, block_ids = view.requests.copy(), view.block_ids.copy()
        sent = np.where(chosen < self._num_instances, chosen, NOWHERE)
        for replica, queue in enumerate(self._on_their_way):
            if replica != sender:
                queue.append(_Decision(requests, block_ids, sent, active.copy()))

    def _tell(self, replica: int, now: NDArray[np.float64], active: NDArray[np.bool_]) -> None:
        """Tell a router what the others decided long enough ago; `now` in seconds, [E]."""
        queue, late = self._on_their_way[replica], []
        while queue:
            decision = queue.popleft()
            untold = decision.untold
            untold &= active
            due = untold & (decision.requests["time"] + self._delay <= now)
            if due.any():
                heard = np.where(due, decision.chosen, NOWHERE)
                self.routers[replica].overhear(decision.requests, decision.block_ids, heard)
                untold &= ~due
            if untold.any():
                late.append(decision)
                if (untold == active).all():
                    break  # nor is anything due that was decided after it
        queue.extendleft(reversed(late))


def side_by_side(router: Router, replicas: Replicas) -> Router:
    """As many copies of `router` as `replicas` says; itself if that is one.

    A reference, which sees the truth, is alone: it is no process that could know less.
    """
    if replicas.count == 1 or "truth" in router.knows:
        return router
    return Replicated(router, replicas)
