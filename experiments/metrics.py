"""What one episode is judged by, from its requests' outcomes and its instances' totals.

Every request that arrived counts in `attainment`, `goodput`, `worst_sessions` and `worst_class`: a
rejected one is a miss. Latencies and hit rates are over finished requests, which alone have them;
`rejected` tells how many are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.slo import Slo

FINISHED = 0
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


def episode_metrics(
    outcomes: NDArray[np.void], totals: NDArray[np.void], slos: Sequence[Slo]
) -> EpisodeMetrics:
    """Metrics of one episode.

    Args:
        outcomes: OUTCOME records of all requests, shape [R].
        totals: INSTANCE_TOTALS records, shape [N].
        slos: the objectives that `outcomes["slo_class"]` indexes.
    """
    good = outcomes["good"] != 0
    finished = outcomes[outcomes["status"] == FINISHED]
    duration = float(outcomes["end"].max() - outcomes["arrival"].min())
    tpot = finished["tpot"][finished["output_tokens"] > 1]
    base, slope = np.array([(slo.ttft, slo.ttft_per_token) for slo in slos])[
        finished["slo_class"]
    ].T
    objective = base + slope * finished["prompt_tokens"]
    return EpisodeMetrics(
        requests=len(outcomes),
        attainment=float(good.mean()),
        goodput=float(good.sum()) / duration,
        throughput=len(finished) / duration,
        ttft_mean=_mean(finished["ttft"]),
        ttft_p50=_quantile(finished["ttft"], 0.50),
        ttft_p90=_quantile(finished["ttft"], 0.90),
        ttft_p99=_quantile(finished["ttft"], 0.99),
        tpot_mean=_mean(tpot),
        tpot_p99=_quantile(tpot, 0.99),
        tardiness=_mean(np.maximum(0.0, finished["ttft"] - objective)),
        hit_rate=_ratio(finished["hit_tokens"].sum(), finished["prompt_tokens"].sum()),
        imbalance=_ratio(totals["running_seconds"].max(), totals["running_seconds"].min()),
        worst_sessions=_worst_sessions(outcomes["session"], good),
        worst_class=float(_shares_of(outcomes["slo_class"], good)[0]),
        preemptions=float(totals["preemptions"].sum()) / len(outcomes),
        rejected=1.0 - len(finished) / len(outcomes),
    )


def _shares_of(group: NDArray[np.int32], good: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The attainment of each group of requests, ascending."""
    _, index, size = np.unique(group, return_inverse=True, return_counts=True)
    return np.sort(np.bincount(index, weights=good) / size)


def _worst_sessions(session: NDArray[np.int32], good: NDArray[np.bool_]) -> float:
    shares = _shares_of(session, good)
    return float(shares[: max(1, int(WORST_SHARE * len(shares)))].mean())


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else np.nan


def _quantile(values: NDArray[np.float64], share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else np.nan


def _ratio(numerator: float, denominator: float) -> float:
    if denominator == 0:
        return np.inf if numerator > 0 else np.nan
    return float(numerator / denominator)
