"""Random play of a batch environment, recorded call by call: what `vector_checker` looks at."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

BatchEnv = gym.vector.VectorEnv[Any, Any, Any]
Flags = NDArray[np.bool_]

EPISODES = 2
OTHER = 1_000_003
"""Far enough from a seed that no sub-environments of two batches have the same."""

_STAGGER = 3
_RESET = ("observation", "info")
_STEP = ("observation", "rewards", "terminations", "truncations", "info")


@dataclass(frozen=True)
class Call:
    """A call of `reset` or `step`.

    Attributes:
        name: for messages.
        chosen: sub-environments that it concerned, bool [E].
        given: the actions of a step, the options of a reset.
        given_after: the same objects, once the call had returned.
        objects: what it returned, by name.
        returned: a copy of `objects`, made at once.
    """

    name: str
    chosen: Flags
    given: Any
    given_after: Any
    objects: dict[str, Any]
    returned: dict[str, Any]

    @property
    def is_step(self) -> bool:
        """Whether this was a step, not a reset."""
        return "rewards" in self.returned

    @property
    def ended(self) -> Flags:
        """Sub-environments whose episode ended in this call, bool [E]."""
        if not self.is_step:
            return np.zeros_like(self.chosen)
        ended: Flags = self.returned["terminations"] | self.returned["truncations"]
        return ended

    def rows(self, env: BatchEnv) -> list[dict[str, Any]]:
        """What was returned, apart for each sub-environment."""
        observations = iterate(env.observation_space, self.returned["observation"])
        names = self.returned.keys() - {"observation", "info"}
        return [
            {
                "observation": observation,
                "info": info_of(self.returned["info"], i),
                **{name: self.returned[name][i] for name in names},
            }
            for i, observation in enumerate(observations)
        ]


def info_of(info: dict[str, Any], i: int) -> dict[str, Any]:
    """What a batch's info says of sub-environment i: the keys that its masks `_key` allow."""
    return {
        key: info_of(value, i) if isinstance(value, dict) else value[i]
        for key, value in info.items()
        if not key.startswith("_") and (f"_{key}" not in info or info[f"_{key}"][i])
    }


def arrays_in(value: Any, path: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """All arrays within nested dicts, sequences and object arrays, with their place."""
    if isinstance(value, np.ndarray):
        yield path, value
        value = value.tolist() if value.dtype == object else []
    if isinstance(value, dict):
        for key, part in value.items():
            yield from arrays_in(part, f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for i, part in enumerate(value):
            yield from arrays_in(part, f"{path}[{i}]")


@dataclass(frozen=True)
class Player:
    """Plays at random; what it does in a sub-environment depends on its number and masks only.

    Attributes:
        seed: of the actions, and of the first episodes unless `play` is told otherwise.
        max_steps: within which each sub-environment must end two episodes.
        masked_reset: reset sub-environment 0 alone after a few steps, so that not all end together.
        inspect: called with every call when it was made.
    """

    seed: int
    max_steps: int
    masked_reset: bool
    inspect: Callable[[BatchEnv, Call], None]

    def play(
        self,
        env: BatchEnv,
        steps: int | None = None,
        *,
        seed: int | Sequence[int] | None = None,
        first: int = 0,
        overwrite: bool = False,
        vary_ignored: bool = False,
    ) -> list[Call]:
        """Reset `env` and play.

        Args:
            env: a batch environment; in the mode `Disabled`, those that ended are reset at once.
            steps: how many; by default until each sub-environment has ended two episodes.
            seed: given to `reset`; by default the player's seed + `first`.
            first: number of the first sub-environment, so that a batch of one can play any part.
            overwrite: write into every array that was returned.
            vary_ignored: choose other actions where the mode `NextStep` ignores them.

        Raises:
            AssertionError: two episodes have not ended in time.
        """
        mode = env.metadata["autoreset_mode"]
        numbers = first + np.arange(env.num_envs)
        actions = _Actions(env, self.seed + numbers)
        other_actions = _Actions(env, self.seed + numbers + OTHER)
        calls = [self._reset(env, self.seed + first if seed is None else seed)]
        ended = np.zeros(env.num_envs, np.bool_)
        episodes = np.zeros(env.num_envs, np.int64)
        count = 0
        while episodes.min() < EPISODES if steps is None else count < steps:
            if steps is None and count == self.max_steps:
                late = np.flatnonzero(episodes < EPISODES).tolist()
                raise AssertionError(
                    f"sub-environments {late}: expected {EPISODES} episodes to end within "
                    f"max_steps={self.max_steps}, found {episodes[late].tolist()}"
                )
            count += 1
            drawn = actions.draw(calls)
            other = other_actions.draw(calls)
            if vary_ignored:
                drawn = [other[i] if ended[i] else drawn[i] for i in range(env.num_envs)]
            if overwrite:
                _overwrite(calls[-1].objects)
            calls.append(self._step(env, drawn, count))
            ended = calls[-1].ended
            episodes += ended
            again = ended if mode is AutoresetMode.DISABLED else np.zeros_like(ended)
            if self.masked_reset and count == _STAGGER:
                again = again | (numbers == 0)
            if again.any():
                calls.append(self._masked_reset(env, again, count))
                ended = ended & ~again
        return calls

    def play_to_end(self, env: BatchEnv) -> Call:
        """Play until the first episode ends, and return the step in which it did."""
        actions = _Actions(env, self.seed + np.arange(env.num_envs))
        calls = [self._reset(env, self.seed)]
        while not calls[-1].ended.any():
            calls.append(self._step(env, actions.draw(calls), len(calls)))
        return calls[-1]

    def _reset(self, env: BatchEnv, seed: int | Sequence[int]) -> Call:
        everyone = np.ones(env.num_envs, np.bool_)
        result = env.reset(seed=seed)  # type: ignore[arg-type]  # it is typed for one int only
        return self._record(env, "reset", everyone, None, None, _RESET, result)

    def _masked_reset(self, env: BatchEnv, chosen: Flags, count: int) -> Call:
        name = f"reset of sub-environments {np.flatnonzero(chosen).tolist()} after step {count}"
        options = {"reset_mask": chosen.copy()}
        given = deepcopy(options)
        return self._record(env, name, chosen, given, options, _RESET, env.reset(options=options))

    def _step(self, env: BatchEnv, drawn: list[Any], count: int) -> Call:
        space, everyone = env.single_action_space, np.ones(env.num_envs, np.bool_)
        empty: Any = create_empty_array(space, len(drawn))
        actions = concatenate(space, drawn, empty)
        given = deepcopy(actions)
        return self._record(
            env, f"step {count}", everyone, given, actions, _STEP, env.step(actions)
        )

    def _record(
        self,
        env: BatchEnv,
        name: str,
        chosen: Flags,
        given: Any,
        given_after: Any,
        names: tuple[str, ...],
        result: Any,
    ) -> Call:
        if not isinstance(result, tuple) or len(result) != len(names):
            raise AssertionError(f"{name}: expected a tuple ({', '.join(names)}), found {result}")
        objects = dict(zip(names, result, strict=True))
        call = Call(name, chosen, given, given_after, objects, deepcopy(objects))
        self.inspect(env, call)
        return call


class _Actions:
    """A stream of actions for each sub-environment."""

    def __init__(self, env: BatchEnv, seeds: NDArray[np.int64]) -> None:
        self._spaces: list[gym.Space[Any]] = [deepcopy(env.single_action_space) for _ in seeds]
        self._masks: list[Any] = [None] * len(seeds)
        for space, seed in zip(self._spaces, seeds, strict=True):
            space.seed(int(seed))

    def draw(self, calls: list[Call]) -> list[Any]:
        """The next actions, within the masks that were returned last."""
        for call in calls[-2:]:  # a masked reset tells of some only, the step before it of the rest
            for i in range(len(self._masks)):
                info = info_of(call.returned["info"], i)
                self._masks[i] = info.get("action_mask", self._masks[i])
        return [
            space.sample(mask) if isinstance(space, gym.spaces.Discrete) else space.sample()
            for space, mask in zip(self._spaces, self._masks, strict=True)
        ]


def _overwrite(objects: dict[str, Any]) -> None:
    for _, array in list(arrays_in(objects)):
        if array.flags.writeable:
            array[...] = None if array.dtype == object else np.ones((), array.dtype)
