"""Finds a scenario's knee by bisection, and writes it and the ladder around it into the file."""

import math
import re
from collections.abc import Callable

from prefixgym.envs.scenarios.knee import LADDER, KneeSection, ladder
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.capacity import CAPACITY_ATTAINMENT, find_capacity
from prefixgym.experiments.evaluate import Cell, evaluate
from prefixgym.experiments.scenario_tables import middle_rate
from prefixgym.experiments.toml_text import toml_text

KNEE_ROUTER = "min_ttft"
KNEE_EPISODES = 3
COMPARED_ROUTERS = (
    "random",
    "least_load",
    "prefix_hash",
    "cache_aware",
    "loadaware",
    "min_ttft",
)
"""One or two of each kind: by nothing, by load, by prefix, by both."""


def find_knee(
    scenario: Scenario,
    router: str = KNEE_ROUTER,
    episodes: int = KNEE_EPISODES,
    on_end: Callable[[Cell, float], None] = lambda cell, attainment: None,
) -> KneeSection:
    """The knee of a scenario, and how routers do there.

    Args:
        scenario: its ladder tells where to begin.
        router: a name from `router_names()`.
        episodes: validation seeds to average over.
        on_end: called with each cell that was evaluated, and its attainment.

    Raises:
        ValueError: the router attains 90 % at every rate or at none.
    """
    seeds = tuple(scenario.seeds.validation.range()[:episodes])

    def attainment(rate: float, name: str = router) -> float:
        cell = Cell(scenario, _rounded(rate), name, seeds)
        found = float(evaluate(cell)["attainment"].mean())  # type: ignore[arg-type]
        on_end(cell, found)
        return found

    capacity = find_capacity(attainment, start=middle_rate(scenario))
    if not 0 < capacity < math.inf:
        where = "every rate" if capacity else "no rate"
        raise ValueError(
            f"{scenario.name}: {router} attains {CAPACITY_ATTAINMENT:.0%} at {where}: no knee"
        )
    rate = _rounded(capacity)
    return KneeSection(
        router=router,
        attainment=CAPACITY_ATTAINMENT,
        rate=rate,
        episodes=len(seeds),
        compared={name: round(attainment(rate, name), 3) for name in COMPARED_ROUTERS},
    )


def _rounded(rate: float) -> float:
    """To three significant digits: what is tried is what the file says."""
    return float(f"{rate:.3g}")


def with_knee(text: str, name: str, knee: KneeSection) -> str:
    """The text of a scenario file with this knee and its ladder; all else stays as it is.

    Raises:
        ValueError: the text has no `rates` on a line of their own, before the tables.
    """
    head, *tables = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    rates = (
        f"rates = {toml_text(ladder(knee.rate))}"
        f"  # requests/s, {LADDER[0]:g} to {LADDER[-1]:g} times the knee"
    )
    head, count = re.subn(r"^rates *=.*$", rates, head, count=1, flags=re.MULTILINE)
    if count == 0:
        raise ValueError(f"{name}: has no line `rates = [...]` before its tables to write to")
    section = "\n".join(
        [
            f"[knee]  # found by `prefixgym scenarios knee {name} --write`",
            f"router = {toml_text(knee.router)}",
            f"attainment = {knee.attainment:g}",
            f"rate = {knee.rate:g}  # requests/s",
            f"episodes = {knee.episodes}  # with the first validation seeds",
            f"compared = {toml_text(knee.compared)}  # attainment at this rate",
        ]
    )
    others = [table for table in tables if not re.match(r"\[knee\]", table)]
    return "".join([head, section, "\n\n", *others])
