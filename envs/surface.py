"""What a learner sees of a cluster and what it may do: spaces, masks, and what an action means."""

from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.episodes import Episodes, Observation
from prefixgym.envs.observation import (
    DECODE_COLUMNS,
    INSTANCE_FIELDS,
    PREFILL_COLUMNS,
    halves_space,
    observation_space,
)

Actions = NDArray[np.int64]


class Surface(Protocol):
    """Between episodes of E environments and their learner."""

    @property
    def observation_space(self) -> gym.spaces.Dict:
        """Of one environment."""

    @property
    def action_space(self) -> Any:
        """The same."""

    @property
    def masks(self) -> NDArray[np.int8]:
        """1 for what may be chosen, int8 [E, choices], a new array."""

    def check(self, actions: Actions) -> None:
        """ValueError where an action is not allowed."""

    def routed(self, actions: Actions) -> Actions:
        """The same as the simulation takes them, [E]."""

    def observed(self, observation: Observation) -> Observation:
        """What the learner gets of an observation of all instances."""


class OnePool:
    """Any instance does all of a request: an action is its number, or N to reject the request."""

    def __init__(self, episodes: Episodes) -> None:
        if episodes.simulation.cluster.is_split:
            raise ValueError(
                f"scenario: found {episodes.scenario.name}, whose instances have roles: "
                "make prefixgym/DisaggregatedRouting-v0"
            )
        self._episodes = episodes
        self.observation_space = observation_space(episodes.num_instances)
        self.action_space = gym.spaces.Discrete(episodes.num_actions)

    @property
    def masks(self) -> NDArray[np.int8]:
        """Of all actions."""
        return self._episodes.action_masks

    def check(self, actions: Actions) -> None:
        """Actions [E] that there are, and instances that are available."""
        _check_range(actions, self._episodes.num_actions)
        if len(envs := self._episodes.unavailable(actions)) > 0:
            where = "action: found {0}" if len(actions) == 1 else _ONE_OF_MANY
            raise ValueError(
                f"{where.format(actions[envs[0]], envs[0])}, an instance that is not available; "
                "info['action_mask'] tells which are"
            )

    def routed(self, actions: Actions) -> Actions:
        """As they are."""
        return actions

    def observed(self, observation: Observation) -> Observation:
        """As it is."""
        return observation


class TwoPools:
    """One instance prefills a request, another decodes it: an action is a pair of numbers.

    The first counts the instances that may prefill, the second those that may decode, as they are
    numbered in the cluster.
    """

    def __init__(self, episodes: Episodes) -> None:
        cluster = episodes.simulation.cluster
        if not cluster.is_split:
            raise ValueError(
                f"scenario: found {episodes.scenario.name}, whose instances have no roles: "
                "make prefixgym/PrefixRouting-v0"
            )
        if episodes.randomisation.instances is not None:
            raise ValueError(
                "randomise.instances: found a number, instances with roles are always there"
            )
        self._episodes = episodes
        self._pools = [np.array(cluster.pool("prefill")), np.array(cluster.pool("decode"))]
        sizes = [len(pool) for pool in self._pools]
        names = [field.name for field in INSTANCE_FIELDS]
        # What each half sees: rows and columns of the table of all instances.
        self._parts = [
            np.ix_(pool, np.array([names.index(column) for column in columns]))
            for pool, columns in zip(self._pools, (PREFILL_COLUMNS, DECODE_COLUMNS), strict=True)
        ]
        self.observation_space = halves_space(*sizes)
        self.action_space = gym.spaces.MultiDiscrete(sizes)

    @property
    def masks(self) -> NDArray[np.int8]:
        """Of all instances that may prefill, then of all that may decode; all may be chosen."""
        count = sum(len(pool) for pool in self._pools)
        return np.ones((self._episodes.simulation.num_envs, count), np.int8)

    def check(self, actions: Actions) -> None:
        """Pairs [E, 2] of numbers that there are."""
        for half, pool in enumerate(self._pools):
            _check_range(actions[:, half], len(pool))

    def routed(self, actions: Actions) -> Actions:
        """Numbers of both instances in one."""
        chosen = [pool[actions[:, half]] for half, pool in enumerate(self._pools)]
        return self._episodes.simulation.encoded(np.stack(chosen, 1))

    def observed(self, observation: Observation) -> Observation:
        """The request, and the two tables, each laid out row by row."""
        num_envs = len(observation["request"])
        table = observation["instances"].reshape(num_envs, -1, len(INSTANCE_FIELDS))
        parts = [table[:, rows, columns] for rows, columns in self._parts]
        return {
            "request": observation["request"],
            "prefill": parts[0].reshape(num_envs, -1),
            "decode": parts[1].reshape(num_envs, -1),
        }


_ONE_OF_MANY = "actions: found {0} for sub-environment {1}"


def _check_range(actions: Actions, count: int) -> None:
    alone = len(actions) == 1
    low, high = (actions[0], actions[0]) if alone else (actions.min(), actions.max())
    if low < 0 or high >= count:
        found = f"action: found {low}" if alone else f"actions: found {low} to {high}"
        raise ValueError(f"{found}, allowed: 0 to {count - 1}")
