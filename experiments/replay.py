"""One trace, routed: streamed if the file can be, see `prefixgym.envs.streaming`."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.replicated import side_by_side
from prefixgym.baselines.router import Router
from prefixgym.envs.scenarios.schema import Scenario, Setup
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.streaming import StreamedEpisode
from prefixgym.envs.workload.streamed_trace import StreamedTrace
from prefixgym.experiments.evaluate import evaluate_router
from prefixgym.experiments.metrics import EpisodeMetrics, EpisodeTally
from prefixgym.experiments.progress import progress_of_requests
from prefixgym.experiments.samples import LogHistogram


def replay(router: Router, scenario: Scenario, rate: float, seed: int) -> dict[str, Any]:
    """Metrics of one episode, with `scenario`, `rate`, `router` and `seed`.

    A streamed one shows its progress, and its percentiles are within `samples.RELATIVE_ERROR`.
    """
    setup = scenario.build(rate)
    if not isinstance(setup.workload, StreamedTrace):
        return evaluate_router(router, scenario, rate, (seed,)).row(0, named=True)
    metrics = _stream(router, setup, setup.workload, seed)
    about = {"scenario": scenario.name, "rate": rate, "router": router.name, "seed": seed}
    return about | dataclasses.asdict(metrics)


def _stream(router: Router, setup: Setup, trace: StreamedTrace, seed: int) -> EpisodeMetrics:
    simulation = Simulation(**setup._asdict(), record=True)
    tally = EpisodeTally(setup.slos, LogHistogram)
    with progress_of_requests(trace.extent.rows) as on_end:

        def take(outcomes: NDArray[np.void], open_sessions: NDArray[np.int32]) -> None:
            tally.add(outcomes, open_sessions)
            on_end(len(outcomes))

        episode = StreamedEpisode(simulation, trace.chunks(seed), take)
        decider = side_by_side(router, setup.knowledge.replicas)
        decider.reset(setup.cluster, [seed])

        def plan(count: int, first: int) -> NDArray[np.int64]:
            actions = decider.plan(count, first)
            assert actions is not None
            return actions

        if simulation.can_play_plans and decider.plan(0) is not None:
            episode.play(plan)
        while not episode.done:
            episode.step(decider.route(simulation.view))
    return tally.metrics(simulation.instance_totals[0])
