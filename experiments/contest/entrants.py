"""Who enters: handcrafted routers with default and tuned parameters, learned ones, references."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prefixgym.baselines.router import router_class
from prefixgym.baselines.tuned.parameters import tuned_parameters, tuned_scenarios
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.described import described
from prefixgym.experiments.evaluate import Cell
from prefixgym.experiments.leaderboard import deployable_routers
from prefixgym.experiments.paper.study import Arm
from prefixgym.experiments.references import LOOKAHEAD, cells_of
from prefixgym.experiments.scenario_tables import middle_rate

DUMP = Arm("greedy + dump hopeless requests", "greedy_dump")
"""What gaming attainment brings and costs: on the table, never the best handcrafted router."""

Kind = Literal["handcrafted", "learned", "dump", "lookahead"]

_SCENARIO = "{scenario}"


@dataclass(frozen=True)
class Match:
    """One scenario at one load, in requests/s."""

    scenario: Scenario
    rate: float

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.scenario.name} at {self.rate:g} requests/s"

    def cell(self, arm: Arm, split: str, count: int) -> Cell:
        """A router on the first `count` seeds of a split."""
        seeds = tuple(self.scenario.seeds.of(split)[:count])
        return Cell(self.scenario, self.rate, arm.router, seeds, arm.parameters)


@dataclass(frozen=True)
class Entry:
    """A router in a match.

    Attributes:
        match: which.
        arm: the router.
        kind: as what it enters.
        cell: what it plays.
    """

    match: Match
    arm: Arm
    kind: Kind
    cell: Cell


def match_of(text: str, overrides: dict[str, str]) -> Match:
    """SCENARIO, in the middle of its ladder, or SCENARIO@RATE.

    Raises:
        ValueError: unknown scenario, or a rate that is no number above 0.
    """
    name, at, rate = text.rpartition("@")
    if not at:
        scenario = load_scenario(text, overrides)
        return Match(scenario, middle_rate(scenario))
    try:
        value = float(rate)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{text}: found rate {rate!r}, must be a number above 0")
    return Match(load_scenario(name, overrides), value)


def handcrafted_routers() -> list[str]:
    """All that could be deployed and learn nothing in this environment, but for `DUMP`."""
    return [
        name
        for name in deployable_routers()
        if router_class(name).family != "learned" and name != DUMP.router
    ]


def handcrafted_arms(scenario: Scenario, routers: Sequence[str]) -> list[Arm]:
    """Each router with its defaults and, where it was tuned on the scenario, as tuned."""
    tuned = tuned_parameters(scenario.name) if scenario.name in tuned_scenarios() else {}
    arms = []
    for name in routers:
        arms.append(described(name))
        if ":" not in name and tuned.get(name):
            arms.append(Arm(f"{name} (tuned)", name, tuned[name]))
    return arms


def learned_arms(texts: Sequence[str], scenario: Scenario) -> tuple[list[Arm], list[str]]:
    """The learned routers of a scenario, and those of the texts for which there are no weights.

    `{scenario}` in a text stands for the scenario's name: specialists are one router on the
    table, each on its own scenario, and may be missing.

    Raises:
        ValueError: unknown router, or two with one label.
    """
    arms: list[Arm] = []
    missing = []
    for text in texts:
        own = text.replace(_SCENARIO, scenario.name)
        try:
            found = described(own)
        except ValueError as error:
            if own == text:
                raise
            missing.append(f"{scenario.name}: {text}: {error}")
            continue
        arms.append(Arm(text if own != text else found.label, found.router, found.parameters))
    labels = [arm.label for arm in arms]
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise ValueError(f"--learned: found {', '.join(sorted(twice))} twice, must differ")
    return arms, missing


def lookahead_entry(match: Match, num_seeds: int) -> Entry:
    """The look-ahead on the first test seeds, with the horizon that suits the rate."""
    at_rate = match.scenario.model_copy(update={"rates": (match.rate,)})
    (cell,) = cells_of([at_rate], num_seeds, [])
    return Entry(match, Arm(LOOKAHEAD, cell.router, cell.parameters), "lookahead", cell)
