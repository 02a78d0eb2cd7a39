"""What a study is: things that are varied, routers that are compared, and published figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from prefixgym.baselines.router import Source, router_class
from prefixgym.envs.scenarios.registry import load_scenario
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


@dataclass(frozen=True)
class Setting:
    """One value of what a sweep varies.

    Attributes:
        label: what stands on the axis.
        overrides: of the scenario, as for `load_scenario`.
        rate: requests/s; None: the sweep's.
        apart: it is no degree of what the others are degrees of, so that no line leads to it.
    """

    label: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    rate: float | None = None
    apart: bool = False


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
        length = {"workload.num_requests": str(requests or self.requests)}
        return load_scenario(self.scenario, {**self.common, **length, **setting.overrides})


@dataclass(frozen=True)
class Claim:
    """Something published, and what a study has to say about it.

    Attributes:
        what: which quantity, of which system.
        source: where it was published.
        published: the published figures.
        ours: the same from our results; None if they are not among them.
    """

    what: str
    source: str
    published: str
    ours: Callable[["Found"], str]


@dataclass(frozen=True)
class Study:
    """A question and what is run to answer it.

    Attributes:
        name: what it is called on the command line.
        question: in one sentence.
        sweeps: what is varied, a row of the figure each.
        claims: what others published.
        costs: where the index is what varies, the figure also shows what it costs.
    """

    name: str
    question: str
    sweeps: tuple[Sweep, ...]
    claims: tuple[Claim, ...] = ()
    costs: bool = False

    def with_routers(self, routers: Sequence[str]) -> "Study":
        """The same with other routers wherever the field is compared."""
        arms = tuple(map(Arm.of, routers))
        sweeps = tuple(
            replace(sweep, arms=arms) if sweep.arms is FIELD else sweep for sweep in self.sweeps
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
        cells = [_cells(sweep, setting, num_seeds, requests) for setting in sweep.settings]
        for k, setting in enumerate(sweep.settings):
            for j, arm in enumerate(sweep.arms):
                knows = router_class(arm.router).knows
                same = sweep.varies is not None and sweep.varies not in knows
                yield Trial(sweep, setting, arm, cells[0 if same else k][j], same and k > 0)


def _cells(sweep: Sweep, setting: Setting, num_seeds: int, requests: int | None) -> list[Cell]:
    """One cell for each arm."""
    scenario = sweep.scenario_at(setting, requests)
    rate = setting.rate or sweep.rate or middle_rate(scenario)
    seeds = tuple(scenario.seeds.test.range()[:num_seeds])
    return [Cell(scenario, rate, arm.router, seeds, arm.parameters) for arm in sweep.arms]


class Found:
    """Means by sweep, setting and label, for claims."""

    def __init__(self, summary: pl.DataFrame) -> None:
        self._rows = {
            (row["sweep"], row["setting"], row["router"]): row for row in summary.to_dicts()
        }

    def get(self, metric: str, sweep: str, setting: str, label: str) -> float:
        """One mean; KeyError if it was not run."""
        return float(self._rows[sweep, setting, label][metric])
