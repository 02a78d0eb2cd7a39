"""How much of PPO's speed is left when its frames come from the simulator."""

import time
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from prefixgym.agents.sb3_vec_env import PrefixRoutingVecEnv
from prefixgym.experiments.bench.speed import Measurement

NUM_ENVS = 64
EPISODE = 512
FRAMES = 2 * EPISODE * NUM_ENVS  # two episodes everywhere, so that resets count


class TrivialVecEnv(VecEnv):
    """Returns the same arrays in every step: the fastest environment with the spaces of another."""

    def __init__(self, like: VecEnv) -> None:
        super().__init__(like.num_envs, like.observation_space, like.action_space)
        samples: list[Any] = [self.observation_space.sample() for _ in range(self.num_envs)]
        self._observation = {key: np.stack([s[key] for s in samples]) for key in samples[0]}
        self._rewards = np.zeros(self.num_envs, np.float32)
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]

    def reset(self) -> dict[str, Any]:
        """The observation."""
        return self._observation

    def step_async(self, actions: Any) -> None:
        """Nothing to do."""

    def step_wait(self) -> VecEnvStepReturn:
        """The same as ever."""
        return self._observation, self._rewards, self._ended, self._infos

    def close(self) -> None:
        """Nothing to do."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """What Stable-Baselines3 asks for at the start: no render mode."""
        return [None for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """There are none."""
        raise AttributeError(attr_name)

    def env_method(
        self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any
    ) -> list[Any]:
        """There are none."""
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        """They are not."""
        return [False for _ in self._get_indices(indices)]


def ppo_through_adapter(repeats: int = 3) -> list[Measurement]:
    """PPO's frames/s on the adapter and on a trivial environment with the same spaces.

    64 environments of 8 instances, rollouts of 128 decisions, batches of 2,048, 4 epochs, Stable-
    Baselines3's default network, one torch thread. The two take turns; best of `repeats` each.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    adapter = PrefixRoutingVecEnv(NUM_ENVS, "shared-prompts-8", num_requests=EPISODE)
    environments: list[VecEnv] = [adapter, TrivialVecEnv(adapter)]
    models = [
        PPO(
            "MultiInputPolicy",
            env,
            n_steps=128,
            batch_size=2048,
            n_epochs=4,
            gamma=0.997,
            seed=0,
            device="cpu",
        )
        for env in environments
    ]
    for model in models:
        model.learn(1)  # one rollout, to compile and to warm up
    seconds = [float("inf")] * len(models)
    for _ in range(repeats):
        for i, model in enumerate(models):
            start = time.perf_counter()
            model.learn(FRAMES)
            seconds[i] = min(seconds[i], time.perf_counter() - start)
    adapter.close()
    torch.set_num_threads(threads)
    ratio = seconds[1] / seconds[0]
    return [
        Measurement("PPO through the adapter, 64 environments", FRAMES / seconds[0], "frames/s"),
        Measurement("same PPO, trivial environment", FRAMES / seconds[1], "frames/s"),
        Measurement("ratio of the two", ratio, "times", ">= 0.8", ratio >= 0.8),
    ]
