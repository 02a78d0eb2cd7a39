"""What routers are tuned and evolved by: good requests, less a price on how late the others were.

Attainment alone is gained by sacrificing requests that are late anyway (`rl.md` §5.4), so each unit
of capped tardiness costs: score of an episode = Σ_requests (good − w · tardiness) / requests, the
environment's own goodput reward (`prefixgym.envs.reward`) as a mean. At most 1.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import Router
from prefixgym.envs.reward import Goodput
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.simulation import Simulation
from prefixgym.experiments.evaluate import begin

REWARD = Goodput(tardiness=0.25, cap=8.0)
"""`rl.md` §5.4: with this price learned routers lost neither attainment nor their tails."""


class GoodputObjective:
    """Scores of whole episodes, for routers that are compared on one scenario and load.

    Args:
        scenario: cluster, workload, objectives and what the router may know.
        rate: requests/s.
        num_envs: episodes of a call.
        threads: how many threads share a step; scores do not depend on it.
    """

    def __init__(self, scenario: Scenario, rate: float, num_envs: int, threads: int = 1) -> None:
        setup = scenario.build(rate)
        self._cluster = setup.cluster
        self._simulation = Simulation(
            **setup._asdict(), num_envs=num_envs, threads=threads, credit=REWARD.credit
        )

    def __call__(self, router: Router, seeds: Sequence[int]) -> NDArray[np.float64]:
        """The score of the episode of each seed, [E]."""
        simulation = self._simulation
        decider = begin(simulation, router, self._cluster, seeds)
        earned = np.zeros(simulation.num_envs)
        going = ~simulation.done
        while going.any():
            simulation.step(decider.route(simulation.view))
            earned += np.where(going, REWARD(simulation, None), 0.0)
            going = ~simulation.done
        return earned / simulation.arrays.episodes["num_requests"]

    def close(self) -> None:
        """Stop the threads."""
        self._simulation.close()
