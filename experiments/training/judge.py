"""How good a router is, on seeds that it was not trained with, beside handcrafted ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evaluate import evaluate_router


def described_router(text: str) -> Router:
    """A router from NAME or NAME:KEY=VALUE,….

    Raises:
        ValueError: unknown router or parameter, or a value that is not allowed.
    """
    name, colon, settings = text.rpartition(":")
    if not colon or "=" not in settings:
        return make_router(text)
    pairs = [setting.partition("=") for setting in settings.split(",")]
    return make_router(name, {key: value for key, _, value in pairs})


@dataclass(frozen=True)
class Verdict:
    """Means over episodes of a router's metrics (`prefixgym.experiments.metrics`)."""

    metrics: dict[str, float]

    @property
    def attainment(self) -> float:
        """Share of requests within their objectives."""
        return self.metrics["attainment"]

    @property
    def tail(self) -> float:
        """p99 TTFT, s."""
        return self.metrics["ttft_p99"]


@dataclass
class Judge:
    """Plays episodes of one scenario at one load.

    Attributes:
        scenario, rate: what is played.
        seeds: an episode each.
        tail_limit: see `allows`.
        handcrafted: verdicts on these, by their description.
    """

    scenario: Scenario
    rate: float
    seeds: Sequence[int]
    tail_limit: float = 1.1
    handcrafted: dict[str, Verdict] = field(default_factory=dict)

    def add_handcrafted(self, description: str) -> None:
        """Play a handcrafted router."""
        self.handcrafted[description] = self.verdict(described_router(description))

    def episodes(self, router: Router) -> pl.DataFrame:
        """A row for each episode, as `evaluate_router` gives it."""
        return evaluate_router(router, self.scenario, self.rate, self.seeds)

    def verdict(self, router: Router) -> Verdict:
        """Play a router."""
        found = self.episodes(router).drop("scenario", "rate", "router", "seed")
        means = found.select(pl.all().cast(pl.Float64).mean()).row(0, named=True)
        return Verdict(means)

    @property
    def best_handcrafted(self) -> str:
        """The description of the one with the highest attainment."""
        return max(self.handcrafted, key=lambda name: self.handcrafted[name].attainment)

    def allows(self, verdict: Verdict) -> bool:
        """Whether p99 TTFT is at most `tail_limit` times that of the best handcrafted router.

        Attainment alone can be raised by sacrificing an instance and all that is sent there.
        """
        return verdict.tail <= self.tail_limit * self.handcrafted[self.best_handcrafted].tail
