"""Algorithms off the shelf: Stable-Baselines3's and sb3-contrib's.

All choose by the instance scorer, but for one that shows what a plain network comes to.

They know nothing of groups that see the same requests, of the decision that a reward belongs to, or
of wall time: their discount is per decision, and means the discount time at the mean rate.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sb3_contrib import QRDQN, MaskablePPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.policies import MultiInputActorCriticPolicy
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from prefixgym.agents.flat_scorer import FlatScorer
from prefixgym.agents.instance_scorer import (
    InstanceActor,
    InstanceScorerPolicy,
    MaskableInstanceScorerPolicy,
)
from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.q_policies import InstanceQPolicy, InstanceQuantilePolicy, InstanceValues
from prefixgym.agents.sb3_vec_env import PrefixRoutingVecEnv
from prefixgym.agents.scorer import InstanceScorer
from prefixgym.agents.weights import Scorer
from prefixgym.experiments.training.config import FlatOffTheShelf, OffTheShelf
from prefixgym.experiments.training.judge import Judge, Verdict
from prefixgym.experiments.training.tensorboard import kept


@dataclass(frozen=True)
class Shelf:
    """An algorithm, the policy that it takes, what it is called with and how it is configured."""

    algorithm: type[BaseAlgorithm]
    policy: type[Any]
    settings: dict[str, Any]
    training: type[OffTheShelf] = OffTheShelf


_PPO: dict[str, Any] = {"n_steps": 256, "batch_size": 4096, "n_epochs": 10, "learning_rate": 3e-3}
_PPO |= {"gae_lambda": 0.8, "ent_coef": 0.0}
# From nothing, so it has to try more, and larger steps would undo it.
_FLAT = _PPO | {"n_epochs": 4, "learning_rate": 1e-3, "gae_lambda": 0.95, "ent_coef": 0.003}
# A step adds one transition of each cluster; of which two gradient steps make four of each batch.
_Q: dict[str, Any] = {
    "learning_rate": 5e-4,
    "buffer_size": 200_000,
    "learning_starts": 10_000,
    "batch_size": 512,
}
_Q |= {"train_freq": 1, "gradient_steps": 2, "target_update_interval": 20_000}
_Q |= {"exploration_fraction": 0.2, "exploration_final_eps": 0.02}

SHELVES: dict[str, Shelf] = {
    "sb3-ppo": Shelf(PPO, InstanceScorerPolicy, _PPO),
    "flat-ppo": Shelf(PPO, MultiInputActorCriticPolicy, _FLAT, FlatOffTheShelf),
    "maskable-ppo": Shelf(MaskablePPO, MaskableInstanceScorerPolicy, _PPO),
    "a2c": Shelf(
        A2C,
        InstanceScorerPolicy,
        {"n_steps": 32, "learning_rate": 1e-3, "gae_lambda": 0.95, "ent_coef": 0.003},
    ),
    "dqn": Shelf(DQN, InstanceQPolicy, _Q),
    "qrdqn": Shelf(QRDQN, InstanceQuantilePolicy, _Q),
}
"""By the name of their command."""


def scorer_of(policy: Any) -> Scorer:
    """The network that a policy of `SHELVES` chooses by.

    A Q policy chooses by values, which are scores and a term that all instances share; a quantile
    policy adds the mean of its quantiles' offsets, which are folded into the scores' last layer.
    """
    if type(policy) is MultiInputActorCriticPolicy:
        return _flat_scorer(policy)
    network = policy.scorer
    if isinstance(network, InstanceActor):
        return network.scorer
    if not isinstance(network, InstanceValues):
        raise TypeError(f"policy: found {type(policy).__name__}, has no instance scorer")
    scorer = network.scorer
    if network.spread is None:
        return scorer
    folded = InstanceScorer(
        scorer.head.in_features,
        prior=None if scorer.prior is None else scorer.prior.tolist(),
        attention=len(scorer.encoder.attention) > 0,
    )
    folded.load_state_dict(scorer.state_dict())
    with torch.no_grad():
        folded.head.weight.add_(network.spread.weight.mean(0, keepdim=True))
        folded.head.bias.add_(network.spread.bias.mean(0, keepdim=True))
    return folded


def _flat_scorer(policy: Any) -> FlatScorer:
    """A copy of the layers that a plain policy chooses by."""
    layers = nn.Sequential(*policy.mlp_extractor.policy_net, policy.action_net)
    flat = FlatScorer(policy.action_net.out_features, policy.action_net.in_features)
    flat.layers.load_state_dict(layers.state_dict())
    return flat


OnVerdict = Callable[[int, dict[str, float], LearnedRouter, Verdict], None]
"""Told the decisions so far, what to note, the router, and how it was judged."""


def train(
    training: OffTheShelf,
    name: str,
    folder: str,
    judge: Judge,
    on_steps: Callable[[int], None],
    on_verdict: OnVerdict,
    keep: Callable[[Scorer, float], None],
) -> BaseAlgorithm:
    """Learn with one of `SHELVES`; TensorBoard events go to `folder`.

    Args:
        training: what to do.
        name: of the algorithm.
        folder: of the events.
        judge: of the weights, every `evaluate_every` decisions and at the end.
        on_steps: told how many decisions were made since it was told last.
        on_verdict: told of every judgement.
        keep: as for `ppo.train`.
    """
    torch.set_num_threads(1)
    shelf, scenario = SHELVES[name], training.load_scenario()
    rate = training.rate_of(scenario)
    gamma = math.exp(-1.0 / (rate * training.discount_time))
    reward = {"mode": training.reward, "tardiness": training.tardiness, "cap": training.cap}
    if training.reward == "shaped":
        reward["gamma"] = gamma
    env = PrefixRoutingVecEnv(
        training.clusters,
        scenario,
        rate,
        training.num_requests,
        reward,
        training.threads,
        stagger=True,
        randomise=training.randomise,
    )
    # Returns are hundreds of requests: unscaled, the value's gradient would drown the policy's.
    scaled = VecNormalize(env, norm_obs=False, gamma=gamma)
    settings = shelf.settings | {"gamma": gamma, "seed": training.seed} | training.arguments
    algorithm: Any = shelf.algorithm
    model: BaseAlgorithm = algorithm(
        shelf.policy, scaled, policy_kwargs=training.choices, device="cpu", **settings
    )
    model.set_logger(configure(folder, ["tensorboard"]))
    callback = _Judging(training, judge, on_steps, on_verdict, keep)
    model.learn(training.steps, callback=callback)
    env.close()
    return model


class _Judging(BaseCallback):
    """Judges between steps, and keeps what is best."""

    def __init__(
        self,
        training: OffTheShelf,
        judge: Judge,
        on_steps: Callable[[int], None],
        on_verdict: OnVerdict,
        keep: Callable[[Scorer, float], None],
    ) -> None:
        super().__init__()
        self._training, self._judge, self._keep = training, judge, keep
        self._on_steps, self._on_verdict = on_steps, on_verdict
        self._best: Verdict | None = None
        self._told = self._judged = 0
        self._start: float | None = None

    def _on_training_start(self) -> None:
        self._verdict()

    def _on_step(self) -> bool:
        if self.num_timesteps - self._told >= self._training.evaluate_every // 20:
            self._on_steps(self.num_timesteps - self._told)
            self._told = self.num_timesteps
        if self.num_timesteps - self._judged >= self._training.evaluate_every:
            self._judged = self.num_timesteps
            self._verdict()
        return True

    def _on_training_end(self) -> None:
        self._on_steps(self.num_timesteps - self._told)
        self._verdict()

    def _verdict(self) -> None:
        scorer = scorer_of(self.model.policy)
        router = LearnedRouter(scorer)
        verdict = self._judge.verdict(router)
        if self._start is None:  # nothing has been learned before the first judgement
            self._start = time.perf_counter()
        seconds = time.perf_counter() - self._start
        if self._best is None or self._judge.prefers(verdict, self._best):
            self._best = verdict
            self._keep(scorer, seconds)
        notes = verdict.notes() | kept(self._best, self._judge)
        notes |= {"charts/decisions": float(self.num_timesteps), "charts/seconds": seconds}
        self._on_verdict(self.num_timesteps, notes, router, verdict)
