"""What the single and the vector environment have in common: a scenario played and observed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.decisions import SimulationArrays, reset_range, step_range
from prefixgym.envs.jit import borrowed, kernel
from prefixgym.envs.observation import INSTANCE_FIELDS, REQUEST_FIELDS, instance_constants
from prefixgym.envs.observation import write_observation as write_observation_of
from prefixgym.envs.rendering.renderer import Renderer
from prefixgym.envs.reward import make_reward
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.simulation import Simulation

Observation = dict[str, NDArray[np.float32]]


@kernel
def observe_range(
    s: SimulationArrays,
    first: int,
    last: int,
    constants: NDArray[np.float64],
    requests: NDArray[np.float32],
    instances: NDArray[np.float32],
) -> None:
    """Write the observations of environments first … last - 1."""
    s = borrowed(s)
    for e in range(first, last):
        write_observation_of(s.knowledge, e, constants, requests[e], instances[e])


@kernel
def _step_and_observe(
    s: SimulationArrays,
    first: int,
    last: int,
    actions: NDArray[np.int64],
    constants: NDArray[np.float64],
    requests: NDArray[np.float32],
    instances: NDArray[np.float32],
) -> int:
    most = step_range(s, first, last, actions)
    observe_range(s, first, last, constants, requests, instances)
    return most


@kernel
def _reset_and_observe(
    s: SimulationArrays,
    first: int,
    last: int,
    chosen: NDArray[np.bool_],
    constants: NDArray[np.float64],
    requests: NDArray[np.float32],
    instances: NDArray[np.float32],
) -> int:
    most = reset_range(s, first, last, chosen)
    observe_range(s, first, last, constants, requests, instances)
    return most


class Episodes:
    """Training episodes of one scenario in E environments, with observations and rewards.

    Args:
        scenario: a built-in name, a path of a TOML file, or a `Scenario`.
        rate: requests/s; by default the middle of the scenario's load ladder.
        num_requests: decisions of an episode; by default the scenario's.
        reward: name of the reward, see `prefixgym.envs.reward.REWARDS`.
        num_envs: E.
        threads: how many threads share a step.
        copy: give out new observation arrays every time; if False, two pairs of buffers take turns.
        render_mode: how `renderer` shows episodes, see `Renderer`; None makes no renderer.
    """

    def __init__(
        self,
        scenario: str | Scenario,
        rate: float | None,
        num_requests: int | None,
        reward: str,
        num_envs: int,
        *,
        threads: int = 1,
        copy: bool = True,
        render_mode: str | None = None,
    ) -> None:
        chosen = load_scenario(scenario) if isinstance(scenario, str) else scenario
        if num_requests is not None:
            chosen = chosen.with_num_requests(num_requests)
        self.scenario = chosen
        self.rate = chosen.rates[len(chosen.rates) // 2] if rate is None else rate
        self.simulation = Simulation(
            *chosen.build(self.rate),
            num_envs=num_envs,
            record=render_mode is not None,
            threads=threads,
        )
        self.renderer: Renderer | None = None
        if render_mode is not None:
            title = f"{chosen.name} at {self.rate:g} requests/s"
            self.renderer = Renderer(render_mode, self.simulation, title)
        self.num_instances = len(self.simulation.cluster.instances)
        self._train = chosen.seeds.of("train")
        self._reward = make_reward(reward)
        self._constants = instance_constants(self.simulation.cluster)
        self._copy = copy
        self._buffers = (self._new_buffers(), self._new_buffers())
        self._turn = 0

    def _new_buffers(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        num_envs = self.simulation.num_envs
        return (
            np.empty((num_envs, len(REQUEST_FIELDS)), np.float32),
            np.empty((num_envs, self.num_instances, len(INSTANCE_FIELDS)), np.float32),
        )

    def _next_buffers(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if self._copy:
            return self._new_buffers()
        self._turn ^= 1
        return self._buffers[self._turn]

    def reset(
        self, generators: Sequence[np.random.Generator], chosen: NDArray[np.bool_]
    ) -> Observation:
        """Start a new training episode in the chosen environments (bool [E]).

        Each draws its episode from its own generator. Returns the observations of all environments.
        """
        seeds: list[int | None] = [None] * self.simulation.num_envs
        for e in np.flatnonzero(chosen).tolist():
            seeds[e] = self._train[int(generators[e].integers(len(self._train)))]
        requests, instances = self._next_buffers()
        self.simulation.load(seeds, chosen)
        if self.renderer is not None:
            self.renderer.spectator.restart(chosen)
        self.simulation.run(_reset_and_observe, chosen, self._constants, requests, instances)
        return self._observation(requests, instances)

    def step(self, actions: NDArray[np.int64]) -> tuple[Observation, NDArray[np.float64]]:
        """One decision of every environment that is not done: observations and rewards [E]."""
        requests, instances = self._next_buffers()
        if self.renderer is not None:
            self.renderer.spectator.note(actions)
        self.simulation.run(_step_and_observe, actions, self._constants, requests, instances)
        return self._observation(requests, instances), self._reward(self.simulation)

    def _observation(
        self, requests: NDArray[np.float32], instances: NDArray[np.float32]
    ) -> Observation:
        return {"request": requests, "instances": instances.reshape(len(instances), -1)}

    @property
    def action_masks(self) -> NDArray[np.int8]:
        """1 where an instance may be chosen, int8 [E, N], a new array."""
        return self.simulation.arrays.knowledge.instances["available"].astype(np.int8)
