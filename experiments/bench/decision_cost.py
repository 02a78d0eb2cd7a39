"""What a decision costs: every router beside round robin, on 256 environments at once.

    python -m prefixgym.experiments.bench.decision_cost docs/decision-cost.md

Only the router's own time counts, not the simulator's: median over the decisions of an episode that
is under way, all environments in one call, divided by their number. References that run the
simulator to decide (`lookahead`, …) are left out: `docs/references.md` has what they cost.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np

from prefixgym.baselines.router import make_router, router_class, router_names
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.simulation import Simulation
from prefixgym.experiments.bench.speed import machine
from prefixgym.experiments.progress import progress_of
from prefixgym.experiments.scenario_tables import middle_rate
from prefixgym.experiments.table import Table

SCENARIO = "chat-8"
NUM_ENVS = 256
WARM_UP, MEASURED = 60, 40
FIRST = "round_robin"
MOST = 20.0
"""Times the cost of round robin that need no reason."""

_HISTORY = "looks up every prompt in a table or tree of its own, and stores it there"
_FAMILIES = {
    "Dynamo": "counts which blocks are in use on every instance",
    "FlexLB": "keeps a ledger of batches and predicts each of them",
}


@dataclass(frozen=True)
class Cost:
    """Microseconds that a decision of a router takes."""

    router: str
    micros: float


def cost_of(router: str, num_envs: int = NUM_ENVS, warm_up: int = WARM_UP) -> Cost:
    """Measure one router at the scenario's knee."""
    scenario = load_scenario(SCENARIO)
    rate = middle_rate(scenario)
    setup = scenario.build(rate)
    simulation = Simulation(**setup._asdict(), num_envs=num_envs, threads=2)
    seeds = list(range(num_envs))
    simulation.reset(seeds)
    chooser = make_router(router)
    chooser.reset(setup.cluster, seeds)
    seconds = []
    for k in range(warm_up + MEASURED):
        view = simulation.view
        start = time.perf_counter()
        actions = chooser.route(view)
        if k >= warm_up:
            seconds.append(time.perf_counter() - start)
        simulation.step(actions)
    simulation.close()
    return Cost(router, 1e6 * float(np.median(seconds)) / num_envs)


def _reason(router: str) -> str:
    """Why it costs much more than round robin."""
    chosen = router_class(router)
    return _FAMILIES.get(chosen.family, _HISTORY if "history" in chosen.knows else "")


def page(costs: Sequence[Cost]) -> str:
    """The page, in Markdown."""
    (first,) = (cost.micros for cost in costs if cost.router == FIRST)
    rows = [
        (
            cost.router,
            router_class(cost.router).family,
            f"{cost.micros:.2f}",
            f"{cost.micros / first:.0f}",
            _reason(cost.router) if cost.micros > MOST * first else "",
        )
        for cost in sorted(costs, key=lambda cost: cost.micros)
    ]
    headings = ("router", "family", "µs a decision", f"times {FIRST}", f"why above {MOST:g}")
    title = f"{NUM_ENVS} environments of {SCENARIO} at its knee, one thread"
    return "\n".join(
        [
            "# What a decision costs\n",
            "<!-- Written by `python -m prefixgym.experiments.bench.decision_cost`. -->\n",
            f"{date.today().isoformat()}, {machine()}. Median time that a router takes for one "
            "decision when it decides for all environments in one call; the simulator's time, 5 to "
            "10 µs, is not in it.\n",
            Table(title, headings, rows).markdown(),
        ]
    )


def main() -> None:
    """Measure all routers, or those that are named, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="the file to write")
    parser.add_argument("--router", action="append", help="only this one; repeatable")
    arguments = parser.parse_args()
    measurable = [name for name in router_names() if "truth" not in router_class(name).knows]
    names = dict.fromkeys([FIRST, *(arguments.router or measurable)])
    costs = []
    with progress_of([1] * len(names), len(names), "routers") as on_end:
        for name in names:
            costs.append(cost_of(name))
            on_end(1)
    arguments.page.write_text(page(costs), encoding="utf-8")


if __name__ == "__main__":
    main()
