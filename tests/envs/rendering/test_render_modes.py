"""Rendering through Gymnasium's interface."""

import copy
import importlib.util
import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.wrappers import RenderCollection

from prefixgym.envs import ROUTING_ID
from prefixgym.envs.routing import PrefixRoutingEnv
from prefixgym.envs.vector import PrefixRoutingVectorEnv

ID = f"prefixgym:{ROUTING_ID}"


def make(render_mode: str | None, num_requests: int = 6) -> PrefixRoutingEnv:
    return PrefixRoutingEnv(num_requests=num_requests, render_mode=render_mode)


def test_text_shows_the_current_request_and_the_last_decision() -> None:
    env = make("ansi")
    env.reset(seed=0)
    text = env.render()
    assert isinstance(text, str)
    assert text.startswith("shared-prompts-8 at 15.6 requests/s  0 of 6 requests routed")
    assert "decision none yet" in text
    env.step(np.int64(5))
    text = env.render()
    assert isinstance(text, str)
    assert "request  1: " in text
    assert "decision 0 to instance 5: " in text
    assert "\n> 5 " in text
    env.reset(seed=0)
    assert "decision none yet" in str(env.render())


def test_pictures_differ_from_step_to_step_and_leave_the_episode_as_it_is() -> None:
    env, unseen = make("rgb_array"), make(None)
    assert data_equivalence(env.reset(seed=1), unseen.reset(seed=1), exact=True)
    pictures = [env.render()]
    for i in range(6):
        found, expected = env.step(np.int64(i)), unseen.step(np.int64(i))
        assert data_equivalence(found, expected, exact=True)
        pictures.append(env.render())
    for before, after in itertools.pairwise(pictures):
        assert isinstance(before, np.ndarray)
        assert isinstance(after, np.ndarray)
        assert before.shape == after.shape
        assert not np.array_equal(before, after)


def test_a_window_shows_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env, picture = make("human", 3), make("rgb_array", 3)
    for i in range(-1, 3):
        for each in (env, picture):
            if i < 0:
                each.reset(seed=0)
            else:
                each.step(np.int64(i))
        shown = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
        assert data_equivalence(shown, picture.render())
    assert env.render() is None
    env.close()
    assert not pygame.display.get_init()
    env.close()


def test_a_window_without_pygame_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pygame" else usual(name)
    )
    with pytest.raises(gym.error.DependencyNotInstalled, match=r"pip install \"prefixgym\[human\]"):
        make("human")


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="found 'rgb', allowed: ansi, rgb_array, human"):
        make("rgb")
    with pytest.raises(ValueError, match=r"found 'human', allowed: ansi, rgb_array$"):
        PrefixRoutingVectorEnv(2, num_requests=2, render_mode="human")


@pytest.mark.parametrize("mode", ["ansi", "rgb_array"])
def test_rendering_needs_a_reset(mode: str) -> None:
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        make(mode).render()
    with pytest.raises(gym.error.ResetNeeded, match="call reset"):
        PrefixRoutingVectorEnv(2, render_mode=mode).render()


def test_without_a_mode_nothing_is_rendered() -> None:
    env = make(None)
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="make the environment with a render_mode"):
        assert env.render() is None


def test_wrappers_collect_pictures() -> None:
    env: gym.Env[Any, Any] = gym.make(ID, num_requests=3, render_mode="rgb_array")
    collected = RenderCollection(env)
    collected.reset(seed=0)
    for i in range(3):
        collected.step(np.int64(i))
    pictures: Any = collected.render()
    assert [picture.shape for picture in pictures] == [pictures[0].shape] * 4


@pytest.mark.parametrize("autoreset_mode", ["NextStep", "SameStep"])
def test_vector_environments_render_each_one_as_the_single_does(autoreset_mode: str) -> None:
    envs = gym.make_vec(ID, 2, num_requests=4, render_mode="ansi", autoreset_mode=autoreset_mode)
    single = make("ansi", 4)
    envs.reset(seed=3)
    single.reset(seed=4)
    for i in range(4):
        texts = envs.render()
        assert texts is not None
        assert len(texts) == 2
        assert texts[1] == single.render()
        envs.step(np.array([i, i]))
        single.step(np.int64(i))
    if autoreset_mode == "NextStep":
        texts = envs.render()
        assert texts is not None
        assert texts[1] == single.render()
        envs.step(np.array([7, 7]))  # ignored
    single.reset()
    texts = envs.render()
    assert texts is not None
    assert texts[1] == single.render()


def test_a_copy_is_rendered_apart() -> None:
    env = make("ansi")
    env.reset(seed=0)
    env.step(np.int64(5))
    twin, before = copy.deepcopy(env), env.render()
    env.step(np.int64(3))
    assert twin.render() == before
    twin.step(np.int64(3))
    assert twin.render() == env.render()
