"""Clusters in groups that see the same requests, so that chance can be told from choice.

What a decision earns depends on the requests that happen to follow more than on the decision. All
members of a group play the same episode, each by its own decisions, so the mean of the others is a
baseline that knows these requests (Mao et al., arXiv 1807.02264; `rl.md` §5.2). Where failed
requests are routed again, members of a group may drift apart by some decisions; the baseline
still does not depend on one's own decision, only less chance is taken out.

An interrupted training goes on as if nothing had happened: an episode is a function of its seed and
of the decisions made, so those of the current episodes are kept, and played again. (A copy of the
simulator's state would be 7 MB a cluster.)
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from prefixgym.envs.episodes import Observation
from prefixgym.envs.reward import Attribution
from prefixgym.envs.vector import PrefixRoutingVectorEnv


class Played(NamedTuple):
    """One decision in each of E clusters.

    Attributes:
        request, instances: what the next decision is made on, [E, R] and [E, N, F].
        reward: [E], as the environment pays it.
        discount: [E], 0 where an episode ended.
        attribution: whose the rewards are, in episodes as they are numbered before any restart.
        ended: bool [E].
    """

    request: NDArray[np.float32]
    instances: NDArray[np.float32]
    reward: NDArray[np.float64]
    discount: NDArray[np.float64]
    attribution: Attribution | None
    ended: NDArray[np.bool_]


class Clusters:
    """`num_envs` clusters, in groups of `group` that play the same episodes.

    Args:
        seed: with the number of a group and of its episode it fixes the episode.
        num_envs: E.
        group: members of a group, a divisor of E.
        environment: further arguments of `PrefixRoutingVectorEnv`; `discount_time` is wanted.
    """

    def __init__(self, seed: int, num_envs: int, group: int, **environment: Any) -> None:
        self._seed = seed
        self._group = np.arange(num_envs) // group
        self.env = PrefixRoutingVectorEnv(
            num_envs, autoreset_mode=AutoresetMode.DISABLED, **environment
        )
        self.episode = np.zeros(num_envs, np.int64)  # which episode of its group
        self.decision = np.zeros(num_envs, np.int64)  # made in it
        self._actions = np.zeros((num_envs, 1024), np.int16)  # in it
        self.seen = self._table(self.env.reset(seed=self._seeds())[0])

    @property
    def num_groups(self) -> int:
        """How many different streams of requests there are."""
        return int(self._group[-1]) + 1

    def _seeds(self) -> list[int]:
        """Of each cluster's current episode."""
        pairs = zip(self._group.tolist(), self.episode.tolist(), strict=True)
        return [
            int(np.random.SeedSequence((self._seed, group, episode)).generate_state(1)[0])
            for group, episode in pairs
        ]

    def _table(self, observation: Observation) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        request, instances = observation["request"], observation["instances"]
        return request, instances.reshape(*instances.shape[:1], self.num_instances, -1)

    @property
    def num_instances(self) -> int:
        """N."""
        return self.env.episodes.num_instances

    def step(self, actions: NDArray[np.int64]) -> Played:
        """One decision everywhere; where an episode ends, the group's next one begins."""
        envs = np.arange(len(actions))
        if (longest := int(self.decision.max())) == self._actions.shape[1]:
            self._actions = np.pad(self._actions, ((0, 0), (0, longest)))
        self._actions[envs, self.decision] = actions
        self.decision += 1
        observation, reward, ended, _, info = self.env.step(actions)
        attribution = self.env.attribution
        self.seen = self._table(observation)
        if ended.any():
            self.restart(ended)
        return Played(*self.seen, reward, info["discount"], attribution, ended)

    def restart(self, chosen: NDArray[np.bool_]) -> None:
        """Let the next episode begin in the chosen clusters, bool [E]."""
        self.episode[chosen] += 1
        self.decision[chosen] = 0
        self._reset(chosen)

    def _reset(self, chosen: NDArray[np.bool_]) -> None:
        options = {"reset_mask": chosen}
        self.seen = self._table(self.env.reset(seed=self._seeds(), options=options)[0])

    def members(self, groups: range) -> NDArray[np.bool_]:
        """Which clusters belong to these groups, bool [E]."""
        return np.isin(self._group, list(groups))

    def state(self) -> dict[str, NDArray[Any]]:
        """All that `resume` needs."""
        made = self._actions[:, : self.decision.max()]
        return {"episode": self.episode, "decision": self.decision, "actions": made}

    def resume(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Be as the clusters were when this was their state: play their episodes so far again."""
        decisions, actions = state["decision"], state["actions"]
        self.episode = state["episode"].astype(np.int64)
        longest = int(decisions.max())
        self._reset(np.ones(len(decisions), np.bool_))
        for left in range(longest, 0, -1):
            # A cluster begins when as many decisions are left as it has made.
            if left < longest and (begins := decisions == left).any():
                self._reset(begins)
            begun = decisions >= left
            again = actions[np.arange(len(decisions)), np.where(begun, decisions - left, 0)]
            self._replay(np.where(begun, again.astype(np.int64), -1))
        if longest > 0 and (begins := decisions == 0).any():
            self._reset(begins)
        self.decision = decisions.astype(np.int64)
        self._actions = np.zeros((len(decisions), max(1024, 2 * longest)), np.int16)
        self._actions[:, :longest] = actions

    def _replay(self, actions: NDArray[np.int64]) -> None:
        """Step with these, and with anything that is allowed where they are -1."""
        anything = self.env.action_masks().argmax(1)
        observation, _, ended, _, _ = self.env.step(np.where(actions < 0, anything, actions))
        self.seen = self._table(observation)
        if ended.any():  # one that waits for its turn: it will be reset when it begins
            self._reset(ended)

    def close(self) -> None:
        """Stop the threads."""
        self.env.close()
