"""Looks on while a router plays episodes and notes what its decisions were between."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.view.view import View
from prefixgym.experiments.explain.popularity import CLASSES, Popularity, copies_by_class


@dataclass(frozen=True)
class Decisions:
    """D decisions of one router on N instances. All is as the router was told.

    *Hot* is the instance with the longest cached prefix, of several the one with the soonest
    predicted first token. Predicted TTFT is backlog + prefill, as `min_ttft` has it.

    Attributes:
        hit: share of the prompt that the hot instance has cached, [D].
        excess: its predicted TTFT − the least one, as a share of the request's objective, [D].
        left: whether an instance with a shorter prefix was chosen, [D].
        rank_ttft: available instances with a sooner predicted first token than the chosen one, [D].
        rank_requests: available instances with fewer requests in flight than the chosen one, [D].
        load: requests in flight on the available instances, busiest first, then nan, [D, N].
        copies: sum of the instances that hold a prefix, by class of its popularity, [CLASSES].
        looks: how many prefixes these are sums over, [CLASSES].
    """

    hit: NDArray[np.float64]
    excess: NDArray[np.float64]
    left: NDArray[np.bool_]
    rank_ttft: NDArray[np.int64]
    rank_requests: NDArray[np.int64]
    load: NDArray[np.float64]
    copies: NDArray[np.float64]
    looks: NDArray[np.int64]


class Watcher:
    """To be told of every decision (`prefixgym.experiments.evaluate.OnDecision`).

    Requests that are rejected, or come when no instance is available, are passed over.
    """

    def __init__(self) -> None:
        self._batches: list[tuple[NDArray[np.generic], ...]] = []
        self._popularity: dict[int, Popularity] = {}
        self._copies = np.zeros(CLASSES)
        self._looks = np.zeros(CLASSES, np.int64)

    def __call__(self, view: View, chosen: NDArray[np.int64], going: NDArray[np.bool_]) -> None:
        """A decision in each environment whose episode is not over."""
        for e in np.flatnonzero(going):
            self._look_at_copies(view, int(e))
        seen = going & (chosen < view.instances.shape[1]) & view.available.any(1)
        rows, choice = view.instances[seen], chosen[seen][:, None]
        requests, available = view.requests[seen], rows["available"] != 0
        hit = np.where(available, rows["hit_tokens"], -1)
        ttft = np.where(available, rows["backlog_seconds"] + rows["prefill_seconds"], np.inf)
        in_flight = np.where(available, rows["requests"], np.nan)
        longest = hit.max(1)
        of_hot = np.where(hit == longest[:, None], ttft, np.inf).min(1)
        self._batches.append(
            (
                longest / requests["prompt_tokens"],
                (of_hot - ttft.min(1)) / requests["slo_ttft"],
                np.take_along_axis(hit, choice, 1)[:, 0] < longest,
                (ttft < np.take_along_axis(ttft, choice, 1)).sum(1),
                (in_flight < np.take_along_axis(in_flight, choice, 1)).sum(1),
                -np.sort(-in_flight, axis=1),
            )
        )

    def _look_at_copies(self, view: View, env: int) -> None:
        request = view.requests[env]
        ids = view.block_ids[env, : request["num_blocks"]]
        asked = self._popularity.setdefault(env, Popularity()).ask(float(request["time"]), ids)
        hits = view.instances[env]["hit_tokens"][view.available[env]]
        tokens, block_size = int(request["prompt_tokens"]), view.cluster.block_size
        for found, copies in copies_by_class(asked, hits, tokens, block_size):
            self._copies[found] += copies
            self._looks[found] += 1

    def decisions(self) -> Decisions:
        """All that was seen."""
        columns: list[Any] = [np.concatenate(p) for p in zip(*self._batches, strict=True)]
        hit, excess, left, rank_ttft, rank_requests, load = columns
        return Decisions(
            hit, excess, left, rank_ttft, rank_requests, load, self._copies, self._looks
        )
