"""How good a router is, on seeds that it was not trained with, beside handcrafted ones.

Attainment alone can be raised by sacrificing an instance and all that is sent there. So it counts
only within a limit on p99 TTFT, which is set by the best handcrafted router: `preference` is that
rule, for whoever keeps the best of several routers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evaluate import played
from prefixgym.experiments.training.onlooker import Behaviour, Onlooker

HANDCRAFTED = ("min_ttft", "loadaware", "smetric", "llmd_affinity")
"""Who is held against where nobody is named."""

TAIL_LIMIT = 1.1
"""Highest p99 TTFT, in multiples of that of the best handcrafted router."""


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
    """Means over episodes of a router's metrics (`prefixgym.experiments.metrics`).

    Attributes:
        metrics: by name.
        behaviour: how it decided, if that was looked at.
    """

    metrics: Mapping[str, float]
    behaviour: Behaviour | None = field(default=None, compare=False)

    @property
    def attainment(self) -> float:
        """Share of requests within their objectives."""
        return self.metrics["attainment"]

    @property
    def tail(self) -> float:
        """p99 TTFT, s."""
        return self.metrics["ttft_p99"]

    def notes(self) -> dict[str, float]:
        """All numbers, by the tags that TensorBoard shows."""
        found = {f"serving/{name}": value for name, value in self.metrics.items()}
        if self.behaviour is not None:
            found |= {f"choice/{name}": value for name, value in self.behaviour.shares.items()}
        return found


def tail_limit(figures: Mapping[str, tuple[float, float]], times: float = TAIL_LIMIT) -> float:
    """The highest p99 TTFT within which attainment counts, s.

    Args:
        figures: attainment and p99 TTFT in s of handcrafted routers.
        times: multiples of the p99 TTFT of the one with the highest attainment.
    """
    _, tail = max(figures.values(), key=lambda found: found[0])
    return times * tail


def preference(verdict: Verdict, limit: float) -> tuple[bool, float]:
    """What is preferred is higher: within the limit, then by attainment; beyond it by the tail."""
    within = verdict.tail <= limit
    return within, verdict.attainment if within else -verdict.tail


@dataclass
class Judge:
    """Plays episodes of one scenario at one load.

    Attributes:
        scenario, rate: what is played.
        seeds: an episode each.
        tail_limit: highest p99 TTFT, in multiples of that of the best handcrafted router.
        handcrafted: verdicts on these, by their description.
    """

    scenario: Scenario
    rate: float
    seeds: Sequence[int]
    tail_limit: float = TAIL_LIMIT
    handcrafted: dict[str, Verdict] = field(default_factory=dict)

    def add_handcrafted(self, description: str) -> None:
        """Play a handcrafted router."""
        self.handcrafted[description] = self._verdicts(described_router(description), 1, None)[0]

    def verdict(self, router: Router) -> Verdict:
        """Play a router, and look at how it decides."""
        return self.verdicts(router, 1)[0]

    def verdicts(self, router: Router, members: int) -> list[Verdict]:
        """The same for each member of what acts as several routers (`agents.population`)."""
        return self._verdicts(router, members, Onlooker([*self.seeds] * members))

    def _verdicts(self, router: Router, members: int, onlooker: Onlooker | None) -> list[Verdict]:
        size = len(self.seeds)
        _, episodes = played(router, self.scenario, self.rate, [*self.seeds] * members, onlooker)
        found = []
        for first in range(0, members * size, size):
            mine = slice(first, first + size)
            means = pl.DataFrame(episodes[mine]).select(pl.all().cast(pl.Float64).mean())
            seen = None if onlooker is None else onlooker.behaviour(mine)
            found.append(Verdict(means.row(0, named=True), seen))
        return found

    @property
    def limit(self) -> float:
        """The highest p99 TTFT within which attainment counts, s."""
        figures = {name: (v.attainment, v.tail) for name, v in self.handcrafted.items()}
        return tail_limit(figures, self.tail_limit)

    def prefers(self, one: Verdict, other: Verdict) -> bool:
        """Whether `one` is better."""
        return preference(one, self.limit) > preference(other, self.limit)

    def allows(self, verdict: Verdict) -> bool:
        """Whether its p99 TTFT is within the limit."""
        return preference(verdict, self.limit)[0]
