"""The checker accepts what Gymnasium calls a vector environment and refuses each single flaw."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from prefixgym.envs.vector_checker import check_vector_env

MODES = list(AutoresetMode)
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
Result = tuple[Any, ...]


class Walk(gym.Env[dict[str, Any], np.int64]):
    """A random walk: ends by itself at ±1, is cut off after nine steps."""

    observation_space = gym.spaces.Dict(
        {
            "place": gym.spaces.Box(-2.0, 2.0, (2,), np.float32),
            "steps": gym.spaces.Discrete(10),
        }
    )
    action_space = gym.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-0.3, 0.3, 2).astype(np.float32)
        self.steps = 0
        return self._observation(), self._info()

    def step(self, action: np.int64) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.place = self.place + np.float32(0.1 * action) + self.np_random.normal(0, 0.1)
        self.place = np.clip(self.place, -2, 2).astype(np.float32)
        terminated = bool(abs(self.place).max() > 1)
        return self._observation(), 1.0 + action, terminated, self.steps == 9, self._info()

    def _observation(self) -> dict[str, Any]:
        return {"place": self.place.copy(), "steps": self.steps}

    def _info(self) -> dict[str, Any]:
        allowed = np.array([1, self.steps % 2, 1], np.int8)
        return {"action_mask": allowed, "goal": {"distance": 1.0 - abs(self.place).max()}}


class Batch(SyncVectorEnv):
    """A flawless batch of walks: also the caller's options stay as they are."""

    mode = NEXT

    def __init__(self, num_envs: int, mode: AutoresetMode | None = None, **settings: Any) -> None:
        super().__init__([Walk] * num_envs, autoreset_mode=mode or self.mode, **settings)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Result:
        return super().reset(seed=seed, options=dict(options or {}))


@pytest.mark.parametrize("mode", MODES)
def test_a_flawless_batch_passes(mode: AutoresetMode) -> None:
    check_vector_env(partial(Batch, mode=mode), Walk)


@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_own_batch_passes_but_for_the_options_it_takes(mode: AutoresetMode) -> None:
    def make(num_envs: int) -> SyncVectorEnv:
        return SyncVectorEnv([single] * num_envs, autoreset_mode=mode)

    def single() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1", max_episode_steps=12)

    check_vector_env(make, single, keeps_options=False)
    with pytest.raises(AssertionError, match=r"changed its options.*reset_mask"):
        check_vector_env(make, single)


def test_gymnasiums_native_cart_pole_passes_but_for_its_shared_generator() -> None:
    def make(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
        return gym.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")

    check_vector_env(make, independent=False, masked_reset=False)
    with pytest.raises(gym.error.Error, match="must be a python integer"):  # it takes no list
        check_vector_env(make, masked_reset=False)


def test_wrappers_may_nest_infos_without_inner_masks() -> None:
    class Untimed(RecordEpisodeStatistics):
        def step(self, actions: Any) -> Result:
            result = super().step(actions)
            if "episode" in result[4]:
                del result[4]["episode"]["t"]  # of the clock, hence never equal
                # Gymnasium 1.4 hands out the very array that it goes by in the next step.
                result[4]["_episode"] = result[4]["_episode"].copy()
            return result

    check_vector_env(lambda num_envs: Untimed(Batch(num_envs)), keeps_options=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"single": Walk, "independent": False}, "single: needs independent=True"),
        ({"masked_reset": False}, "masked_reset: found False"),
    ],
)
def test_contradicting_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_vector_env(partial(Batch, mode=DISABLED), **arguments)


# --- one flaw at a time ---------------------------------------------------------------------------

Flaw = tuple[Callable[[int], gym.vector.VectorEnv[Any, Any, Any]], str]
FLAWS: dict[str, Flaw] = {}


def flaw(message: str) -> Callable[[type[Batch]], type[Batch]]:
    """List a broken class, and what the checker must say of it."""

    def add(broken: type[Batch]) -> type[Batch]:
        assert broken.__name__ not in FLAWS
        FLAWS[broken.__name__] = (broken, message)
        return broken

    return add


def altered(message: str, mode: AutoresetMode = NEXT) -> Callable[[Callable[..., None]], None]:
    """As `flaw`: a function that changes what steps return, [obs, rewards, term, trunc, info]."""

    def add(change: Callable[[list[Any]], None]) -> None:
        class Altered(Batch):
            def step(self, actions: Any) -> Result:
                result = list(super().step(actions))
                change(result)
                return tuple(result)

        assert change.__name__ not in FLAWS
        FLAWS[change.__name__] = (partial(Altered, mode=mode), message)

    return add


@flaw("num_envs: expected 3, found 4")
class CountsWrong(Batch):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs + 1)


@flaw("autoreset_mode.*found None")
class DeclaresNoMode(Batch):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        del self.metadata["autoreset_mode"]


@flaw("autoreset_mode.*found 'NextStep'")
class DeclaresModeAsText(Batch):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.metadata["autoreset_mode"] = "NextStep"


@flaw("observation_space: expected 3 of")
class DeclaresSingleObservation(Batch):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.observation_space = self.single_observation_space


@flaw("action_space: expected 3 of")
class DeclaresSingleAction(Batch):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.action_space = self.single_action_space


@flaw(r"step 1: expected a tuple")
class ReturnsFourValues(Batch):
    def step(self, actions: Any) -> Result:
        return super().step(actions)[:4]


@flaw(r"reset: expected a tuple")
class ResetsWithoutInfo(Batch):
    def reset(self, **arguments: Any) -> Result:
        return super().reset(**arguments)[:1]


@altered(r"step 1, observation\['place'\]: expected float32, found float16")
def narrow_observation(result: list[Any]) -> None:
    result[0]["place"] = result[0]["place"].astype(np.float16)


@altered("step 1, observation: expected a member")
def observation_out_of_bounds(result: list[Any]) -> None:
    result[0]["place"] += 9


@altered("step 1, observation: expected a member")
def observation_of_wrong_length(result: list[Any]) -> None:
    result[0]["place"] = result[0]["place"][:2]


@altered("step 1, rewards: expected an array of 3 floats")
def rewards_in_a_list(result: list[Any]) -> None:
    result[1] = result[1].tolist()


@altered("step 1, rewards: expected an array of 3 floats")
def whole_rewards(result: list[Any]) -> None:
    result[1] = result[1].astype(int)


@altered("step 1, rewards: expected an array of 3 floats")
def rewards_in_a_column(result: list[Any]) -> None:
    result[1] = result[1][:, None]


@altered("step 1, rewards: expected finite numbers")
def infinite_reward(result: list[Any]) -> None:
    result[1][2] = np.inf


@altered("step 1, terminations: expected an array of 3 bools")
def whole_terminations(result: list[Any]) -> None:
    result[2] = result[2].astype(np.int8)


@altered("step 1, truncations: expected an array of 3 bools")
def one_truncation(result: list[Any]) -> None:
    result[3] = False


@altered("step 1, info: expected a dict")
def infos_in_a_list(result: list[Any]) -> None:
    result[4] = [result[4]]


@altered("step 1, info: expected a mask '_action_mask'")
def info_without_mask(result: list[Any]) -> None:
    del result[4]["_action_mask"]


@altered("step 1, info: expected a key 'action_mask'")
def mask_without_info(result: list[Any]) -> None:
    del result[4]["action_mask"]


@altered(r"step 1, info\['_action_mask'\]: expected an array of 3 bools")
def whole_info_mask(result: list[Any]) -> None:
    result[4]["_action_mask"] = result[4]["_action_mask"].astype(int)


@altered(r"step 1, info\['goal'\]\['distance'\]: expected an array of length 3")
def nested_info_in_a_list(result: list[Any]) -> None:
    result[4]["goal"]["distance"] = result[4]["goal"]["distance"].tolist()


@altered(r"compared with single environments.*sub-environment 0\['rewards'\]: expected .* found")
def other_rewards_than_single(result: list[Any]) -> None:
    result[1] *= 1.5


@altered(r"compared with single environments.*\['info'\]\['goal'\]\['distance'\]")
def other_infos_than_single(result: list[Any]) -> None:
    result[4]["goal"]["distance"] -= 1


@altered(r"compared with single environments.*\['info'\]: expected keys")
def fewer_infos_than_single(result: list[Any]) -> None:
    del result[4]["goal"], result[4]["_goal"]


@altered("expected 2 episodes to end within max_steps=60, found")
def endless(result: list[Any]) -> None:
    result[2][:] = result[3][:] = False


@altered(r"step \d+, info\['_final_obs'\] in mode NextStep")
def final_observation_out_of_place(result: list[Any]) -> None:
    ended = result[2] | result[3]
    result[4] |= {"final_obs": np.full(3, None, dtype=object), "_final_obs": ended}


@altered(r"step \d+, info\['_final_obs'\] in mode SameStep", SAME)
def no_final_observation(result: list[Any]) -> None:
    result[4].pop("final_obs", None)
    result[4].pop("_final_obs", None)


@altered(r"step \d+, info\['_final_info'\] in mode SameStep", SAME)
def final_info_for_all(result: list[Any]) -> None:
    if "final_info" in result[4]:
        result[4]["_final_info"][:] = True


@altered(r"step \d+, info\['final_obs'\]\[\d\]: expected a member", SAME)
def final_observation_out_of_bounds(result: list[Any]) -> None:
    for i in np.flatnonzero(result[4].get("_final_obs", [])):
        result[4]["final_obs"][i]["place"] += 9


@altered(r"compared with single.*\['info'\]\['final_obs'\]\['(place|steps)'\]", SAME)
def first_observation_as_final(result: list[Any]) -> None:
    for i in np.flatnonzero(result[4].get("_final_obs", [])):
        mine = {key: values[i].copy() for key, values in result[0].items()}
        result[4]["final_obs"][i] = mine


@altered(r"compared with single.*\['info'\]\['final_info'\]\['goal'\]", SAME)
def first_info_as_final(result: list[Any]) -> None:
    if "final_info" in result[4]:
        result[4]["final_info"]["goal"] = deepcopy(result[4]["goal"])


@flaw(r"step \d+, rewards of the sub-environments it reset: expected 0")
class PaysForReset(Batch):
    def step(self, actions: Any) -> Result:
        result = super().step(actions)
        result[1][result[1] == 0] = 1.0
        return result


@flaw(r"step \d+, flags of the sub-environments it reset: expected False")
class KeepsFlags(Batch):
    last: Any = False

    def step(self, actions: Any) -> Result:
        observation, rewards, terminations, truncations, info = super().step(actions)
        self.last, now = terminations.copy(), terminations | self.last
        return observation, rewards, now, truncations, info


@flaw("other actions in the steps that reset")
class HeedsIgnoredActions(Batch):
    def step(self, actions: Any) -> Result:
        fresh = self._autoreset_envs.copy()
        result = super().step(actions)
        for i in np.flatnonzero(fresh & (np.asarray(actions) == 2)):
            self.envs[i].reset()
        return result


@flaw("the same environment, reset with the same seed")
class RemembersEpisodes(Batch):
    total = 0

    def step(self, actions: Any) -> Result:
        result = super().step(actions)
        result[1][result[1] > 0] += self.total / 1000
        self.total += 1
        return result


@flaw("the same environment, reset with the same seed")
class IgnoresSeeds(Batch):
    def reset(self, *, seed: Any = None, options: Any = None) -> Result:
        return super().reset(options=options)


@flaw("expected seeds 0 and 1000003 to start different episodes, found equal ones")
class HasOneSeed(Batch):
    def reset(self, *, seed: Any = None, options: Any = None) -> Result:
        return super().reset(seed=None if seed is None else [7] * self.num_envs, options=options)


@flaw("sub-environment 1 as a batch of one: reset")
class SeedsAllAlike(Batch):
    def reset(self, *, seed: Any = None, options: Any = None) -> Result:
        first = seed[0] if isinstance(seed, Sequence) else seed
        seeds = None if first is None else [first] * self.num_envs
        return super().reset(seed=seeds, options=options)


@flaw(r"seed=\[0, 1, 2\] instead of 0: reset")
class TakesFirstSeedOnly(Batch):
    def reset(self, *, seed: Any = None, options: Any = None) -> Result:
        first = seed[0] + 100 if isinstance(seed, Sequence) else seed
        return super().reset(seed=first, options=options)


@flaw("sub-environment 0 as a batch of one: step 1")
class DependsOnSize(Batch):
    def step(self, actions: Any) -> Result:
        result = super().step(actions)
        result[1][result[1] > 0] += 0.1 * self.num_envs
        return result


@flaw(r"reset: a later call changed what it returned\['observation'\]\['place'\]")
class ReusesObservations(Batch):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, copy=False)


@flaw(r"step 2, \['info'\]\['bounds'\]: expected new memory, found that of step 1")
class HandsOutConstants(Batch):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.bounds = np.ones(2 * num_envs)

    def step(self, actions: Any) -> Result:
        result = super().step(actions)
        result[4]["bounds"] = self.bounds[: self.num_envs]
        result[4]["_bounds"] = np.ones(self.num_envs, np.bool_)
        return result


@flaw(r"step \d: a later call changed what it returned\['rewards'\]")
class TakesTurnsWithBuffers(Batch):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.buffers = [np.zeros(num_envs) for _ in range(2)]

    def step(self, actions: Any) -> Result:
        result = super().step(actions)
        self.buffers.reverse()
        self.buffers[0][:] = result[1]
        return (result[0], self.buffers[0], *result[2:])


@flaw("of which all returned arrays were overwritten")
class HandsOutItsState(Batch):
    def step(self, actions: Any) -> Result:
        result = super().step(actions)
        for i, env in enumerate(self.envs):
            env.place = result[0]["place"][i]  # type: ignore[attr-defined]
        return result


@flaw(r"step 1 changed its actions: expected \[")
class ChangesActions(Batch):
    def step(self, actions: Any) -> Result:
        result = super().step(actions)
        actions += 1
        return result


@flaw(r"reset of sub-environments \[0\] after step 3 changed its options")
class TakesMask(Batch):
    def reset(self, *, seed: Any = None, options: Any = None) -> Result:
        return SyncVectorEnv.reset(self, seed=seed, options=options)


@flaw(r"changed its options\['reset_mask'\]: expected")
class WritesIntoMask(Batch):
    def reset(self, *, seed: Any = None, options: Any = None) -> Result:
        result = super().reset(seed=seed, options=options)
        if options:
            options["reset_mask"][:] = True
        return result


@flaw("observation of 1, which was not chosen")
class ResetsAll(Batch):
    def reset(self, *, seed: Any = None, options: Any = None) -> Result:
        return super().reset(seed=seed)


@flaw(r"step while sub-environments \[.*\] have ended: expected an exception")
class StepsOn(Batch):
    mode = DISABLED

    def step(self, actions: Any) -> Result:
        self._autoreset_envs[:] = False
        return super().step(actions)


@pytest.mark.parametrize("name", FLAWS)
def test_each_flaw_is_found_and_named(name: str) -> None:
    make, message = FLAWS[name]
    with pytest.raises(AssertionError, match=message):
        check_vector_env(make, Walk, max_steps=60)
