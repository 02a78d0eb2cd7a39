"""The README's Python runs as printed, but for how long it trains and on how long episodes."""

import re
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import PPO

from prefixgym.agents import sb3_vec_env
from prefixgym.agents.sb3_vec_env import PrefixRoutingVecEnv


def python_under(heading: str, repository: Path) -> str:
    """The first Python block under this heading."""
    text = (repository / "README.md").read_text(encoding="utf-8")
    section = re.search(rf"^##+ {heading}\n(.*?)(?=^##+ |\Z)", text, re.MULTILINE | re.DOTALL)
    block = section and re.search(r"^```python\n(.*?)^```", section[1], re.MULTILINE | re.DOTALL)
    if not block:
        pytest.skip(f"README.md has no Python under the heading {heading!r}")
    return block[1]


def test_the_environment_example_runs(repository: Path) -> None:
    names: dict[str, Any] = {}
    exec(python_under("Environment", repository), names)
    assert names["envs"].num_envs == 256
    assert names["env"].observation_space.contains(names["observation"])


def test_the_training_example_runs(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = PPO.learn
    asked = []

    def learn_briefly(self: PPO, total_timesteps: int, **settings: Any) -> PPO:
        asked.append(total_timesteps)
        return learn(self, 1, **settings)

    example = python_under("Train", repository)

    def short_episodes(**arguments: Any) -> PrefixRoutingVecEnv:
        return PrefixRoutingVecEnv(**arguments | {"num_requests": 100})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PPO, "learn", learn_briefly)
    monkeypatch.setattr(sb3_vec_env, "PrefixRoutingVecEnv", short_episodes)
    exec(example, {})
    assert asked[0] >= 100_000
    assert list(tmp_path.rglob("*.zip"))
    assert list(tmp_path.rglob("events.out.tfevents.*"))
