"""What one episode is judged by, from its requests' outcomes and its instances' totals.

Every request that arrived counts in `attainment`, `goodput`, `worst_sessions` and `worst_class`:
one that did not finish is a miss. Latencies and hit rates are over finished requests, which alone
have them; `rejected`, `failed` and `cancelled` tell how many are left out.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.state import CANCELLED, FAILED, FINISHED, REJECTED
from prefixgym.envs.slo import Slo
from prefixgym.experiments.samples import Sample, Values

_STATUSES = (FINISHED, REJECTED, FAILED, CANCELLED)
WORST_SHARE = 0.05


@dataclass(frozen=True)
class EpisodeMetrics:
    """One episode in numbers; times in seconds.

    Attributes:
        requests: requests that arrived.
        attainment: share of them with TTFT and mean TPOT within their objectives.
        goodput: requests/s that met their objectives, over the time from the first arrival to the
            last end, which is how vLLM's `bench serve --goodput` divides (`simulators.md` §5).
        throughput: finished requests/s over the same time.
        ttft_mean, ttft_p50, ttft_p90, ttft_p99: time to first token.
        tpot_mean, tpot_p99: mean time per output token of a request after its first, over requests
            with at least two output tokens.
        tardiness: mean over requests of max(0, TTFT − its objective): what is lost by sacrificing
            requests that are late anyway, which attainment alone would reward.
        hit_rate: prompt tokens found in the KV cache of the chosen instance / prompt tokens.
        imbalance: mean running requests of the busiest instance / of the idlest one; inf if one
            never ran any.
        worst_sessions: attainment within the 5 % of sessions (at least one) that fared worst.
        worst_class: attainment within the SLO class that fared worst; with one class, `attainment`.
        preemptions: preemptions per request.
        rejected: share of requests that were rejected.
        failed: share of requests that were lost with their instance, after all retries.
        cancelled: share of requests whose client went away.
        attempts: how often a request was sent, on average.
    """

    requests: int
    attainment: float
    goodput: float
    throughput: float
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    tpot_mean: float
    tpot_p99: float
    tardiness: float
    hit_rate: float
    imbalance: float
    worst_sessions: float
    worst_class: float
    preemptions: float
    rejected: float
    failed: float
    cancelled: float
    attempts: float


def episode_metrics(
    outcomes: NDArray[np.void], totals: NDArray[np.void], slos: Sequence[Slo]
) -> EpisodeMetrics:
    """Metrics of one episode.

    Args:
        outcomes: OUTCOME records of all requests, shape [R].
        totals: INSTANCE_TOTALS records, shape [N].
        slos: the objectives that `outcomes["slo_class"]` indexes.
    """
    tally = EpisodeTally(slos)
    tally.add(outcomes)
    return tally.metrics(totals)


class EpisodeTally:
    """The outcomes of an episode, summed up as they come.

    Args:
        slos: the objectives that `outcomes["slo_class"]` indexes.
        new_sample: makes what keeps the latencies: `Values` keeps all and is exact; with
            `LogHistogram` the tally's size does not depend on the number of requests.
    """

    def __init__(self, slos: Sequence[Slo], new_sample: Callable[[], Sample] = Values) -> None:
        self._objectives = np.array([(slo.ttft, slo.ttft_per_token) for slo in slos])
        self._ttft, self._tpot, self._tardiness = (new_sample() for _ in range(3))
        self._requests = self._good = self._attempts = 0
        self._statuses = np.zeros(len(_STATUSES), np.int64)
        self._prompt_tokens = self._hit_tokens = 0
        self._begin, self._end = math.inf, -math.inf
        self._classes = np.zeros((2, len(slos)), np.int64)  # good, all
        self._sessions = _SessionShares()

    def add(
        self, outcomes: NDArray[np.void], open_sessions: NDArray[np.int32] | None = None
    ) -> None:
        """Count outcomes in.

        Args:
            outcomes: OUTCOME records, none of them counted before.
            open_sessions: sessions of which more may come, sorted; None: of any of them.
        """
        if len(outcomes) == 0:
            return
        good = outcomes["good"] != 0
        finished = outcomes[outcomes["status"] == FINISHED]
        self._requests += len(outcomes)
        self._good += int(good.sum())
        self._attempts += int(outcomes["attempts"].sum())
        self._statuses += np.bincount(outcomes["status"], minlength=len(_STATUSES))
        self._prompt_tokens += int(finished["prompt_tokens"].sum())
        self._hit_tokens += int(finished["hit_tokens"].sum())
        self._begin = min(self._begin, float(outcomes["arrival"].min()))
        self._end = max(self._end, float(outcomes["end"].max()))
        base, slope = self._objectives[finished["slo_class"]].T
        objective = base + slope * finished["prompt_tokens"]
        self._ttft.add(finished["ttft"])
        self._tpot.add(finished["tpot"][finished["output_tokens"] > 1])
        self._tardiness.add(np.maximum(0.0, finished["ttft"] - objective))
        for row, chosen in zip(self._classes, (good, slice(None)), strict=True):
            row += np.bincount(outcomes["slo_class"][chosen], minlength=len(row))
        self._sessions.add(outcomes["session"], good, open_sessions)

    def metrics(self, totals: NDArray[np.void]) -> EpisodeMetrics:
        """Metrics of all that was counted in.

        Args:
            totals: INSTANCE_TOTALS records, shape [N].
        """
        duration = self._end - self._begin
        _, rejected, failed, cancelled = self._statuses / self._requests
        class_good, class_size = self._classes[:, self._classes[1] > 0]
        return EpisodeMetrics(
            requests=self._requests,
            attainment=self._good / self._requests,
            goodput=self._good / duration,
            throughput=float(self._statuses[FINISHED]) / duration,
            ttft_mean=self._ttft.mean(),
            ttft_p50=self._ttft.quantile(0.50),
            ttft_p90=self._ttft.quantile(0.90),
            ttft_p99=self._ttft.quantile(0.99),
            tpot_mean=self._tpot.mean(),
            tpot_p99=self._tpot.quantile(0.99),
            tardiness=self._tardiness.mean(),
            hit_rate=_ratio(self._hit_tokens, self._prompt_tokens),
            imbalance=_ratio(totals["running_seconds"].max(), totals["running_seconds"].min()),
            worst_sessions=self._sessions.worst(WORST_SHARE),
            worst_class=float((class_good / class_size).min()),
            preemptions=float(totals["preemptions"].sum()) / self._requests,
            rejected=float(rejected),
            failed=float(failed),
            cancelled=float(cancelled),
            attempts=self._attempts / self._requests,
        )


class _SessionShares:
    """The attainment of each session.

    Of sessions that are over, only how many had g good ones of n requests, for each (g, n): its
    size is that of the open sessions, and at most the square of the longest one.
    """

    def __init__(self) -> None:
        self._open = np.empty(0, np.int32)
        self._counts = np.empty((0, 2), np.int64)  # good, all
        self._over: Counter[tuple[int, int]] = Counter()

    def add(
        self,
        session: NDArray[np.int32],
        good: NDArray[np.bool_],
        still_open: NDArray[np.int32] | None,
    ) -> None:
        known = len(self._open)
        ids, index = np.unique(np.concatenate([self._open, session]), return_inverse=True)
        counts = np.zeros((len(ids), 2), np.int64)
        counts[index[:known]] = self._counts
        counts[:, 0] += np.bincount(index[known:], weights=good, minlength=len(ids)).astype(int)
        counts[:, 1] += np.bincount(index[known:], minlength=len(ids))
        over = np.zeros(len(ids), np.bool_) if still_open is None else ~np.isin(ids, still_open)
        self._over += _tally(counts[over])
        self._open, self._counts = ids[~over], counts[~over]

    def worst(self, share: float) -> float:
        """Mean attainment of this share of the sessions, at least one: those that fared worst."""
        found = self._over + _tally(self._counts)
        pairs = sorted(found, key=lambda pair: pair[0] / pair[1])
        attainment = np.array([good / size for good, size in pairs])
        sessions = np.array([found[pair] for pair in pairs])
        wanted = max(1, int(share * sessions.sum()))
        taken = np.diff(np.minimum(np.cumsum(sessions), wanted), prepend=0)
        return float((attainment * taken).sum() / wanted)


def _tally(pairs: NDArray[np.int64]) -> Counter[tuple[int, int]]:
    """How often each row of `pairs` [K, 2] is there."""
    base = int(pairs.max(initial=0)) + 1
    found, times = np.unique(pairs[:, 0] * base + pairs[:, 1], return_counts=True)
    return Counter(
        {divmod(pair, base): n for pair, n in zip(found.tolist(), times.tolist(), strict=True)}
    )


def _ratio(numerator: float, denominator: float) -> float:
    if denominator == 0:
        return np.inf if numerator > 0 else np.nan
    return float(numerator / denominator)
