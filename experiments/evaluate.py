"""One cell: a router on a scenario at one load, over several seeds at once."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefixgym.baselines.references.reference import Reference
from prefixgym.baselines.replicated import side_by_side
from prefixgym.baselines.router import Router, make_router
from prefixgym.baselines.split.halves import in_halves
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.view.view import View
from prefixgym.experiments.metrics import EpisodeMetrics, episode_metrics

RESULTS_VERSION = 4
"""Part of every cell's key: raise it when the simulator or a metric changes what it means."""

OnDecision = Callable[[View, NDArray[np.int64], NDArray[np.bool_]], None]
"""Told of a decision before it is played: what the router saw, its choices [E], and whose episodes
are not over, [E]."""


@dataclass(frozen=True)
class Cell:
    """What to evaluate.

    Attributes:
        scenario: cluster, workload, objectives and what the router may know.
        rate: requests/s.
        router: a name from `router_names()`.
        seeds: episodes, one each; all cells of a scenario use the same, so that routers meet the
            same requests.
        parameters: router parameters that differ from their defaults.
    """

    scenario: Scenario
    rate: float
    router: str
    seeds: tuple[int, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A file name that changes with anything that changes the result, source code apart."""
        router = make_router(self.router, self.parameters)
        identity = {
            "version": RESULTS_VERSION,
            "scenario": self.scenario.identity(),
            "rate": self.rate,
            "router": self.router,
            "parameters": dataclasses.asdict(router),
            "seeds": self.seeds,
        }
        text = json.dumps(identity, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        router_name = re.sub(r"[^\w.-]+", "-", self.router)  # learned routers are called by paths
        return f"{self.scenario.name}_{self.rate:g}_{router_name}_{digest}"

    @property
    def decisions(self) -> int:
        """Requests to route: what the cell costs."""
        return self.scenario.num_requests * len(self.seeds)


def evaluate(cell: Cell) -> pl.DataFrame:
    """Metrics of the cell's episodes: one row a seed, with `scenario`, `rate`, `router`, `seed`."""
    router = make_router(cell.router, cell.parameters)
    return evaluate_router(router, cell.scenario, cell.rate, cell.seeds)


def evaluate_router(
    router: Router, scenario: Scenario, rate: float, seeds: Sequence[int]
) -> pl.DataFrame:
    """The same for a router that may have no name in the registry."""
    _, episodes = played(router, scenario, rate, seeds)
    return pl.DataFrame(episodes).select(
        pl.lit(scenario.name).alias("scenario"),
        pl.lit(rate).alias("rate"),
        pl.lit(router.name).alias("router"),
        pl.Series("seed", seeds, dtype=pl.Int64),
        pl.all(),
    )


def played(
    router: Router,
    scenario: Scenario,
    rate: float,
    seeds: Sequence[int],
    on_decision: OnDecision | None = None,
) -> tuple[Simulation, list[EpisodeMetrics]]:
    """A simulation whose episodes, one a seed, were played to their ends, and their metrics."""
    setup = scenario.build(rate)
    simulation = Simulation(**setup._asdict(), num_envs=len(seeds), record=True)
    play(simulation, router, setup.cluster, seeds, on_decision)
    totals = simulation.instance_totals
    return simulation, [
        episode_metrics(simulation.outcomes(e), totals[e], setup.slos) for e in range(len(seeds))
    ]


def play(
    simulation: Simulation,
    router: Router,
    cluster: ClusterSpec,
    seeds: Sequence[int],
    on_decision: OnDecision | None = None,
) -> None:
    """Let `router` route whole episodes, one a seed, until every request has ended."""
    decider = begin(simulation, router, cluster, seeds)
    plan = None
    if simulation.can_play_plans and on_decision is None:
        plan = decider.plan(int(simulation.arrays.episodes["num_requests"].max()))
    if plan is not None:
        simulation.play(plan)
        return
    while not simulation.done.all():
        chosen = decider.route(simulation.view)
        if on_decision is not None:
            on_decision(simulation.view, chosen, ~simulation.done)
        simulation.step(chosen)


def begin(
    simulation: Simulation, router: Router, cluster: ClusterSpec, seeds: Sequence[int]
) -> Router:
    """Simulation and router at the first decision of their episodes, one a seed.

    Returns who decides: `router`, or several of it where the scenario has several.
    """
    if isinstance(router, Reference) and cluster.is_split:
        raise ValueError(f"router: found {router.name!r}, which knows no roles of instances")
    simulation.reset(seeds)
    if isinstance(router, Reference):
        router.watch(simulation)
    decider = side_by_side(in_halves(router, cluster), simulation.knowledge.replicas)
    decider.reset(cluster, seeds)
    return decider
