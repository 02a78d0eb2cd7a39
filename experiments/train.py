"""Train a router by PPO and hold it against handcrafted ones on validation seeds.

One file, top to bottom: the environment, the learner, the comparison.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecNormalize

from prefixgym.agents.instance_scorer import InstanceScorerPolicy
from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.sb3_vec_env import PrefixRoutingVecEnv
from prefixgym.baselines.router import make_router
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evaluate import evaluate_router

REFERENCES = ("round_robin", "min_ttft")
"""What a learned router is compared with at the end of its training."""


@dataclass(frozen=True)
class Training:
    """Everything that decides what is learned.

    Attributes:
        scenario: cluster, workload, objectives and what the router may know.
        rate: requests/s.
        steps: decisions to learn from.
        seed: of the network and of the episodes.
        num_envs: clusters that are played at once.
        rollout: decisions of each cluster between two updates.
        batch: decisions in a gradient step.
        epochs: passes over a rollout.
        learning_rate: of Adam.
        discount: per decision. 0.997 looks some 300 requests ahead: requests that are decided now
            end, and are paid, long after the next ones are decided (`rl.md` §5.3).
        gae_lambda: of generalised advantage estimation.
        entropy: coefficient of the entropy bonus.
    """

    scenario: Scenario
    rate: float
    steps: int = 1_000_000
    seed: int = 0
    num_envs: int = 64
    rollout: int = 128
    batch: int = 2048
    epochs: int = 4
    learning_rate: float = 1e-3
    discount: float = 0.997
    gae_lambda: float = 0.95
    entropy: float = 0.003

    @property
    def rollout_decisions(self) -> int:
        """Decisions of all clusters between two updates."""
        return self.num_envs * self.rollout

    @property
    def rollouts(self) -> int:
        """How many rollouts it takes to make `steps` decisions, the last one whole."""
        return -(-self.steps // self.rollout_decisions)


def train(training: Training, folder: Path, on_rollout: Callable[[int], None]) -> PPO:
    """Learn, with TensorBoard events and `model.zip` in `folder`.

    Args:
        training: what to learn.
        folder: is made if it does not exist.
        on_rollout: told after every rollout how many decisions it took.
    """
    torch.set_num_threads(1)  # networks this small are slower on two (`rl.md` §3.1)
    env = PrefixRoutingVecEnv(training.num_envs, training.scenario, training.rate, stagger=True)
    # Returns are hundreds of requests: unscaled, the value's gradient would drown the policy's.
    scaled = VecNormalize(env, norm_obs=False, gamma=training.discount)
    model = PPO(
        InstanceScorerPolicy,
        scaled,
        n_steps=training.rollout,
        batch_size=training.batch,
        n_epochs=training.epochs,
        learning_rate=training.learning_rate,
        gamma=training.discount,
        gae_lambda=training.gae_lambda,
        ent_coef=training.entropy,
        seed=training.seed,
        device="cpu",
    )
    model.set_logger(configure(str(folder), ["tensorboard"]))
    model.learn(training.steps, callback=_OnRollout(training.rollout_decisions, on_rollout))
    model.save(folder / "model.zip")
    env.close()
    return model


class _OnRollout(BaseCallback):
    """Calls a function after every rollout."""

    def __init__(self, decisions: int, on_rollout: Callable[[int], None]) -> None:
        super().__init__()
        self._decisions = decisions
        self._call = on_rollout

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._call(self._decisions)


def compare(model: PPO, training: Training, seeds: Sequence[int]) -> pl.DataFrame:
    """Metrics of the learned router and of the references: one row a router and seed."""
    routers = [LearnedRouter(model.policy), *(make_router(name) for name in REFERENCES)]
    return pl.concat(
        evaluate_router(router, training.scenario, training.rate, seeds) for router in routers
    )
