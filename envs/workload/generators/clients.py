"""Made-up clients of one service, few of them large, like those of ServeGen's four services.

There the largest client makes 16 to 52 % of the requests and the ten largest 63 to 93 %; the gaps
between a client's requests have cvs of 0.7 to 5 in most windows; a Gamma distribution fits two
thirds of the windows, Weibull's the others; the busiest window has 1.8 to 3.2 times the mean load
(`traces.md` §3.1).
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtri

from prefixgym.envs.workload.arrivals import weibull_shape
from prefixgym.envs.workload.distributions import Empirical, LogNormal
from prefixgym.envs.workload.fields import check_number, check_probability, check_whole
from prefixgym.envs.workload.generators.client_pool import LEVELS, ClientPool
from prefixgym.envs.workload.lengths import MAX_LENGTH, Length, distribution
from prefixgym.envs.workload.popularity import zipf_weights
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.tape import Tape

_WINDOW = 600.0
_WINDOWS = 144  # a day
_CVS = Empirical((0.5, 0.85, 1.15, 4.7, 15.0), (0.0, 0.1, 0.5, 0.9, 1.0))
_GAMMA_SHARE = 0.68
_PHASE = 0.1  # standard deviation of a client's busiest moment around that of all, in days
_MEMORY = 0.9  # correlation of a client's ups and downs from window to window
_SPREAD = (0.2, 1.0)  # of a client's lengths: limits of their logarithm's standard deviation
_PROMPT_TOKENS = LogNormal(median=1000, sigma=1.2, low=50, high=16_000)
_OUTPUT_TOKENS = LogNormal(median=200, sigma=0.8, low=10, high=2000)


@dataclass(frozen=True)
class ClientMix:
    """Requests of made-up clients, each client a session; see `ClientPool.tape`.

    Attributes:
        num_requests: rows of a tape.
        rate: requests/s, an episode's mean.
        block_size: tokens in a block.
        num_clients: of the service.
        zipf: exponent of their shares of the load.
        amplitude: of a client's day, from 0 (flat) to 1; most are busiest at about one hour.
        volatility: standard deviation of the logarithm of a client's load around its day, from
            window to window of 600 s.
        prompt_tokens: the clients' medians; a client's prompts spread around its own.
        output_tokens: the same for answers.
        max_prompt_tokens: longest prompt.
        max_output_tokens: longest answer.
        prefix_share: a client's common prefix, in parts of its short (1 % quantile) prompts.
        population: names the clients, which are the same in all episodes.
    """

    num_requests: int
    rate: float
    block_size: int
    num_clients: int = 100
    zipf: float = 1.2
    amplitude: float = 0.5
    volatility: float = 0.5
    prompt_tokens: Length = _PROMPT_TOKENS
    output_tokens: Length = _OUTPUT_TOKENS
    max_prompt_tokens: int = 32_768
    max_output_tokens: int = 4096
    prefix_share: float = 0.8
    population: int = 0

    def __post_init__(self) -> None:
        check_whole("num_requests", self.num_requests, 1, 2**31 - 1)
        check_number("rate", self.rate, 0, above=True)
        check_whole("block_size", self.block_size, 1, 2**31 - 1)
        check_whole("num_clients", self.num_clients, 1, 100_000)
        check_number("zipf", self.zipf, 0)
        check_probability("amplitude", self.amplitude)
        check_number("volatility", self.volatility, 0)
        distribution("prompt_tokens", self.prompt_tokens)
        distribution("output_tokens", self.output_tokens)
        check_whole("max_prompt_tokens", self.max_prompt_tokens, 1, MAX_LENGTH)
        check_whole("max_output_tokens", self.max_output_tokens, 1, MAX_LENGTH)
        check_probability("prefix_share", self.prefix_share)
        check_whole("population", self.population, 0, 2**63)

    @property
    def num_sessions(self) -> int:
        """Every client is a session."""
        return self.num_clients

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest prompt."""
        return self.pool.max_blocks(self.block_size)

    @functools.cached_property
    def pool(self) -> ClientPool:
        """What the clients do in a day."""
        load, burstiness, family, prompts, outputs = streams(self.population, 5)
        rates = self._rates(load)
        cvs = _CVS.draw(burstiness, self.num_clients)
        weibull = family.random(self.num_clients) >= _GAMMA_SHARE
        shapes = [weibull_shape(cv) if w else cv**-2 for cv, w in zip(cvs, weibull, strict=True)]
        return ClientPool(
            _WINDOW,
            rates,
            np.repeat(np.array(shapes)[:, None], _WINDOWS, axis=1),
            np.repeat(weibull[:, None], _WINDOWS, axis=1),
            _WINDOWS,
            self._quantiles("prompt_tokens", prompts, self.max_prompt_tokens),
            self._quantiles("output_tokens", outputs, self.max_output_tokens),
        )

    def _rates(self, generator: np.random.Generator) -> NDArray[np.float64]:
        """Relative rates [C, W]; a client's mean over the day is its share."""
        phase, noise = generator.spawn(2)
        peak = 0.5 + _PHASE * phase.standard_normal((self.num_clients, 1))
        day = 1 + self.amplitude * np.cos(2 * math.pi * (np.arange(_WINDOWS) / _WINDOWS - peak))
        # x_w = m x_(w−1) + √(1 − m²) ε_w keeps a variance of 1.
        steps = noise.standard_normal((self.num_clients, _WINDOWS))
        steps[:, 1:] *= math.sqrt(1 - _MEMORY**2)
        rates = day * np.exp(self.volatility * lfilter([1.0], [1.0, -_MEMORY], steps))
        share = zipf_weights(self.num_clients, self.zipf)
        return share[:, None] / share.sum() * rates / rates.mean(axis=1, keepdims=True)

    def _quantiles(
        self, key: str, generator: np.random.Generator, most: int
    ) -> NDArray[np.float64]:
        """Quantiles of lognormal lengths around each client's own median, [C, 1, 23]."""
        length: Length = getattr(self, key)
        median = distribution(key, length).sample(generator, self.num_clients)
        sigma = generator.uniform(*_SPREAD, self.num_clients)
        normal = ndtri(np.clip(LEVELS, 0.0005, 0.9995))
        values = median[:, None] * np.exp(sigma[:, None] * normal)
        return np.clip(np.rint(values), 1, most)[:, None, :]

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names."""
        return self.pool.tape(
            seed, self.num_requests, self.rate, self.block_size, self.prefix_share
        )
