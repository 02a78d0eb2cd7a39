"""Proximal policy optimisation of the instance scorer, all of it, top to bottom.

The recipe is that of `rl.md` §5.5: one shared scorer that corrects a linear score; several rollouts
of the same requests, the mean of the others removed from each one's advantages; a price on
tardiness; a discount by wall time. PPO: Schulman et al., arXiv 1707.06347; written after CleanRL's
single-file implementations.

Shapes: T decisions of a rollout, E clusters in groups of K, N instances.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.scorer import ClusterEncoder, InstanceScorer, linear
from prefixgym.envs.observation import INSTANCE_FIELDS, REQUEST_FIELDS
from prefixgym.experiments.training.clusters import Clusters
from prefixgym.experiments.training.config import PPO
from prefixgym.experiments.training.judge import Judge, Verdict
from prefixgym.experiments.training.rollout_buffer import RolloutBuffer
from prefixgym.experiments.training.run_folder import RunFolder, below, prefixed
from prefixgym.experiments.training.tensorboard import kept

_VALUED_AT_ONCE = 16384


class Critic(nn.Module):
    """What a cluster will earn from now on, discounted, [B]."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.cluster = ClusterEncoder(hidden)
        self.value = linear(hidden, 1, 1.0)

    def forward(self, request: Tensor, instances: Tensor) -> Tensor:
        """Of request [B, R] and instances [B, N, F]."""
        value: Tensor = self.value(self.cluster(request, instances)).squeeze(1)
        return value


class Learner:
    """Networks, clusters and the last decisions; one `update` after the other.

    Everything random of an update is drawn from the training's seed and the update's number.
    """

    def __init__(self, training: PPO) -> None:
        self.training = training
        torch.manual_seed(training.seed)
        scenario = training.load_scenario()
        rate = training.rate_of(scenario)
        self.actor = InstanceScorer(
            training.hidden, prior=training.prior_weights, attention=training.attention
        )
        self.critic = Critic(training.hidden)
        self.optimizer = torch.optim.Adam(
            [*self.actor.parameters(), *self.critic.parameters()], training.learning_rate, eps=1e-5
        )
        shaped = training.credit == "shaped"
        self.clusters = Clusters(
            training.seed,
            training.clusters,
            training.rollouts_per_arrivals,
            scenario=scenario,
            rate=rate,
            num_requests=training.num_requests,
            reward={
                "mode": "shaped" if shaped else "attributed",
                "tardiness": training.tardiness,
                "cap": training.cap,
            },
            discount_time=training.discount_time,
            randomise=training.randomise,
            threads=training.threads,
        )
        self.buffer = RolloutBuffer(
            training.rollout + training.waited,
            training.clusters,
            len(REQUEST_FIELDS),
            (self.clusters.num_instances, len(INSTANCE_FIELDS)),
            attributed=training.credit == "attributed",
            per_request=not shaped,
        )
        # Values in tenths of what all requests within the discount time could earn.
        self._scale = 10.0 / (rate * training.discount_time)
        self._episode = scenario.num_requests
        if training.num_requests is not None:
            self._episode = training.num_requests
        self.done = 0
        """Updates that were made."""

    def update(self) -> dict[str, float]:
        """Play a rollout and learn from the oldest one that is kept; returns what to note."""
        generator = torch.Generator().manual_seed(self._seed_of_update())
        fraction = self.done / self.training.updates
        rate = self.training.learning_rate * (1.0 - 0.9 * fraction)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate
        start = time.perf_counter()
        notes = self._play(generator)
        played = time.perf_counter()
        if self.buffer.filled == len(self.buffer.action):
            notes |= self._learn(generator)
        self.done += 1
        seconds = time.perf_counter() - start
        decisions = self.training.rollout * self.training.clusters
        return notes | {
            "charts/decisions": float(self.done * decisions),
            "charts/learning_rate": rate,
            "charts/SPS": decisions / seconds,
            "charts/share_of_time_playing": (played - start) / seconds,
        }

    def _seed_of_update(self) -> int:
        words = np.random.SeedSequence((self.training.seed, 1, self.done)).generate_state(1)
        return int(words[0])

    # --- playing ---

    def _play(self, generator: torch.Generator) -> dict[str, float]:
        clusters, buffer, rollout = self.clusters, self.buffer, self.training.rollout
        first = len(buffer.action) - rollout
        buffer.make_room(rollout)
        if (late := clusters.members(self._begin_now())).any():
            clusters.restart(late)
            buffer.begin(first, late)
        reward, ended, good = 0.0, 0, 0
        for row in range(first, len(buffer.action)):
            seen = clusters.seen
            action, log_probability = self._act(seen, generator)
            played = clusters.step(action)
            buffer.add(row, seen, action, log_probability, played)
            reward += float(played.reward.sum())
            if played.attribution is not None:
                ended += len(played.attribution.units)
                good += int((played.attribution.units == 1.0).sum())  # none else earns a whole one
        decisions = rollout * self.training.clusters
        notes = {"reward/per_decision": reward / decisions}
        notes["charts/differs_from_min_ttft"] = float((self.ranks() > 0).mean())
        if ended:
            notes["serving/rollout_attainment"] = good / ended
        return notes

    def _begin_now(self) -> range:
        """Groups whose first episode is cut off here, so that not all are at the same decision.

        Else all clusters would fill up, and all episodes end, at the same time, and no update would
        see more than one phase of an episode.
        """
        groups = self.clusters.num_groups

        def due(update: int) -> int:
            """How many of the groups, the last one first, have begun anew before this update."""
            played = update * self.training.rollout
            return min(groups - 1, max(0, played * groups // self._episode))

        return range(groups - due(self.done), groups - due(self.done - 1))

    def _act(
        self, seen: tuple[NDArray[np.float32], NDArray[np.float32]], generator: torch.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        with torch.no_grad():
            scores = self.actor(torch.from_numpy(seen[0]), torch.from_numpy(seen[1]))
            log_probabilities = scores.log_softmax(1)
            action = torch.multinomial(log_probabilities.exp(), 1, generator=generator)
            return action[:, 0].numpy(), log_probabilities.gather(1, action)[:, 0].numpy()

    def ranks(self) -> NDArray[np.int64]:
        """How many available instances promised a sooner first token than the chosen one, [T, E].

        Of the last rollout.
        """
        names = [field.name for field in INSTANCE_FIELDS]
        first = len(self.buffer.action) - self.training.rollout
        instances, action = self.buffer.instances[first:], self.buffer.action[first:]
        ttft = instances[..., names.index("ttft")]
        chosen = np.take_along_axis(ttft, action[..., None], 2)
        sooner = (ttft < chosen) & (instances[..., names.index("available")] > 0)
        ranks: NDArray[np.int64] = sooner.sum(2)
        return ranks

    # --- learning ---

    def _learn(self, generator: torch.Generator) -> dict[str, float]:
        training, buffer, rows = self.training, self.buffer, self.training.rollout
        values = self._values()
        advantages = self._advantages(values)[:rows]
        returns = torch.from_numpy(advantages + values[:rows]).float().flatten()
        explained = _share_explained(advantages + values[:rows], advantages)
        chance_removed = self._without_chance(advantages)
        normal = (chance_removed - chance_removed.mean()) / (chance_removed.std() + 1e-8)
        advantage = torch.from_numpy(normal).float().flatten()
        request = torch.from_numpy(buffer.request[:rows]).flatten(0, 1)
        instances = torch.from_numpy(buffer.instances[:rows]).flatten(0, 1)
        action = torch.from_numpy(buffer.action[:rows]).flatten()
        old = torch.from_numpy(buffer.log_probability[:rows]).flatten()
        told: list[Tensor] = []
        for batch in self._batches(len(action), generator):
            log_probabilities = self.actor(request[batch], instances[batch]).log_softmax(1)
            entropy = -(log_probabilities.exp() * log_probabilities).sum(1).mean()
            log_ratio = log_probabilities.gather(1, action[batch][:, None])[:, 0] - old[batch]
            ratio = log_ratio.exp()
            clipped = ratio.clamp(1.0 - training.clip, 1.0 + training.clip)
            policy = -torch.minimum(ratio * advantage[batch], clipped * advantage[batch]).mean()
            value = (self.critic(request[batch], instances[batch]) - returns[batch]).square().mean()
            self.optimizer.zero_grad()
            (policy - training.entropy * entropy + 0.5 * value).backward()
            for network in (self.actor, self.critic):
                nn.utils.clip_grad_norm_(network.parameters(), training.max_gradient)
            self.optimizer.step()
            kl = (ratio - 1.0 - log_ratio).mean()
            moved = ((ratio - 1.0).abs() > training.clip).float().mean()
            told.append(torch.stack([policy, value, entropy, kl, moved]).detach())
        names = ("policy", "value", "entropy", "approx_kl", "clip_fraction")
        means = torch.stack(told).mean(0).tolist()
        notes = {f"losses/{name}": value for name, value in zip(names, means, strict=True)}
        return notes | {
            "losses/explained_variance": explained,
            "losses/variance_removed_by_group": _share_explained(advantages, chance_removed),
        }

    def _values(self) -> NDArray[np.float64]:
        """Of every kept decision and of the next one, [L + 1, E]."""
        now = self.clusters.seen
        request = np.concatenate([self.buffer.request, now[0][None]])
        instances = np.concatenate([self.buffer.instances, now[1][None]])
        parts = zip(
            torch.split(torch.from_numpy(request).flatten(0, 1), _VALUED_AT_ONCE),
            torch.split(torch.from_numpy(instances).flatten(0, 1), _VALUED_AT_ONCE),
            strict=True,
        )
        with torch.no_grad():
            values = torch.cat([self.critic(*part) for part in parts])
        return values.double().numpy().reshape(request.shape[:2])

    def _advantages(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Generalised advantage estimation, [L, E], from values [L + 1, E]."""
        buffer = self.buffer
        surprise = self._scale * buffer.reward + buffer.discount * values[1:] - values[:-1]
        advantages = np.zeros_like(surprise)
        ahead = np.zeros(surprise.shape[1])
        for row in range(len(surprise) - 1, -1, -1):
            ahead = surprise[row] + self.training.gae_lambda * buffer.discount[row] * ahead
            advantages[row] = ahead
        return advantages

    def _without_chance(self, advantages: NDArray[np.float64]) -> NDArray[np.float64]:
        """Minus the mean of the others that saw the same requests, [T, E]."""
        size = self.training.rollouts_per_arrivals
        groups = advantages.reshape(len(advantages), -1, size)
        others = (groups.sum(2, keepdims=True) - groups) / (size - 1)
        return (groups - others).reshape(advantages.shape)

    def _batches(self, decisions: int, generator: torch.Generator) -> Iterator[Tensor]:
        for _ in range(self.training.epochs):
            order = torch.randperm(decisions, generator=generator)
            yield from torch.split(order, self.training.minibatch)

    # --- going on after an interruption ---

    def tensors(self) -> dict[str, Tensor]:
        """All that `resume` needs, but for the number of updates."""
        moments = self.optimizer.state_dict()["state"]
        return (
            prefixed("actor", self.actor.state_dict())
            | prefixed("critic", self.critic.state_dict())
            | {
                f"adam.{i}.{k}": torch.as_tensor(v)
                for i, s in moments.items()
                for k, v in s.items()
            }
            | prefixed("clusters", self.clusters.state())
            | prefixed("buffer", self.buffer.state())
        )

    def resume(self, tensors: dict[str, Tensor], done: int) -> None:
        """Be as the learner was that had made so many updates, bit for bit."""
        self.actor.load_state_dict(below("actor", tensors))
        self.critic.load_state_dict(below("critic", tensors))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in below("adam", tensors).items():
            number, _, key = name.partition(".")
            moments.setdefault(int(number), {})[key] = tensor
        state = self.optimizer.state_dict()
        self.optimizer.load_state_dict(state | {"state": moments})
        self.clusters.resume({k: v.numpy() for k, v in below("clusters", tensors).items()})
        self.buffer.resume({k: v.numpy() for k, v in below("buffer", tensors).items()})
        self.done = done


def _passes(update: int, every: float) -> bool:
    """Whether a multiple of so many updates, a fraction maybe, is reached by this one first."""
    return int(update / every) > int((update - 1) / every)


def updates_made(folder: RunFolder) -> int:
    """How many updates a training has behind it."""
    found = folder.load_checkpoint()
    return 0 if found is None else int(found[1]["updates"])


def _share_explained(whole: NDArray[np.float64], left: NDArray[np.float64]) -> float:
    """1 - Var(left) / Var(whole)."""
    return 1.0 - float(left.var()) / max(float(whole.var()), 1e-12)


OnUpdate = Callable[[int, dict[str, float], LearnedRouter, Verdict | None], None]
"""Told after an update its number, what to note, the router and, where it was judged, how."""


def train(
    training: PPO,
    folder: RunFolder,
    judge: Judge,
    on_update: OnUpdate,
    keep: Callable[[InstanceScorer, float], None],
) -> Learner:
    """Learn, or go on to learn, until all updates are made; returns the learner, as it is then.

    Args:
        training: what to do.
        folder: where checkpoints go and come from.
        judge: of the weights, before the first update, every `evaluate_every` decisions and after
            the last.
        on_update: told after every update, and of update 0 before the first.
        keep: told weights that are the best so far, and the seconds that it took to learn them.
    """
    torch.set_num_threads(1)  # networks this small are slower on two (`rl.md` §3.1)
    learner = Learner(training)
    router = LearnedRouter(learner.actor)
    decisions = training.clusters * training.rollout
    if (found := folder.load_checkpoint()) is not None:
        tensors, facts = found
        learner.resume(tensors, facts["updates"])
        best, seconds = Verdict(facts["best"]), facts["seconds"]
        folder.cut_curve(learner.done)
    else:  # what is not better than its prior is not kept
        folder.cut_curve(0)
        best, seconds = judge.verdict(router), 0.0
        keep(learner.actor, seconds)
        notes = best.notes() | kept(best, judge)
        notes |= {"charts/decisions": 0.0, "charts/seconds": 0.0}
        on_update(0, notes, router, best)
    while learner.done < training.updates:
        start = time.perf_counter()
        notes = learner.update()
        last = learner.done == training.updates
        verdict = None
        if last or _passes(learner.done, training.evaluate_every / decisions):
            verdict = judge.verdict(router)
            if judge.prefers(verdict, best):
                best = verdict
                keep(learner.actor, seconds + time.perf_counter() - start)
            notes |= verdict.notes() | kept(best, judge)
        seconds += time.perf_counter() - start
        notes["charts/seconds"] = seconds
        folder.note({"update": learner.done, **notes})
        on_update(learner.done, notes, router, verdict)
        if last or learner.done % training.checkpoint_every == 0:
            facts_now = {"updates": learner.done, "best": dict(best.metrics), "seconds": seconds}
            folder.save_checkpoint(learner.tensors(), facts_now)
    learner.clusters.close()
    return learner
