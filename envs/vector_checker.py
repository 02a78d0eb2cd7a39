"""A checker for batch environments, as `gymnasium.utils.env_checker` is for single ones.

Gymnasium 1.4 has none. This one plays a batch environment several times over and compares: with its
own declarations; with itself under the same and another seed; with batches of one; and with
Gymnasium's `SyncVectorEnv` around single environments, which defines what a batch should do.
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array
from numpy.lib.array_utils import byte_bounds

from prefixgym.envs.recorded_play import OTHER, BatchEnv, Call, Player, arrays_in


def check_vector_env(
    make: Callable[[int], BatchEnv],
    single: Callable[[], gym.Env[Any, Any]] | None = None,
    *,
    num_envs: int = 3,
    seed: int = 0,
    max_steps: int = 1000,
    independent: bool = True,
    masked_reset: bool = True,
    keeps_options: bool = True,
) -> None:
    """Check a batch environment in the autoreset mode that its metadata declares.

    Actions are drawn at random, within `info["action_mask"]` where there is one, until every
    sub-environment has ended two episodes. Checked are: declared spaces and mode; types, shapes and
    bounds of all that is returned; the convention of `key` and `_key` in infos; what the mode says
    of ended episodes; that equal seeds start equal episodes and others do not; that returned arrays
    are new, stay as they are and may be written to; that actions and options are left alone.

    Args:
        make: makes the batch environment with so many sub-environments.
        single: makes the environment that each sub-environment must equal, step by step.
        num_envs: size of the batch.
        seed: of the first episodes.
        max_steps: within which every sub-environment must end two episodes.
        independent: sub-environment i has a generator of its own, seeded with seed + i, so that
            nothing depends on the size of the batch. Gymnasium's `CartPoleVectorEnv` shares one.
        masked_reset: `reset` heeds `options["reset_mask"]`. The mode `Disabled` needs it.
        keeps_options: `reset` leaves the caller's options as they are. Gymnasium's `SyncVectorEnv`
            takes the mask out of them.

    Raises:
        AssertionError: names the call, what was expected and what was found.
        ValueError: the arguments contradict each other.
    """
    if single is not None and not independent:
        raise ValueError("single: needs independent=True")
    env = _made(make, num_envs)
    mode = env.metadata["autoreset_mode"]
    if mode is AutoresetMode.DISABLED and not masked_reset:
        raise ValueError("masked_reset: found False, the autoreset mode Disabled needs True")

    def inspect(env: BatchEnv, call: Call) -> None:
        _check_given(call, keeps_options)
        _check_returned(env, call)

    player = Player(seed, max_steps, masked_reset, inspect)
    calls = player.play(env)
    steps = sum(call.is_step for call in calls)
    expected = [call.rows(env) for call in calls]
    _check_autoreset(env, calls, expected)
    _check_memory(calls)

    def play(env: BatchEnv, **variation: Any) -> list[list[dict[str, Any]]]:
        rows = [call.rows(env) for call in player.play(env, steps, **variation)]
        env.close()
        return rows

    def compare(what: str, found: list[list[dict[str, Any]]]) -> None:
        difference = _first_difference(calls, found, expected)
        if difference is not None:
            raise AssertionError(f"{what}: {difference}")

    compare("the same environment, reset with the same seed", play(env))
    compare(
        "another environment with the same seed, of which all returned arrays were overwritten",
        play(_made(make, num_envs), overwrite=True),
    )
    other = play(_made(make, num_envs), seed=seed + OTHER)
    if _first_difference(calls, other, expected) is None:
        _fail("reset", f"seeds {seed} and {seed + OTHER} to start different episodes", "equal ones")
    if mode is AutoresetMode.NEXT_STEP:
        compare(
            "other actions in the steps that reset, where actions are ignored",
            play(_made(make, num_envs), vary_ignored=True),
        )
    if mode is AutoresetMode.DISABLED:
        _check_refusal(_made(make, num_envs), player)
    if independent:
        seeds = [seed + i for i in range(num_envs)]
        compare(f"seed={seeds} instead of {seed}", play(_made(make, num_envs), seed=seeds))
        for i in range(num_envs):
            mine = [k for k, call in enumerate(calls) if call.chosen[i]]
            alone = _first_difference(
                [calls[k] for k in mine],
                play(_made(make, 1), first=i),
                [[expected[k][i]] for k in mine],
            )
            if alone is not None:
                raise AssertionError(f"sub-environment {i} as a batch of one: {alone}")
    if single is not None:
        reference = SyncVectorEnv([single] * num_envs, autoreset_mode=mode)
        pops_options = Player(seed, max_steps, masked_reset, _check_returned)
        wanted = [call.rows(reference) for call in pops_options.play(reference, steps)]
        reference.close()
        difference = _first_difference(calls, expected, wanted)
        if difference is not None:
            raise AssertionError(f"compared with single environments: {difference}")


def _fail(where: str, expected: Any, found: Any) -> None:
    raise AssertionError(f"{where}: expected {expected}, found {found}")


def _made(make: Callable[[int], BatchEnv], num_envs: int) -> BatchEnv:
    """A batch environment whose declarations are right."""
    env = make(num_envs)
    if env.num_envs != num_envs:
        _fail("num_envs", num_envs, env.num_envs)
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        _fail("metadata['autoreset_mode']", "a gymnasium.vector.AutoresetMode", repr(mode))
    for name in ("observation_space", "action_space"):
        expected, found = batch_space(getattr(env, f"single_{name}"), num_envs), getattr(env, name)
        # Not equality: sub-environments may have bounds of their own.
        if not is_space_dtype_shape_equiv(found, expected):
            _fail(name, f"{num_envs} of single_{name}, {expected}", found)
    return env


# --- one call -------------------------------------------------------------------------------------


def _check_given(call: Call, keeps_options: bool) -> None:
    if call.is_step:
        difference = _difference(call.given_after, call.given)
        if difference is not None:
            raise AssertionError(f"{call.name} changed its actions{difference}")
    elif keeps_options:
        difference = _difference(call.given_after, call.given)
        if difference is not None:
            raise AssertionError(f"{call.name} changed its options{difference}")


def _check_returned(env: BatchEnv, call: Call) -> None:
    observation, info = call.returned["observation"], call.returned["info"]
    if observation not in env.observation_space:
        _fail(f"{call.name}, observation", f"a member of {env.observation_space}", observation)
    template = create_empty_array(env.single_observation_space, env.num_envs)
    dtypes = {path: array.dtype for path, array in arrays_in(template)}
    for path, array in arrays_in(observation):  # a Box contains narrower types too
        if array.dtype != dtypes.get(path, array.dtype):
            _fail(f"{call.name}, observation{path}", dtypes[path], array.dtype)
    if call.is_step:
        rewards = call.returned["rewards"]
        _check_array(f"{call.name}, rewards", rewards, env.num_envs, "f")
        if not np.isfinite(rewards).all():
            _fail(f"{call.name}, rewards", "finite numbers", rewards)
        for key in ("terminations", "truncations"):
            _check_array(f"{call.name}, {key}", call.returned[key], env.num_envs, "b")
    if not isinstance(info, dict):
        _fail(f"{call.name}, info", "a dict", info)
    _check_info(f"{call.name}, info", info, env.num_envs)


def _check_array(where: str, found: Any, length: int, kind: str) -> None:
    name = {"f": "floats", "b": "bools"}[kind]
    if not isinstance(found, np.ndarray) or found.dtype.kind != kind or found.shape != (length,):
        _fail(where, f"an array of {length} {name}", repr(found))


def _check_info(where: str, info: dict[str, Any], num_envs: int, nested: bool = False) -> None:
    """Every key has an array over sub-environments, or a dict of such, and a mask `_key`."""
    for key, value in info.items():
        if key.startswith("_"):
            if key[1:] not in info:
                _fail(where, f"a key {key[1:]!r} beside {key!r}", sorted(info))
            _check_array(f"{where}[{key!r}]", value, num_envs, "b")
            continue
        if f"_{key}" not in info and not nested:  # the outer mask holds for nested keys
            _fail(where, f"a mask '_{key}' beside {key!r}", sorted(info))
        if isinstance(value, dict):
            _check_info(f"{where}[{key!r}]", value, num_envs, nested=True)
        elif not isinstance(value, np.ndarray) or value.shape[:1] != (num_envs,):
            _fail(f"{where}[{key!r}]", f"an array of length {num_envs} or a dict of such", value)


# --- one play -------------------------------------------------------------------------------------


def _check_autoreset(env: BatchEnv, calls: list[Call], rows: list[list[dict[str, Any]]]) -> None:
    """What the mode says of the steps in which episodes end, and of those after them."""
    mode = env.metadata["autoreset_mode"]
    none = np.zeros(env.num_envs, np.bool_)
    ended = none
    for k, call in enumerate(calls):
        final = call.ended if mode is AutoresetMode.SAME_STEP else none
        for key in ("final_obs", "final_info"):
            mask = call.returned["info"].get(f"_{key}", none)
            if not np.array_equal(mask, final):
                _fail(f"{call.name}, info['_{key}'] in mode {mode.value}", final, mask)
        for i in np.flatnonzero(final):
            observation = rows[k][i]["info"]["final_obs"]
            if observation not in env.single_observation_space:
                where = f"{call.name}, info['final_obs'][{i}]"
                _fail(where, f"a member of {env.single_observation_space}", observation)
        if mode is AutoresetMode.NEXT_STEP and call.is_step and ended.any():
            rewards = call.returned["rewards"][ended]
            if rewards.any():
                _fail(f"{call.name}, rewards of the sub-environments it reset", "0", rewards)
            if call.ended[ended].any():
                flags = call.ended[ended]
                _fail(f"{call.name}, flags of the sub-environments it reset", "False", flags)
        for i in np.flatnonzero(~call.chosen):
            found, expected = (rows[at][i]["observation"] for at in (k, k - 1))
            difference = _difference(found, expected)
            if difference is not None:
                where = f"{call.name}, observation of {i}, which was not chosen"
                raise AssertionError(f"{where}{difference}")
        ended = call.ended if call.is_step else ended & ~call.chosen


def _check_memory(calls: list[Call]) -> None:
    """No call hands out memory that another one has handed out, or changes it."""
    for call in calls:
        difference = _difference(call.objects, call.returned)
        if difference is not None:
            raise AssertionError(f"{call.name}: a later call changed what it returned{difference}")
    owned = [
        (byte_bounds(array), call, path, array)
        for call in calls
        for path, array in arrays_in(call.objects)
        if array.size > 0
    ]
    owned.sort(key=lambda one: one[0])
    widest = owned[0]
    for one in owned[1:]:
        if one[1] is not widest[1] and np.shares_memory(one[3], widest[3]):
            where = f"{one[1].name}, {one[2]}"
            _fail(where, "new memory", f"that of {widest[1].name}, {widest[2]}")
        widest = max(widest, one, key=lambda one: one[0][1])


def _check_refusal(env: BatchEnv, player: Player) -> None:
    """In the mode `Disabled`, a step of an ended sub-environment must raise."""
    last = player.play_to_end(env)
    try:
        env.step(last.given)
    except Exception:
        return
    finally:
        env.close()
    ended = np.flatnonzero(last.ended).tolist()
    _fail(f"step while sub-environments {ended} have ended", "an exception", "none")


# --- comparing ------------------------------------------------------------------------------------


def _first_difference(
    calls: list[Call], found: list[list[dict[str, Any]]], expected: list[list[dict[str, Any]]]
) -> str | None:
    """Where two plays differ first; infos in `found` may have more keys."""
    # As long as plays are equal they have equally many calls: differing ends come first.
    for call, mine, others in zip(calls, found, expected, strict=False):
        for i, (one, other) in enumerate(zip(mine, others, strict=True)):
            difference = _difference(one, other, more_keys=True)
            if difference is not None:
                return f"{call.name}, sub-environment {i}{difference}"
    return None


def _difference(found: Any, expected: Any, more_keys: bool = False) -> str | None:
    """Where and how two nested values differ; `found` may have more keys if `more_keys`."""
    if isinstance(expected, np.ndarray) and expected.dtype == object:
        found, expected = np.asarray(found, object).tolist(), expected.tolist()
    if isinstance(expected, dict):
        keys = found.keys() if isinstance(found, dict) else set()
        if not (keys >= expected.keys() if more_keys else keys == expected.keys()):
            return f": expected keys {sorted(expected)}, found {sorted(keys)}"
        parts = [(key, found[key], value) for key, value in expected.items()]
    elif isinstance(expected, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(expected):
            return f": expected {expected}, found {found}"
        parts = [(i, *pair) for i, pair in enumerate(zip(found, expected, strict=True))]
    else:
        mine, other = np.asarray(found), np.asarray(expected)
        may_be_nan = mine.dtype.kind in "fc" and other.dtype.kind in "fc"
        if np.array_equal(mine, other, equal_nan=may_be_nan):
            return None
        return f": expected {expected}, found {found}"
    for key, mine, other in parts:
        difference = _difference(mine, other, more_keys)
        if difference is not None:
            return f"[{key!r}]{difference}"
    return None
