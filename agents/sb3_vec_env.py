"""The native batch environment as a Stable-Baselines3 `VecEnv`.

Stable-Baselines3 takes no Gymnasium vector environment, only a `VecEnv`, and those that it comes
with step single environments in a loop. Here one compiled call steps them all.
"""

import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from prefixgym.envs.episodes import Observation
from prefixgym.envs.recorded_play import info_of
from prefixgym.envs.reward import RewardChoice
from prefixgym.envs.scenarios.randomisation import Randomisation
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.vector import Info, PrefixRoutingVectorEnv

_TOLD = ("discount", "attribution")
"""Of a step's infos, those that Stable-Baselines3 gets too."""


class PrefixRoutingVecEnv(VecEnv):
    """`num_envs` clusters for Stable-Baselines3's algorithms and sb3-contrib's MaskablePPO.

    Acts like a `DummyVecEnv` of `PrefixRoutingEnv`s within `Monitor`: the same observations,
    rewards and ends for the same seeds and actions. Only infos are leaner. They hold `discount` and
    `attribution`, if these were asked for. Else they are empty, and the same dicts in every step
    (so do not write into them), but where an episode ended. There they hold
    `terminal_observation`, `TimeLimit.truncated` (False: episodes end by themselves) and `episode`,
    Monitor's r (return), l (length) and t (seconds since the start). `reset_infos` hold
    `randomisation`. Masks are given by `env_method("action_masks")`.

    Args:
        num_envs: E.
        scenario, rate, num_requests, reward, threads, allow_reject, discount_time, randomise: as
            for `PrefixRoutingVectorEnv`.
        stagger: let `reset` play round robin for i/E of an episode in environment i. Else all
            clusters fill up, and all episodes end, at the same time, so that no batch to learn
            from shows more than one phase of an episode.
    """

    def __init__(
        self,
        num_envs: int = 1,
        scenario: str | Scenario = "shared-prompts-8",
        rate: float | None = None,
        num_requests: int | None = None,
        reward: RewardChoice = "goodput",
        threads: int | None = None,
        stagger: bool = False,
        *,
        allow_reject: bool = False,
        discount_time: float | None = None,
        randomise: Randomisation | Mapping[str, Any] | None = None,
    ) -> None:
        self.vector_env = PrefixRoutingVectorEnv(
            num_envs,
            scenario,
            rate,
            num_requests,
            reward,
            autoreset_mode=AutoresetMode.SAME_STEP,
            threads=threads,
            allow_reject=allow_reject,
            discount_time=discount_time,
            randomise=randomise,
        )
        super().__init__(
            num_envs,
            self.vector_env.single_observation_space,
            self.vector_env.single_action_space,
        )
        self._stagger = stagger
        self._actions = np.zeros(num_envs, np.int64)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._empty_infos: list[Info] = [{} for _ in range(num_envs)]
        self._start = time.time()

    def reset(self) -> Observation:
        """Start an episode in every environment; seeds given to `seed` count once."""
        observation, info = self.vector_env.reset(seed=self._seeds)
        self._note_conditions(info)
        self._returns[:] = 0
        self._lengths[:] = 0
        if self._stagger:
            observation = self._play_ahead()
        self._reset_seeds()
        self._reset_options()
        return observation

    def _play_ahead(self) -> Observation:
        """i/E of an episode in environment i, from a new start."""
        episodes = self.vector_env.episodes
        ahead = np.arange(self.num_envs) * episodes.scenario.num_requests // self.num_envs
        for left in range(ahead.max(), 0, -1):
            if (ahead == left).any():
                self._restart(ahead == left)
            available = self.vector_env.action_masks()[:, : episodes.num_instances]
            turn = left % available.sum(1)
            in_turn = (available.cumsum(1) > turn[:, None]).argmax(1)
            self._returns += self.vector_env.step(in_turn)[1]
            self._lengths += 1
        return self._restart(ahead == 0)

    def _restart(self, chosen: NDArray[np.bool_]) -> Observation:
        self._returns[chosen] = 0
        self._lengths[chosen] = 0
        observation, info = self.vector_env.reset(options={"reset_mask": chosen})
        self._note_conditions(info)
        return observation

    def _note_conditions(self, info: Info) -> None:
        """Keep what was drawn for episodes that have just started."""
        if "randomisation" not in info:
            return
        for i in np.flatnonzero(info["_randomisation"]).tolist():
            self.reset_infos[i] = {"randomisation": info_of(info["randomisation"], i)}

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Keep the actions [E] for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """One decision everywhere; those that ended start their next episode within this step."""
        observation, rewards, ended, _, info = self.vector_env.step(self._actions)
        self._returns += rewards
        self._lengths += 1
        infos = self._told(info)
        if ended.any():
            infos = infos.copy()
            for i in np.flatnonzero(ended).tolist():
                told = info_of(info["final_info"], i)
                infos[i] = {key: told[key] for key in _TOLD if key in told}
                infos[i] |= self._final_info(i, info["final_obs"][i])
            self._returns[ended] = 0
            self._lengths[ended] = 0
            self._note_conditions(info)
        return observation, rewards.astype(np.float32), ended, infos

    def _told(self, info: Info) -> list[Info]:
        """What the step tells of each environment."""
        keys = [key for key in _TOLD if key in info]
        if not keys:
            return self._empty_infos
        columns = [info[key].tolist() for key in keys]
        return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]

    def _final_info(self, i: int, observation: Observation) -> Info:
        return {
            "terminal_observation": observation,
            "TimeLimit.truncated": False,
            "episode": {
                "r": float(self._returns[i]),
                "l": int(self._lengths[i]),
                "t": round(time.time() - self._start, 6),
            },
        }

    def close(self) -> None:
        """Stop the threads."""
        self.vector_env.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of the batch environment, once for each index: all share it."""
        value = getattr(self.vector_env, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Refused: environments of a batch have no attributes of their own."""
        raise AttributeError(
            f"{attr_name}: cannot be set, make a new PrefixRoutingVecEnv with other arguments"
        )

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """`action_masks`, which MaskablePPO calls: an int8 array [N] for each index."""
        if method_name != "action_masks":
            raise AttributeError(f"env_method: found {method_name!r}, allowed: 'action_masks'")
        masks = self.vector_env.action_masks()
        return [masks[i] for i in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """True for `Monitor`, whose `episode` infos this class writes itself; else False."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]
