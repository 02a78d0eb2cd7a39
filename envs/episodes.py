"""What the single and the vector environment have in common: a scenario played and observed."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.episode_state import SimulationArrays
from prefixgym.envs.jit import borrowed, kernel
from prefixgym.envs.lent import Lent
from prefixgym.envs.observation import (
    INSTANCE_FIELDS,
    REQUEST_FIELDS,
    constants_of,
    instance_constants,
)
from prefixgym.envs.observation import write_observation as write_observation_of
from prefixgym.envs.rendering.renderer import Renderer
from prefixgym.envs.reward import Attribution, RewardChoice, make_reward
from prefixgym.envs.scenarios.randomisation import (
    Conditioner,
    Conditions,
    Randomisation,
    make_randomisation,
)
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.simulation import Simulation

Observation = dict[str, NDArray[np.float32]]
Flags = NDArray[np.bool_]

_NOWHERE = np.empty(0, np.intp)


@kernel
def observe_range(
    lent: Lent,
    first: int,
    last: int,
    constants: NDArray[np.float64],
    requests: NDArray[np.float32],
    instances: NDArray[np.float32],
) -> int:
    """Write the observations of environments first … last - 1.

    `constants` [E, N, C], or [1, N, C] if all environments share them.
    """
    s: SimulationArrays = borrowed(lent.arrays)
    for e in range(first, last):
        mine = constants[min(e, len(constants) - 1)]
        write_observation_of(s.knowledge, e, mine, requests[e], instances[e])
    return 0


class Episodes:
    """Training episodes of one scenario in E environments, with observations and rewards.

    Args:
        scenario: a built-in name, a path of a TOML file, or a `Scenario`.
        rate: requests/s; by default the middle of the scenario's load ladder.
        num_requests: decisions of an episode; by default the scenario's.
        reward: see `prefixgym.envs.reward.make_reward`.
        num_envs: E.
        allow_reject: action N rejects the request.
        discount_time: s after which what is earned counts 1/e of now; None for no discounts.
        randomise: what differs from episode to episode; by default what the scenario says.
        threads: how many threads share a step.
        copy: give out new observation arrays every time; if False, two pairs of buffers take turns.
        render_mode: how `renderer` shows episodes, see `Renderer`; None makes no renderer.
    """

    def __init__(
        self,
        scenario: str | Scenario,
        rate: float | None,
        num_requests: int | None,
        reward: RewardChoice,
        num_envs: int,
        *,
        allow_reject: bool = False,
        discount_time: float | None = None,
        randomise: Randomisation | Mapping[str, Any] | None = None,
        threads: int = 1,
        copy: bool = True,
        render_mode: str | None = None,
    ) -> None:
        chosen = load_scenario(scenario) if isinstance(scenario, str) else scenario
        if num_requests is not None:
            chosen = chosen.with_num_requests(num_requests)
        if discount_time is not None and not discount_time > 0:
            raise ValueError(f"discount_time: found {discount_time}, must be above 0 s")
        self.scenario = chosen
        self.rate = chosen.rates[len(chosen.rates) // 2] if rate is None else rate
        self._reward = make_reward(reward)
        credit = self._reward.credit
        self._attributes = credit.attribution
        self._discount_time = discount_time
        self.randomisation = (
            chosen.randomisation if randomise is None else make_randomisation(randomise)
        )
        setup = chosen.build(self.rate)
        self._conditioner: Conditioner | None = None
        if self.randomisation.anything:
            self._conditioner = Conditioner(self.randomisation, setup.cluster)
            setup = setup._replace(cluster=self._conditioner.largest)
        self.simulation = Simulation(
            **setup._asdict(),
            num_envs=num_envs,
            record=render_mode is not None,
            threads=threads,
            credit=credit,
            own_conditions=self._conditioner is not None,
        )
        self.renderer: Renderer | None = None
        if render_mode is not None:
            title = f"{chosen.name} at {self.rate:g} requests/s"
            self.renderer = Renderer(render_mode, self.simulation, title)
        self.num_instances = len(setup.cluster.instances)
        self.num_actions = self.num_instances + allow_reject
        self._train = chosen.seeds.of("train")
        rows = 1 if self._conditioner is None else num_envs
        self._constants = np.tile(instance_constants(setup.cluster), (rows, 1, 1))
        self._drawn: dict[str, NDArray[Any]] = {}
        self._attribution: Attribution | None = None
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

    def reset(self, generators: Sequence[np.random.Generator], chosen: Flags) -> Observation:
        """Start a new training episode in the chosen environments (bool [E]).

        Each draws its episode from its own generator. Returns the observations of all environments.
        """
        seeds: list[int | None] = [None] * self.simulation.num_envs
        for e in np.flatnonzero(chosen).tolist():
            seeds[e] = self._train[int(generators[e].integers(len(self._train)))]
        if self._conditioner is None:
            self.simulation.load(seeds, chosen)
        else:
            for e in np.flatnonzero(chosen).tolist():
                self._condition(e, seeds[e], self._conditioner, generators[e])
        requests, instances = self._next_buffers()
        if self.renderer is not None:
            self.renderer.spectator.restart(chosen)
        self.simulation.begin(chosen, (observe_range, self._constants, requests, instances))
        return self._observation(requests, instances)

    def _condition(
        self, e: int, seed: int | None, conditioner: Conditioner, generator: np.random.Generator
    ) -> None:
        """Draw the conditions of the next episode of environment e."""
        drawn = conditioner.draw(generator)
        rate, cost = self.rate * drawn.load, conditioner.cost(drawn)
        tape = self.scenario.build_workload(rate).tape(int(seed or 0))
        self.simulation.write_tape(e, self.simulation.admit(tape))
        self.simulation.set_chance(e, int(seed or 0))
        self.simulation.set_conditions(e, cost, drawn.kv_blocks, drawn.slo)
        block_size = self.simulation.cluster.block_size
        self._constants[e] = constants_of(cost, drawn.kv_blocks * block_size)
        self._note(e, drawn, rate)

    def _note(self, e: int, drawn: Conditions, rate: float) -> None:
        shown: dict[str, NDArray[Any]] = {
            "rate": np.array(rate),
            "slo": np.array(drawn.slo),
            "kv_blocks": drawn.kv_blocks,
            "profile": drawn.profile,
        }
        for key, value in shown.items():
            if key not in self._drawn:
                self._drawn[key] = np.zeros((self.simulation.num_envs, *value.shape), value.dtype)
            self._drawn[key][e] = value

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[Observation, NDArray[np.float64], dict[str, NDArray[Any]]]:
        """One decision of every environment that is not done.

        Returns:
            Observations, rewards [E], and what there is to tell of the step: arrays [E] of
            `discount` and `attribution`, as far as they were asked for.
        """
        stepped = ~self.simulation.done if self._attributes else None
        requests, instances = self._next_buffers()
        if self.renderer is not None:
            self.renderer.spectator.note(actions)
        self.simulation.advance(actions, (observe_range, self._constants, requests, instances))
        told: dict[str, NDArray[Any]] = {}
        discount = None
        if self._discount_time is not None:
            told["discount"] = discount = self._discounts(self._discount_time)
        if stepped is not None:
            self._attribution = self._reward.attribution(self.simulation, stepped)
            told["attribution"] = _by_environment(self._attribution, self.simulation.num_envs)
        return self._observation(requests, instances), self._reward(self.simulation, discount), told

    def _discounts(self, discount_time: float) -> NDArray[np.float64]:
        """exp(−Δt / τ), [E], with Δt from the last decision to this one; 0 after the last."""
        gap = self.simulation.view.requests["gap"]
        return np.where(self.simulation.done, 0.0, np.exp(-gap / discount_time))

    def _observation(
        self, requests: NDArray[np.float32], instances: NDArray[np.float32]
    ) -> Observation:
        return {"request": requests, "instances": instances.reshape(len(instances), -1)}

    @property
    def attribution(self) -> Attribution | None:
        """Whose the last step's rewards are, in all environments at once, if the reward tells."""
        return self._attribution

    @property
    def conditions(self) -> dict[str, NDArray[Any]]:
        """What was drawn for the current episodes, new arrays [E, …]; empty if nothing is.

        `rate` in requests/s, `slo` (factor on all objectives), `kv_blocks` [E, N] (0 for an
        instance that is not there), `profile` [E, N] (index into the randomisation's `profiles`, −1
        for the scenario's own).
        """
        return {key: values.copy() for key, values in self._drawn.items()}

    @property
    def action_masks(self) -> NDArray[np.int8]:
        """1 for actions that are allowed, int8 [E, actions], a new array."""
        available = self.simulation.arrays.knowledge.shown_instances["available"]
        if self.num_actions == self.num_instances:
            return available.astype(np.int8)
        masks = np.ones((len(available), self.num_actions), np.int8)
        masks[:, : self.num_instances] = available
        return masks

    def unavailable(self, actions: NDArray[np.int64]) -> NDArray[np.intp]:
        """Environments that are not done and whose action [E] names an unavailable instance."""
        if self.randomisation.instances is None and self.simulation.is_calm:  # all are there
            return _NOWHERE
        masks = self.action_masks
        forbidden = masks[np.arange(len(actions)), actions] == 0
        nowhere = ~masks[:, : self.num_instances].any(1)  # then it does not matter which one
        return np.flatnonzero(forbidden & ~nowhere & ~self.simulation.done)


def _by_environment(attribution: Attribution, num_envs: int) -> NDArray[Any]:
    """For each environment a list of (decision, units); object array [E]."""
    pairs = list(zip(attribution.decision.tolist(), attribution.units.tolist(), strict=True))
    ends = np.searchsorted(attribution.env, np.arange(num_envs + 1)).tolist()
    return np.fromiter((pairs[a:b] for a, b in itertools.pairwise(ends)), object, num_envs)
