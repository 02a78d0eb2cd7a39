"""Rewards: what a decision earns, as an object that reads the simulation after each step."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.simulation import Simulation


class Reward(Protocol):
    """Turns what has happened since the last decision into a number for each environment."""

    def __call__(self, simulation: Simulation) -> NDArray[np.float64]:
        """Rewards, shape [E]; environments that are done and were not stepped are not looked at."""


class Goodput:
    """+1 for every request that met TTFT and TPOT, paid when its last token is out.

    The rewards of an episode add up to its number of good requests. Rejected requests earn nothing.
    """

    def __call__(self, simulation: Simulation) -> NDArray[np.float64]:
        """Good requests that ended since the last decision, shape [E]."""
        return simulation.good.astype(np.float64)


REWARDS: dict[str, type[Reward]] = {"goodput": Goodput}
"""Rewards by name."""


def make_reward(name: str) -> Reward:
    """The reward called `name`; ValueError if there is none."""
    if name not in REWARDS:
        raise ValueError(f"reward: found {name!r}, allowed: {', '.join(REWARDS)}")
    return REWARDS[name]()
