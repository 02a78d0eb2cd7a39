"""What a study is: things that are varied, routers that are compared, and published figures."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from prefixgym.baselines.router import Source, router_class
from prefixgym.envs.scenarios.registry import load_scenario, trace_scenario
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evaluate import Cell
from prefixgym.experiments.scenario_tables import middle_rate


@dataclass(frozen=True)
class Arm:
    """A router, under the label that it has in figures.

    Attributes:
        label: its name there.
        router: a name from `router_names()`.
        parameters: those that differ from their defaults.
    """

    label: str
    router: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, router: str) -> "Arm":
        """The router as it is, under its own name."""
        return cls(router, router)


FIELD = tuple(
    map(
        Arm.of,
        (
            "round_robin",
            "power_of_two",
            "prefix_hash",
            "cache_aware",
            "llmd_approximate",
            "kvaware",
            "llmd_precise",
            "dynamo",
            "flexlb",
            "min_ttft",
        ),
    )
)
"""What is compared unless a study says otherwise: five routers without an index of what instances
report, and five with one."""

BEST = tuple(
    map(Arm.of, ("smetric", "llmd_affinity", "lmetric", "probabilistic", "min_ttft", "loadaware"))
)
"""Those that attain most on the built-in scenarios, for studies of learned routers."""

INFORMED = (
    *map(Arm.of, ("least_load", "power_of_two", "cache_aware", "llmd_approximate")),
    *BEST,
)
"""By load alone, by own history, and the best that have an index."""

FIELDS = (FIELD, BEST, INFORMED)
"""What other routers may stand in for."""


@dataclass(frozen=True)
class Setting:
    """One value of what a sweep varies.

    Attributes:
        label: what stands on the axis.
        overrides: of the scenario, as for `load_scenario`.
        rate: requests/s; None: the sweep's.
        apart: it is no degree of what the others are degrees of, so that no line leads to it.
        requests: of an episode; None: the sweep's.
        slug: what it is called in names of weights, for routers that were trained in it.
        known: what routers may decide by that are compared here; None: by anything.
        arms: routers that play here only; those with one label in several settings are one line.
    """

    label: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    rate: float | None = None
    apart: bool = False
    requests: int | None = None
    slug: str = ""
    known: tuple[Source, ...] | None = None
    arms: tuple[Arm, ...] = ()


@dataclass(frozen=True)
class Point:
    """A published number that is drawn beside ours.

    Attributes:
        setting: the label of its setting.
        metric: one of `results.METRICS`.
        value: in the unit of our metric.
    """

    setting: str
    metric: str
    value: float


@dataclass(frozen=True)
class Sweep:
    """One thing is varied, all else is equal.

    Attributes:
        name: what its rows are called in the CSV.
        title: above its panels.
        axis: what the settings are values of.
        scenario: a built-in one.
        settings: in the order of the axis.
        common: overrides of the scenario in every setting.
        rate: requests/s; None: the middle of the scenario's ladder.
        requests: of an episode.
        arms: what is compared.
        varies: the settings differ in this source of knowledge alone. Routers that do not decide by
            it are run in the first setting only; it would be the same in the others.
        relative: TTFT is drawn as a multiple of that in the first setting.
        points: published numbers.
    """

    name: str
    title: str
    axis: str
    scenario: str
    settings: tuple[Setting, ...]
    common: Mapping[str, str] = field(default_factory=dict)
    rate: float | None = None
    requests: int = 2000
    arms: tuple[Arm, ...] = FIELD
    varies: Source | None = None
    relative: bool = False
    points: tuple[Point, ...] = ()

    def scenario_at(self, setting: Setting, requests: int | None = None) -> Scenario:
        """The scenario in one setting, with episodes of so many requests."""
        return load_scenario(self.scenario, self.overrides_at(setting, requests))

    def overrides_at(self, setting: Setting, requests: int | None) -> dict[str, str]:
        """Everything that one setting overrides."""
        length = str(requests or setting.requests or self.requests)
        return {**self.common, "workload.num_requests": length, **setting.overrides}

    @property
    def lines(self) -> tuple[Arm, ...]:
        """One arm for each label, in the order of the legend."""
        own = [arm for setting in self.settings for arm in setting.arms]
        return tuple({arm.label: arm for arm in (*self.arms, *own)}.values())


@dataclass(frozen=True)
class TraceSweep(Sweep):
    """The same with recorded requests; `scenario` is what they are called.

    Attributes:
        trace: the file; where it is absent the sweep is left out.
    """

    trace: Path = Path()

    def scenario_at(self, setting: Setting, requests: int | None = None) -> Scenario:
        """Windows of so many requests."""
        rate = setting.rate or self.rate
        if rate is None:
            raise ValueError(f"{self.name}.{setting.label}: has no rate")
        return trace_scenario(self.trace, [rate], self.overrides_at(setting, requests))


@dataclass(frozen=True)
class Claim:
    """A published figure, and how a study's results give ours; see `published.Figure`.

    Attributes:
        what, source, published, because, low, high, unit, known_miss: of the figure.
        ours: from the results; KeyError if they do not have it.
    """

    what: str
    source: str
    published: float
    ours: Callable[["Found"], float]
    because: str
    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    known_miss: str = ""


@dataclass(frozen=True)
class Study:
    """A question and what is run to answer it.

    Attributes:
        name: what it is called on the command line.
        question: in one sentence.
        sweeps: what is varied, a row of the figure each.
        claims: what others published.
        costs: where the index is what varies, the figure also shows what it costs.
        learned: learned routers that are compared unless others are given, see `learned.py`.
    """

    name: str
    question: str
    sweeps: tuple[Sweep, ...]
    claims: tuple[Claim, ...] = ()
    costs: bool = False
    learned: tuple[str, ...] = ()

    def with_routers(self, routers: Sequence[str]) -> "Study":
        """The same with other routers wherever the field is compared."""
        arms = tuple(map(Arm.of, routers))
        sweeps = tuple(
            replace(sweep, arms=arms) if any(sweep.arms is field for field in FIELDS) else sweep
            for sweep in self.sweeps
        )
        return replace(self, sweeps=sweeps)


@dataclass(frozen=True)
class Trial:
    """A cell, and where it stands in its study.

    Attributes:
        sweep: of which it is part.
        setting: where in that.
        arm: who routes.
        cell: what is run.
        stands_in: it is the cell of the sweep's first setting, see `Sweep.varies`.
    """

    sweep: Sweep
    setting: Setting
    arm: Arm
    cell: Cell
    stands_in: bool


def trials_of(study: Study, num_seeds: int, requests: int | None = None) -> list[Trial]:
    """Everything that a study runs; in all trials of a sweep and rate the same requests come.

    Args:
        study: which.
        num_seeds: episodes of each trial, with the first test seeds.
        requests: of an episode, by default as each sweep has it.
    """
    return list(_trials(study, num_seeds, requests))


def _trials(study: Study, num_seeds: int, requests: int | None) -> Iterator[Trial]:
    for sweep in study.sweeps:
        first = sweep.settings[0]
        for setting in sweep.settings:
            for arm in (*sweep.arms, *setting.arms):
                knows = router_class(arm.router).knows
                if setting.known is not None and not set(knows) <= set(setting.known):
                    continue
                same = sweep.varies is not None and sweep.varies not in knows
                cell = _cell(sweep, first if same else setting, arm, num_seeds, requests)
                yield Trial(sweep, setting, arm, cell, same and setting is not first)


def _cell(sweep: Sweep, setting: Setting, arm: Arm, num_seeds: int, requests: int | None) -> Cell:
    scenario = sweep.scenario_at(setting, requests)
    rate = setting.rate or sweep.rate or middle_rate(scenario)
    seeds = tuple(scenario.seeds.test.range()[:num_seeds])
    return Cell(scenario, rate, arm.router, seeds, arm.parameters)


class Found:
    """Means by sweep, setting and label, for claims."""

    def __init__(self, summary: pl.DataFrame) -> None:
        self._rows = {
            (row["sweep"], row["setting"], row["router"]): row for row in summary.to_dicts()
        }

    def get(self, metric: str, sweep: str, setting: str, label: str) -> float:
        """One mean; KeyError if it was not run."""
        return float(self._rows[sweep, setting, label][metric])
