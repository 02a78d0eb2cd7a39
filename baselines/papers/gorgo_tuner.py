"""GORGO's tuner: a (1+1)-evolution strategy that moves the weights while requests are served.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §8.6; read in and checked with gorgo-lb 0.2.0,
`gorgo/tuner.py` (`OnlineTuner` in its mode online-es and the `GaussianESTuner` that it makes).

Every `hop_size` ended requests, once there were `window_size`, the weights in use are judged by the
last `window_size` requests and replaced:

    judged better than the best weights so far if score > best_score · (1 + 0.005)
    next weights = best · exp(sigma · N(0, 1)) for each weight by itself, within 1e-5 to 5
    over the last 8 judgements: sigma / 0.817 if more than a fifth were better, · 0.817 if fewer

The first judgement is of the weights it starts with. sigma starts at 0.5; below 0.05, or after
10,000 judgements, the best weights stay for good. Scores are negative, so the tolerance works the
wrong way round: weights that are up to 0.5 % worse count as better. It is kept as it is.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.memory import widened
from prefixgym.envs.rng import uniform
from prefixgym.envs.view.view import ENDED, FIRST_TOKEN, View

OBJECTIVES = (
    "neg_p50_ttft",
    "neg_p95_ttft",
    "neg_p99_ttft",
    "neg_avg_ttft",
    "neg_p95_e2e",
    "neg_p99_e2e",
)
"""What a window can be judged by: less a percentile or the mean of its TTFTs or durations."""

_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_MEAN = -1.0

_LEAST, _MOST = 1e-5, 5.0
_FIRST_SIGMA, _LAST_SIGMA, _SIGMA_DECAY = 0.5, 0.05, 0.817
_JUDGEMENTS, _TARGET, _TOLERANCE, _MOST_STEPS = 8, 0.2, 0.005, 10_000

_FLIGHT = np.dtype([("routed", np.float64), ("ttft", np.float64)], align=True)
_NO_ANSWER = -1.0

_SEARCH = np.dtype(
    [
        ("samples", np.int64),  # requests that have ended
        ("fresh", np.int64),  # of those, since the weights last changed
        ("converged", np.int64),
        ("judged", np.int64),  # judgements, the first included
        ("best_score", np.float64),
        ("sigma", np.float64),
        ("outcomes", np.int64),  # bit k: whether the judgement before the last k was better
        ("draws", np.int64),
    ],
    align=True,
)


class WeightTuner:
    """One search for each of E environments over W weights.

    Attributes:
        weights: those in use, [E, W].
    """

    def __init__(
        self,
        keys: NDArray[np.uint64],
        weights: Sequence[float],
        tuned: Sequence[int],
        objective: str,
        window_size: int,
        hop_size: int,
    ) -> None:
        """Start from `weights`; only those with their index in `tuned` are moved, in that order."""
        num_envs = len(keys)
        self.weights = np.tile(np.array(weights, np.float64), (num_envs, 1))
        self._keys = keys
        self._tuned = np.array(tuned, np.int64)
        self._best = self.weights.copy()
        self._best[:, self._tuned] = np.clip(self._best[:, self._tuned], _LEAST, _MOST)
        self._search = np.zeros(num_envs, _SEARCH)
        self._search["sigma"] = _FIRST_SIGMA
        self._hop_size = hop_size
        _, statistic, measure = objective.split("_")
        self._of_ttft = measure == "ttft"
        self._quantile = _QUANTILES.get(statistic, _MEAN)
        self._window = np.empty((num_envs, window_size))
        self._flights = np.empty((num_envs, 0), _FLIGHT)

    def hear(self, view: View) -> None:
        """Take in answers and ends; change the weights when it is time."""
        _hear(
            view.events,
            view.num_events,
            self._flights,
            self._window,
            self._search,
            self._hop_size,
            self._of_ttft,
            self._quantile,
            self._keys,
            self._tuned,
            self._best,
            self.weights,
        )

    def book(self, view: View) -> None:
        """Remember when the current requests were routed."""
        if self._flights.shape[1] < view.num_slots:
            self._flights = widened(self._flights, view.num_slots)
        rows = np.arange(view.num_envs), view.requests["slot"]
        self._flights["routed"][rows] = view.requests["time"]
        self._flights["ttft"][rows] = _NO_ANSWER


@kernel
def _hear(
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    flights: NDArray[np.void],
    window: NDArray[np.float64],
    searches: NDArray[np.void],
    hop_size: int,
    of_ttft: bool,
    quantile: float,
    keys: NDArray[np.uint64],
    tuned: NDArray[np.int64],
    best: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> None:
    window_size = window.shape[1]
    for e in range(len(num_events)):
        search = searches[e]
        for k in range(num_events[e]):
            event = events[e, k]
            flight = flights[e, event["slot"]]
            if event["kind"] == FIRST_TOKEN:
                flight["ttft"] = event["time"] - flight["routed"]
            # A request that ended without an answer failed, and failures are no samples.
            elif event["kind"] == ENDED and flight["ttft"] != _NO_ANSWER:
                duration = event["time"] - flight["routed"]
                sample = flight["ttft"] if of_ttft else duration
                window[e, search["samples"] % window_size] = sample
                search["samples"] += 1
                search["fresh"] += 1
                due = search["fresh"] >= hop_size and search["samples"] >= window_size
                if due and not search["converged"]:
                    score = -_statistic(window[e], quantile)
                    _judge(search, score, best[e], weights[e])
                    _propose(search, keys[e], tuned, best[e], weights[e])
                    search["fresh"] = 0


@kernel
def _statistic(window: NDArray[np.float64], quantile: float) -> float:
    if quantile == _MEAN:
        return float(np.sum(window) / len(window))
    return float(np.sort(window)[int(np.rint(quantile * (len(window) - 1)))])


@kernel
def _judge(
    search: Record, score: float, best: NDArray[np.float64], weights: NDArray[np.float64]
) -> None:
    search["judged"] += 1
    if search["judged"] == 1:
        search["best_score"] = score
        return
    better = score > search["best_score"] * (1.0 + _TOLERANCE)
    if better:
        search["best_score"] = score
        best[:] = weights
    search["outcomes"] = (search["outcomes"] << 1) | int(better)
    if search["judged"] > _JUDGEMENTS:
        successes = 0
        for k in range(_JUDGEMENTS):
            successes += (search["outcomes"] >> k) & 1
        if successes / _JUDGEMENTS > _TARGET:
            search["sigma"] /= _SIGMA_DECAY
        else:
            search["sigma"] *= _SIGMA_DECAY  # eighths: never the target itself


@kernel
def _propose(
    search: Record,
    key: np.uint64,
    tuned: NDArray[np.int64],
    best: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> None:
    weights[:] = best
    if search["judged"] > _MOST_STEPS or search["sigma"] < _LAST_SIGMA:
        search["converged"] = 1
        return
    for w in tuned:
        step = search["sigma"] * normal(key, search["draws"])
        search["draws"] += 1
        weights[w] = max(_LEAST, min(_MOST, math.exp(math.log(best[w]) + step)))


@kernel
def normal(key: np.uint64, counter: int) -> float:
    """The `counter`-th number of a stream of N(0, 1), by Box and Muller."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(key, 2 * counter)))
    return radius * math.cos(2.0 * math.pi * uniform(key, 2 * counter + 1))
