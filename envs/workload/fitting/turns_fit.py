"""How long conversations are and how long they pause, from a window that cuts them off.

Of a request without a follow-up one cannot say whether it was the last of its session or whether
the next comes after the end of the trace. So turns and gaps are fitted together, by likelihood:
turn k is followed by another with probability p_k. A follow-up seen contributes p_k to the
likelihood, a turn with none c seconds before the end 1 − p_k F(c): it was the last, or its gap is
longer than c. F, the distribution of gaps, has every gap g that was seen in it, weighed by one over
the share of the turns that came g or more before the end: the others could not have shown it. In a
trace hardly longer than its gaps little is known of either; there weights of at most ten, and a
weak prior around α = 2, β = 1, keep the fit from inventing what the end may have cut off.

p_k = (β + k − 1) / (α + β + k − 1): each session has a constant chance to go on, which differs
between sessions as a Beta(β, α). The longer one lasts the likelier it goes on, and the number of
turns has a power-law tail, as in Mooncake's conversations (`traces.md` §3.6: 75 % one turn, p99 7,
longest 43).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtr

from prefixgym.envs.workload.distributions import Empirical, LogNormal
from prefixgym.envs.workload.durations import Duration
from prefixgym.envs.workload.fitting.length_fit import CLOSE_ENOUGH, LEVELS
from prefixgym.envs.workload.lengths import Length

_LEAST_GAP = 1e-3
_MOST_TURNS = 64
_SINGLE_TURNS = 10
_MOST_WEIGHT = 10.0
_PRIOR = np.log([2.0, 1.0])  # of ln α and ln β, each with a standard deviation of 1


@dataclass(frozen=True)
class TurnsFit:
    """Turns of sessions and the gaps between them.

    Attributes:
        alpha, beta: of the Beta distribution of a session's chance to go on (β, α).
        turns: requests of a session.
        gap: s before a follow-up; what the end of the window cut off is counted in.
        gap_family: what `gap` is, in words.
        gap_distance: Kolmogorov-Smirnov, of `gap` from the weighed gaps.
    """

    alpha: float
    beta: float
    turns: Length
    gap: Duration
    gap_family: str
    gap_distance: float


def fit_turns(
    turn: NDArray[np.int64],
    gap: NDArray[np.float64],
    left: NDArray[np.float64],
    most_turns: int,
) -> TurnsFit:
    """Fit to turns of sessions that begin within the window.

    Args:
        turn: number of each turn in its session, from 1 on, [n].
        gap: s to its follow-up, nan if none was seen, [n].
        left: s from the turn to the end of the window, [n].
        most_turns: the longest session seen; fitted ones may have twice as many, at least 64.

    Raises:
        ValueError: fewer than two turns were followed by another, so that gaps have no spread.
    """
    seen = ~np.isnan(gap)
    if np.count_nonzero(seen) < 2:
        raise ValueError("turns: found fewer than two follow-ups, too few to fit gaps to")
    gaps = np.sort(gap[seen])
    could_show = len(left) - np.searchsorted(np.sort(left), gaps)
    share = np.cumsum(len(left) / np.maximum(could_show, len(left) / _MOST_WEIGHT))
    share /= share[-1]
    shown = np.interp(left[~seen], gaps, share, left=0.0, right=1.0)

    def loss(parameters: NDArray[np.float64]) -> float:
        alpha, beta = np.exp(parameters)
        p = (beta + turn - 1) / (alpha + beta + turn - 1)
        likelihood = np.log(p[seen]).sum() + np.log1p(-p[~seen] * shown).sum()
        return float(0.5 * np.sum((parameters - _PRIOR) ** 2) - likelihood) / len(turn)

    best = minimize(loss, _PRIOR, method="Nelder-Mead").x
    alpha, beta = np.exp(best).tolist()
    turns = beta_geometric(alpha, beta, max(_MOST_TURNS, 2 * most_turns))
    return TurnsFit(alpha, beta, turns, *fit_gap(gaps, share))


def fit_gap(gaps: NDArray[np.float64], share: NDArray[np.float64]) -> tuple[Duration, str, float]:
    """A lognormal if it is within 3 % of the measured distribution, else its quantiles.

    Args:
        gaps: s, ascending, [n].
        share: of all gaps up to each of these, the last 1, [n].
    """
    logs = np.log(np.maximum(gaps, _LEAST_GAP))
    weights = np.diff(share, prepend=0.0)
    mean = float(weights @ logs)
    sigma = max(0.01, math.sqrt(float(weights @ (logs - mean) ** 2)))
    distance = float(np.max(np.abs(ndtr((logs - mean) / sigma) - (share - weights / 2))))
    if distance <= CLOSE_ENOUGH:
        return LogNormal(_digits(math.exp(mean)), _digits(sigma)), "lognormal", distance
    quantiles = np.interp(LEVELS, share, gaps)
    values = tuple(map(_digits, quantiles.tolist()))
    return Empirical(values, LEVELS), "measured quantiles", distance


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def beta_geometric(alpha: float, beta: float, high: int) -> Empirical:
    """The distribution with these p_k, cut at `high`, as quantiles.

    The first ten numbers have their exact probabilities; the tail has straight lines between
    numbers that grow by a quarter each, up to the share that the cut leaves at `high`.
    """
    k = np.arange(1, high)
    reach = np.cumprod((beta + k - 1) / (alpha + beta + k - 1))  # P(more than k turns)
    quantiles, levels = [1], [0.0]
    number = 1
    while number < high:
        level = float(f"{1 - reach[number - 1]:.6f}")
        if level > levels[-1] and level < 1:
            quantiles.append(number)
            levels.append(level)
            if number <= _SINGLE_TURNS and level + 1e-9 < 1:
                quantiles.append(number + 1)
                levels.append(float(f"{level + 1e-9:.9f}"))
        number = max(number + 1, round(1.25 * number)) if number >= _SINGLE_TURNS else number + 1
    below_high = float(f"{max(1 - reach[-1], levels[-1] + 1e-9):.9f}")
    if below_high < 1:
        quantiles.append(high)
        levels.append(below_high)
    return Empirical((*quantiles, high), (*levels, 1.0))
