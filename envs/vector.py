"""PrefixRouting-v0, vectorised natively: many clusters in one compiled step."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from prefixgym.envs.episodes import Episodes, Flags, Observation
from prefixgym.envs.rendering.renderer import (
    RENDER_FPS,
    VECTOR_RENDER_MODES,
    Rendering,
    check_render_mode,
)
from prefixgym.envs.reward import Attribution, RewardChoice
from prefixgym.envs.scenarios.randomisation import Randomisation
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.surface import OnePool, Surface

Info = dict[str, Any]


class PrefixRoutingVectorEnv(gym.vector.VectorEnv[Observation, NDArray[np.int64], Any]):
    """`num_envs` independent `PrefixRoutingEnv`s that step together.

    Sub-environment i behaves exactly like a single environment that was reset with seed + i,
    whatever `num_envs` and `threads` are.

    Args:
        num_envs: E.
        scenario, rate, num_requests, reward, allow_reject, discount_time, randomise: as for
            `PrefixRoutingEnv`.
        autoreset_mode: what happens at an episode's end, Gymnasium's `AutoresetMode` or its value:
            `NextStep` (default), `SameStep` or `Disabled`.
        threads: how many threads share a step; by default one for every 32 environments, at most
            one a core.
        copy: give out new observation arrays every time. If False, arrays stay valid for one more
            step only, which saves an allocation.
        render_mode: as for `PrefixRoutingEnv`, without `human`; `render()` returns a tuple, one
            picture or text for each sub-environment.
        max_episode_steps: taken because `gymnasium.make_vec` passes it on; must be None, episodes
            end by themselves.
    """

    def __init__(
        self,
        num_envs: int = 1,
        scenario: str | Scenario = "shared-prompts-8",
        rate: float | None = None,
        num_requests: int | None = None,
        reward: RewardChoice = "goodput",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        threads: int | None = None,
        copy: bool = True,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        *,
        allow_reject: bool = False,
        discount_time: float | None = None,
        randomise: Randomisation | Mapping[str, Any] | None = None,
    ) -> None:
        check_render_mode(render_mode, VECTOR_RENDER_MODES)
        if max_episode_steps is not None:
            raise ValueError(
                f"max_episode_steps: found {max_episode_steps}, must be None: "
                "num_requests makes shorter episodes"
            )
        if threads is None:
            threads = max(1, min(os.cpu_count() or 1, num_envs // 32))
        self.num_envs = num_envs
        self.episodes = Episodes(
            scenario,
            rate,
            num_requests,
            reward,
            num_envs,
            allow_reject=allow_reject,
            discount_time=discount_time,
            randomise=randomise,
            threads=threads,
            copy=copy,
            render_mode=render_mode,
        )
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.render_mode = render_mode
        self.metadata = {
            "render_modes": list(VECTOR_RENDER_MODES),
            "render_fps": RENDER_FPS,
            "autoreset_mode": self.autoreset_mode,
        }
        self.surface = self._surface(self.episodes)
        self.single_observation_space = self.surface.observation_space
        self.single_action_space = self.surface.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators: list[np.random.Generator] = [
            np.random.default_rng() for _ in range(num_envs)
        ]
        self._done = np.zeros(num_envs, np.bool_)
        self._started = False

    @staticmethod
    def _surface(episodes: Episodes) -> Surface:
        return OnePool(episodes)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, Info]:
        """Start episodes, in all sub-environments or where `options["reset_mask"]` says.

        Args:
            seed: sub-environment i is seeded with seed + i, or with the i-th of a sequence; None
                goes on with the generators as they are.
            options: may hold `reset_mask`, bool [E].
        """
        chosen = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            chosen = self._checked_mask(options["reset_mask"])
        if seed is not None:
            seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
            if len(seeds) != self.num_envs:
                raise ValueError(f"seed: found {len(seeds)} seeds, expected {self.num_envs}")
            for i in np.flatnonzero(chosen).tolist():
                if seeds[i] is not None:
                    self._generators[i] = gym.utils.seeding.np_random(seeds[i])[0]
        observation = self._restart(chosen)
        self._done[chosen] = False
        self._started = True
        return observation, self._info() | self._conditions(chosen)

    def _restart(self, chosen: Flags) -> Observation:
        return self.surface.observed(self.episodes.reset(self._generators, chosen))

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Observation, NDArray[np.float64], Flags, Flags, Info]:
        """One decision in every sub-environment, actions [E]."""
        if not self._started:
            raise gym.error.ResetNeeded("call reset before the first step")
        actions = np.ascontiguousarray(actions, np.int64)
        if actions.shape != self.action_space.shape:
            raise ValueError(
                f"actions: found shape {actions.shape}, expected {self.action_space.shape}"
            )
        self.surface.check(actions)
        ended_before = self._done
        if self.autoreset_mode is AutoresetMode.DISABLED and ended_before.any():
            raise gym.error.ResetNeeded(
                f"sub-environments {np.flatnonzero(ended_before).tolist()} have ended: reset them "
                'with options={"reset_mask": ...}'
            )
        seen, rewards, told = self.episodes.step(self.surface.routed(actions))
        observation = self.surface.observed(seen)
        terminations = self.episodes.simulation.done
        truncations = np.zeros(self.num_envs, np.bool_)
        others: Info = {}
        reset = np.zeros(self.num_envs, np.bool_)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and ended_before.any():
            # Their action was ignored: they were done and did not move.
            reset = ended_before
            observation = self._restart(reset)
            rewards[reset] = 0.0
            terminations = terminations & ~reset
            others = self._conditions(reset)
        elif self.autoreset_mode is AutoresetMode.SAME_STEP and terminations.any():
            reset = terminations
            others = self._final_info(observation, told, reset)
            observation = self._restart(reset)
            others |= self._conditions(reset)
        self._done = terminations & ~reset
        info = self._info() | _masked(told, ~reset) | others
        return observation, rewards, terminations, truncations, info

    def action_masks(self) -> NDArray[np.int8]:
        """1 for each action that may be chosen, int8 [E, actions]."""
        return self.surface.masks

    @property
    def attribution(self) -> Attribution | None:
        """What `info["attribution"]` said last, of all sub-environments in flat arrays.

        None unless the reward is `attributed`. Sub-environments whose episode ended in the last
        step are included, in every mode.
        """
        return self.episodes.attribution

    def render(self) -> tuple[Rendering, ...] | None:  # type: ignore[override]
        """Every sub-environment's current decision, as `render_mode` says.

        Raises:
            gymnasium.error.ResetNeeded: no episode was started.
        """
        renderer = self.episodes.renderer
        if renderer is None:
            gym.logger.warn("render() shows nothing: make the environment with a render_mode")
            return None
        return tuple(renderer.render(e) for e in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads."""
        self.episodes.simulation.close()

    def _checked_mask(self, mask: Any) -> Flags:
        if not (
            isinstance(mask, np.ndarray)
            and mask.dtype == np.bool_
            and mask.shape == (self.num_envs,)
            and mask.any()
        ):
            raise ValueError(
                f"options['reset_mask']: found {mask!r}, expected a bool array of shape "
                f"({self.num_envs},) with at least one True"
            )
        return mask

    def _info(self) -> Info:
        everyone = np.ones(self.num_envs, np.bool_)
        return {
            "action_mask": self.action_masks(),
            "_action_mask": everyone,
            "time": self.episodes.simulation.view.requests["time"].copy(),
            "_time": everyone.copy(),
        }

    def _conditions(self, chosen: Flags) -> Info:
        """What was drawn for the episodes that have just started in `chosen`."""
        conditions = self.episodes.conditions
        if not conditions:
            return {}
        return _masked({"randomisation": _masked(conditions, chosen)}, chosen)

    def _final_info(self, observation: Observation, told: Info, ended: Flags) -> Info:
        """Gymnasium's `final_obs` (object array) and `final_info` (nested) of the ended ones."""
        final_obs = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(ended):
            final_obs[i] = {name: values[i].copy() for name, values in observation.items()}
        final_info = {
            key: value & ended if key.startswith("_") else value.copy()
            for key, value in (self._info() | _masked(told, ended)).items()
        }
        return {
            "final_obs": final_obs,
            "_final_obs": ended.copy(),
            "final_info": final_info,
            "_final_info": ended.copy(),
        }


def _masked(values: Info, mask: Flags) -> Info:
    """Each value beside a mask `_key` of the sub-environments that it holds for."""
    masked: Info = {}
    for key, value in values.items():
        masked[key] = value
        masked[f"_{key}"] = mask.copy()
    return masked
