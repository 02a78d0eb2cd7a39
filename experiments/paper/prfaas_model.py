"""Prefill as a service: the capacity of two clusters, from what was published about them.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §6 (arXiv 2604.15039 v2). Requests whose prompt
is longer than a threshold t are prefilled in a remote cluster and their KV is sent over a link; the
others are prefilled where all are decoded:

    Θ_prfaas = min(N_prfaas / T_prefill(l_long), B_out / S_kv(l_long))
    Θ_pdp    = N_p / T_prefill(l_short)
    Θ_pdd    = N_d · BS_max / (T_decode · L_out)
    Λ_max    = min(Θ_prfaas / p, Θ_pdp / (1 − p), Θ_pdd),      p = P(l > t)

l_long and l_short are mean lengths above and below t. "K" is 1,024 in lengths and in the table, and
1,000 in thresholds, with which p is the published one.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]
"""What a prompt of so many tokens takes."""


@dataclass(frozen=True)
class Lengths:
    """Log-normal prompt lengths, truncated to [low, high] tokens.

    ln l ~ N(μ, σ²); mass and mean of an interval are those of the normal law:

        P(a < l ≤ b) ∝ Φ(β) − Φ(α),   E[l; a < l ≤ b] ∝ e^(μ + σ²/2) (Φ(β − σ) − Φ(α − σ))

    with α, β = (ln a − μ)/σ, (ln b − μ)/σ.
    """

    mu: float = 9.90
    sigma: float = 1.0
    low: float = 128.0
    high: float = 128.0 * 1024

    def share_above(self, threshold: float) -> float:
        """P(l > threshold)."""
        return self._mass(threshold, self.high) / self._mass(self.low, self.high)

    def mean(self, low: float | None = None, high: float | None = None) -> float:
        """Mean of the lengths in (low, high], by default of all; NaN if there are none."""
        a, b = max(low or self.low, self.low), min(high or self.high, self.high)
        mass = self._mass(a, b)
        if mass <= 0:
            return math.nan
        scale = math.exp(self.mu + self.sigma**2 / 2)
        shifted = ndtr(self._z(b) - self.sigma) - ndtr(self._z(a) - self.sigma)
        return float(scale * shifted / mass)

    def quantiles(self, shares: Floats) -> Floats:
        """The lengths that such shares of requests do not exceed; with uniform shares, a sample."""
        first, last = ndtr(self._z(self.low)), ndtr(self._z(self.high))
        found: Floats = np.exp(self.mu + self.sigma * ndtri(first + shares * (last - first)))
        return found

    def grid(self, points: int = 100_000) -> Floats:
        """Lengths of equal weight: sums over them are expectations."""
        return self.quantiles((np.arange(points) + 0.5) / points)

    def _z(self, length: float) -> float:
        return (math.log(length) - self.mu) / self.sigma

    def _mass(self, low: float, high: float) -> float:
        low, high = max(low, self.low), min(high, self.high)
        return float(ndtr(self._z(high)) - ndtr(self._z(low))) if high > low else 0.0


TOKENS = 1024.0 * np.array([1.0, 8.0, 32.0, 128.0])
KV_BYTES = 2.0**20 * np.array([190.8, 308.9, 701.3, 2316.3])
SECONDS = np.array([0.44, 0.72, 1.84, 7.40])
"""The published profile of the hybrid model on eight H200: KV and prefill time by tokens."""

INTERPOLATIONS = ("linear", "logarithmic", "monotone cubic")


def h200(interpolation: str = "linear") -> Curve:
    """Prefill seconds between the profile's four points; below the first, the first.

    Args:
        interpolation: "linear", "logarithmic" (linear in the logarithms) or "monotone cubic".
    """
    if interpolation == "linear":
        return lambda tokens: np.interp(tokens, TOKENS, SECONDS)
    if interpolation == "logarithmic":
        return lambda tokens: np.exp(np.interp(np.log(tokens), np.log(TOKENS), np.log(SECONDS)))
    if interpolation == "monotone cubic":
        cubic = PchipInterpolator(TOKENS, SECONDS)
        return lambda tokens: np.asarray(cubic(np.maximum(tokens, TOKENS[0])), np.float64)
    allowed = ", ".join(INTERPOLATIONS)
    raise ValueError(f"interpolation: found {interpolation!r}, allowed: {allowed}")


def kv_bytes(tokens: Floats) -> Floats:
    """S_kv: a fixed state and what grows with the tokens, linear between the profile's points."""
    found: Floats = np.interp(tokens, TOKENS, KV_BYTES)
    return found


@dataclass(frozen=True)
class Line:
    """T(l) = intercept + slope · l, in s and s a token: prefill on H20, which was not published.

    It is taken for linear because two figures are all there is to fit it to.
    """

    intercept: float
    slope: float

    @classmethod
    def through(cls, first: tuple[float, float], second: tuple[float, float]) -> "Line":
        """Through two points (tokens, s)."""
        slope = (second[1] - first[1]) / (second[0] - first[0])
        return cls(first[1] - slope * first[0], slope)

    def __call__(self, tokens: Floats) -> Floats:
        """Seconds of prefill."""
        found: Floats = self.intercept + self.slope * np.asarray(tokens)
        return found


@dataclass(frozen=True)
class Deployment:
    """Instances of eight GPUs by what they do.

    Attributes:
        remote: prefill in the remote cluster (H200).
        prefill, decode: in the local one (H20).
        bandwidth: of the link from the remote cluster, bytes/s.
    """

    remote: int
    prefill: int
    decode: int
    bandwidth: float = 100e9 / 8


@dataclass(frozen=True)
class Capacity:
    """What each part of a deployment carries, in requests/s of the whole traffic.

    Attributes:
        compute: N_prfaas / T_prefill(l_long) / p.
        link: B_out / S_kv(l_long) / p.
        prefill: Θ_pdp / (1 − p).
        decode: Θ_pdd.
        share: p, of requests that are prefilled remotely.
    """

    compute: float
    link: float
    prefill: float
    decode: float
    share: float

    @property
    def remote(self) -> float:
        """Θ_prfaas / p."""
        return min(self.compute, self.link)

    @property
    def total(self) -> float:
        """Λ_max."""
        return min(self.remote, self.prefill, self.decode)


@dataclass(frozen=True)
class Service:
    """How long requests take, wherever.

    Attributes:
        lengths: of the prompts.
        remote: prefill seconds in the remote cluster.
        local: prefill seconds in the local one.
        decode_rate: BS_max / (T_decode · L_out), requests/s that one decode instance ends.
        at_means: prefill times are taken at mean lengths, as in the source; otherwise averaged over
            lengths, which is what queues really have to carry: for convex curves, more.
    """

    lengths: Lengths
    remote: Curve
    local: Curve
    decode_rate: float = math.inf
    at_means: bool = True
    _grid: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_grid", self.lengths.grid())

    def capacity(self, deployment: Deployment, threshold: float) -> Capacity:
        """What a deployment carries with threshold t, in tokens."""
        share = self.lengths.share_above(threshold)
        compute = link = prefill = math.inf
        if share > 0:
            compute = deployment.remote / self._mean(self.remote, low=threshold) / share
            sent = float(kv_bytes(np.asarray(self.lengths.mean(low=threshold))))
            link = deployment.bandwidth / sent / share
        if share < 1:
            seconds = self._mean(self.local, high=threshold)
            prefill = deployment.prefill / seconds / (1 - share)
        return Capacity(compute, link, prefill, deployment.decode * self.decode_rate, share)

    def optimal_threshold(self, deployment: Deployment) -> float:
        """The t with Θ_prfaas/p = Θ_pdp/(1 − p): one rises with it, the other falls."""

        def excess(threshold: float) -> float:
            found = self.capacity(deployment, threshold)
            return 1 / found.remote - 1 / found.prefill

        return float(brentq(excess, 2 * self.lengths.low, 0.99 * self.lengths.high))

    def splits(self, remote: int, local: int) -> Iterator[tuple[Deployment, float, Capacity]]:
        """Every division of the local instances, each with its optimal threshold."""
        for prefill in range(1, local):
            deployment = Deployment(remote, prefill, local - prefill)
            threshold = self.optimal_threshold(deployment)
            yield deployment, threshold, self.capacity(deployment, threshold)

    def seconds(self, threshold: float, network: float = math.inf) -> Floats:
        """Times to the first token without any waiting, of equal weight.

        Args:
            threshold: t; 0 sends all to the remote cluster, inf none.
            network: bytes/s of the link that remote prefills go over.
        """
        away = self.remote(self._grid) + kv_bytes(self._grid) / network
        found: Floats = np.where(self._grid > threshold, away, self.local(self._grid))
        return found

    def _mean(self, curve: Curve, low: float | None = None, high: float | None = None) -> float:
        if self.at_means:
            return float(curve(np.asarray(self.lengths.mean(low, high))))
        inside = (self._grid > (low or 0.0)) & (self._grid <= (high or math.inf))
        return float(curve(self._grid[inside]).mean())
