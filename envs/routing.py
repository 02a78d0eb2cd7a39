"""PrefixRouting-v0: one cluster, one routing decision a step."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.episodes import Episodes, Observation
from prefixgym.envs.observation import observation_space
from prefixgym.envs.rendering.renderer import RENDER_FPS, RENDER_MODES, Rendering, check_render_mode
from prefixgym.envs.scenarios.schema import Scenario

Info = dict[str, Any]


class PrefixRoutingEnv(gym.Env[Observation, np.int64]):
    """Route LLM requests to the instances of a cluster with prefix caches.

    ## Description

    Requests arrive one after the other. Each is a chain of blocks, of which some instances hold a
    prefix in their KV cache: there it costs less to answer. The router picks an instance; the
    request queues there, is prefilled and decoded by continuous batching, and leaves its own blocks
    behind for later requests. The cluster is a calibrated, event-driven model of vLLM engines
    (`prefixgym.envs.cluster`).

    ## Action space

    `Discrete(N)`: the instance that gets the request.

    ## Observation space

    `Dict(request: Box[R], instances: Box[N·F])`, float32 in [0, 1]: what the router knows about the
    request and about every instance, as fresh as the scenario says. `instances` is a table laid out
    row by row, `instances.reshape(N, F)`. The columns are listed in
    `prefixgym.envs.observation.OBSERVATION_FIELDS`.

    ## Rewards

    `goodput`: +1 for each request that met its TTFT and TPOT objectives, paid when it ends. The sum
    over an episode is the number of good requests.

    ## Starting state

    Empty caches, no load, and the first request of an episode drawn from the scenario's training
    seeds.

    ## Episode end

    Terminates after the last request has been routed: the cluster drains within that step, so every
    request is accounted for and nothing of value lies behind the end. Never truncates by itself.

    ## Information

    `action_mask` (int8 [N], 1 = may be chosen) and `time` (s of the current arrival) after reset
    and every step; the method `action_masks()` is what sb3-contrib's MaskablePPO asks for.

    ## Arguments

    Args:
        scenario: name of a built-in scenario, path of a TOML file, or a `Scenario`.
        rate: arrival rate in requests/s; by default the middle of the scenario's load ladder.
        num_requests: decisions of an episode; by default the scenario's.
        reward: `goodput`.
        render_mode: `ansi` (`render()` returns text), `rgb_array` (a picture, uint8 [H, W, 3]) or
            `human` (a window, drawn at every step; needs pygame, the extra `human`). A person sees
            per instance the queue, the KV memory, the hit and the first token to be expected of the
            current request, and the objectives missed; and the decision taken last.
    """

    metadata = {  # noqa: RUF012  # Gymnasium's own convention
        "render_modes": list(RENDER_MODES),
        "render_fps": RENDER_FPS,
    }
    observation_space: gym.spaces.Dict  # type: ignore[assignment]
    action_space: gym.spaces.Discrete[np.int64]

    def __init__(
        self,
        scenario: str | Scenario = "shared-prompts-8",
        rate: float | None = None,
        num_requests: int | None = None,
        reward: str = "goodput",
        render_mode: str | None = None,
    ) -> None:
        check_render_mode(render_mode, RENDER_MODES)
        self.episodes = Episodes(
            scenario, rate, num_requests, reward, num_envs=1, render_mode=render_mode
        )
        self.observation_space = observation_space(self.episodes.num_instances)
        self.action_space = gym.spaces.Discrete(self.episodes.num_instances)
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode; equal seeds start equal episodes."""
        super().reset(seed=seed)
        observation = self.episodes.reset([self.np_random], np.ones(1, np.bool_))
        self._show()
        return self._first(observation), self._info()

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, Info]:
        """Send the current request to instance `action`."""
        if not 0 <= action < self.action_space.n:
            raise ValueError(f"action: found {action!r}, allowed: 0 to {self.action_space.n - 1}")
        if self.episodes.simulation.done[0]:
            raise gym.error.ResetNeeded("the episode has ended (or none was started): call reset")
        observation, rewards = self.episodes.step(np.array([action], np.int64))
        terminated = bool(self.episodes.simulation.done[0])
        self._show()
        return self._first(observation), float(rewards[0]), terminated, False, self._info()

    def action_masks(self) -> NDArray[np.int8]:
        """1 for each instance that may be chosen, int8 [N]."""
        return self.episodes.action_masks[0]

    def render(self) -> Rendering:
        """The current decision, as `render_mode` says; None with `human`.

        Raises:
            gymnasium.error.ResetNeeded: no episode was started.
        """
        if self.episodes.renderer is None:
            gym.logger.warn("render() shows nothing: make the environment with a render_mode")
            return None
        return self.episodes.renderer.render(0)

    def close(self) -> None:
        """Close the window, if there is one."""
        if self.episodes.renderer is not None:
            self.episodes.renderer.close()

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()

    def _first(self, observation: Observation) -> Observation:
        return {name: values[0] for name, values in observation.items()}

    def _info(self) -> Info:
        time = float(self.episodes.simulation.view.requests["time"][0])
        return {"action_mask": self.action_masks(), "time": time}
