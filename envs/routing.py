"""PrefixRouting-v0: one cluster, one routing decision a step."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.episodes import Episodes, Observation
from prefixgym.envs.rendering.renderer import RENDER_FPS, RENDER_MODES, Rendering, check_render_mode
from prefixgym.envs.reward import RewardChoice
from prefixgym.envs.scenarios.randomisation import Randomisation
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.surface import OnePool, Surface

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

    `Discrete(N)`: the instance that gets the request. With `allow_reject`, `Discrete(N + 1)`:
    action N turns the request away. It counts as one that was never answered, and what its session
    would have asked next comes as after any other end.

    ## Observation space

    `Dict(request: Box[R], instances: Box[N·F])`, float32 in [0, 1]: what the router knows about the
    request and about every instance, as fresh as the scenario says. `instances` is a table laid out
    row by row, `instances.reshape(N, F)`. The columns are listed in
    `prefixgym.envs.observation.OBSERVATION_FIELDS`. Rows of instances that may not be chosen are
    zeros: those that the router believes to be down (where the scenario has faults or an
    autoscaler), and those that are not there (with `randomise`).

    ## Rewards

    With n the requests that ended since the last decision, good_n = 1 if n met its TTFT and TPOT
    objectives, else 0, and tardiness_n in [0, cap] how late it was (see `prefixgym.envs.reward`):

    - `goodput`: Σ_n (good_n − w · tardiness_n). Every request is rewarded once, when it ends, so an
      episode adds up to its good requests less w times the tardiness of all. w is 0 by default.
    - `attributed`: the same, and `info["attribution"]` tells which decisions are paid.
    - `shaped`: the same + γ Φ(s') − Φ(s), with Φ(s) the number of requests in flight that are
      expected to be in time. The signal comes with the decision; the optimum stays.

    Parameters go into a dict: `reward={"mode": "shaped", "tardiness": 0.25, "cap": 8}`.

    ## Starting state

    Empty caches, no load, and the first request of an episode drawn from the scenario's training
    seeds. With `randomise`, every episode also draws its load, instances, caches and objectives.

    ## Episode end

    Terminates after the last request has been routed: the cluster drains within that step, so every
    request is accounted for and nothing of value lies behind the end. Never truncates by itself.

    ## Information

    - `action_mask` (int8, 1 = may be chosen) and `time` (s of the current arrival) after reset and
      every step; the method `action_masks()` is what sb3-contrib's MaskablePPO asks for.
    - `discount` after every step, with `discount_time` τ: exp(−Δt / τ) for the Δt s until the next
      decision, and 0 after the last one. Decisions come at random times: a discount per decision
      looks ahead for fewer seconds the higher the load is (`rl.md` §5.3). Use it in place of γ.
    - `attribution` after every step, with the reward of this name: a list of (decision, units) for
      the requests that ended. The units add up to the reward, and an episode names each of its
      decisions, numbered from 0, once.
    - `randomisation` after reset, with `randomise`: what was drawn, namely `rate` (requests/s),
      `slo` (factor on all objectives), `kv_blocks` (int64 [N], 0 for an instance that is not there)
      and `profile` (int64 [N], index into `profiles`, −1 for the scenario's own).

    ## Arguments

    Args:
        scenario: name of a built-in scenario, path of a TOML file, or a `Scenario`.
        rate: arrival rate in requests/s; by default the middle of the scenario's load ladder.
        num_requests: decisions of an episode; by default the scenario's.
        reward: `goodput`, `attributed` or `shaped`, or a dict with one of them as `mode` beside its
            parameters.
        render_mode: `ansi` (`render()` returns text), `rgb_array` (a picture, uint8 [H, W, 3]) or
            `human` (a window, drawn at every step; needs pygame, the extra `human`). A person sees
            per instance the queue, the KV memory, the hit and the first token to be expected of the
            current request, and the objectives missed; and the decision taken last.
        allow_reject: add an action that turns the request away.
        discount_time: τ in s; 10 to 30 are recommended (`rl.md` §5.3). None: no `discount`.
        randomise: fields of `prefixgym.envs.scenarios.randomisation.Randomisation`, for example
            `{"load": [0.5, 1.5], "instances": 4}`; by default what the scenario says, `{}` for
            nothing. With `instances`, a random action may be one that is not allowed: heed the
            masks.

    Raises:
        ValueError: an argument that is not allowed; in `step`, an action that is not.
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
        reward: RewardChoice = "goodput",
        render_mode: str | None = None,
        *,
        allow_reject: bool = False,
        discount_time: float | None = None,
        randomise: Randomisation | Mapping[str, Any] | None = None,
    ) -> None:
        check_render_mode(render_mode, RENDER_MODES)
        self.episodes = Episodes(
            scenario,
            rate,
            num_requests,
            reward,
            num_envs=1,
            allow_reject=allow_reject,
            discount_time=discount_time,
            randomise=randomise,
            render_mode=render_mode,
        )
        self.surface = self._surface(self.episodes)
        self.observation_space = self.surface.observation_space
        self.action_space = self.surface.action_space
        self.render_mode = render_mode

    @staticmethod
    def _surface(episodes: Episodes) -> Surface:
        return OnePool(episodes)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode; equal seeds start equal episodes."""
        super().reset(seed=seed)
        observation = self.episodes.reset([self.np_random], np.ones(1, np.bool_))
        self._show()
        info = self._info()
        if conditions := self.episodes.conditions:
            info["randomisation"] = {key: value[0] for key, value in conditions.items()}
        return self._first(observation), info

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, Info]:
        """Send the current request to instance `action`, or turn it away (action N)."""
        actions = np.array([action], np.int64)
        self.surface.check(actions)
        if self.episodes.simulation.is_over(0):
            raise gym.error.ResetNeeded("the episode has ended (or none was started): call reset")
        observation, rewards, told = self.episodes.step(self.surface.routed(actions))
        terminated = self.episodes.simulation.is_over(0)
        self._show()
        info = self._info() | {key: values[0] for key, values in told.items()}
        return self._first(observation), float(rewards[0]), terminated, False, info

    def action_masks(self) -> NDArray[np.int8]:
        """1 for each action that may be chosen, int8 [actions]."""
        masks: NDArray[np.int8] = self.surface.masks[0]
        return masks

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
        return {name: values[0] for name, values in self.surface.observed(observation).items()}

    def _info(self) -> Info:
        time = float(self.episodes.simulation.view.requests["time"][0])
        return {"action_mask": self.action_masks(), "time": time}
