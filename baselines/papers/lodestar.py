"""Lodestar: a network that learns online what TTFT each instance will give.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §8.4 (arXiv 2606.00946); what the paper leaves
open read in gangmuk/Lodestar at 32a7ab0d (`reward_predictor.py`, `distribution_shift_detector.py`,
`rl_routing.go`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.aibrix.prefix_cache import keep_least_loaded, usual_load
from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.full_blocks import full_blocks
from prefixgym.baselines.papers.flights import Flights
from prefixgym.baselines.papers.reward_network import RewardNetwork
from prefixgym.baselines.papers.training_data import TrainingData
from prefixgym.baselines.papers.two_homes import two_homes
from prefixgym.baselines.router import ROUTER_STREAM, register, router_keys
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import stream_key
from prefixgym.envs.view.hash_ring import HashRing
from prefixgym.envs.view.view import FIRST_TOKEN, View

_NETWORK_STREAM = ROUTER_STREAM + 2
_MEASURED = 7
"""Features that are not the kind of instance."""

_MOST_DIFFERENCE = 8
_DEVIATIONS = 1.0
"""Settings of the heuristic: those of AIBrix's prefix-cache."""


@register
@dataclass
class Lodestar(ScoredRouter):
    """The instance with the highest predicted reward, which is minus the TTFT in seconds.

    One network (`RewardNetwork`) for all instances, blind to which is which, sees of a request and
    an instance: prompt tokens, cached share of them, running, waiting, prefill tokens in flight,
    prompt tokens of the requests that decode, KV usage, and which of the cluster's kinds of
    instance it is. Running, waiting and KV usage are telemetry, the rest the index's and the
    router's own counters (the real one knows hits from its own routing history).

    - Every first token labels the features that its request was routed with. After theta new
      samples the network goes on learning from the last fifo_size samples and replay_size earlier
      ones (`TrainingData`).
    - While mean KV usage is above gpu_kv_saturation_threshold, only the two homes of the prompt's
      first prefix_blocks full blocks on a hash ring are candidates.
    - Before the first training, and where a feature of an available instance is outside the range
      that any instance had shown by the last training, AIBrix's prefix-cache rule decides on what
      is cached: if requests in flight differ by more than 8, the least loaded; else the largest
      cached share among instances with at most mean + 1 standard deviation; without any, the least
      loaded. (The real range is that of the samples in the buffers; here old extremes stay.)

    Each environment has a network of its own. A decision takes some 60 µs for the forward passes,
    and its share of the training another 70 µs for each thousand samples that are kept: a network
    of 34,000 weights costs that. From scratch for 50 epochs, as in the real service by default, it
    would be ten times as much: here each round goes on with the weights of the last, and takes
    training_epochs at a higher learning rate.

    Attributes:
        theta: samples between two trainings.
        fifo_size: most recent samples kept.
        replay_size: diverse earlier samples kept.
        gpu_kv_saturation_threshold: mean share of KV blocks in use, 0..1.
        prefix_blocks: blocks that make a group of prompts.
        training_epochs: passes over the samples in a round; real 50.
        batch_size: samples in a step of the optimizer.
        learning_rate: of Adam; real 0.0001.
        virtual_nodes: points of an instance on the ring; the real one takes hashes modulo n.
    """

    name = "lodestar"
    source = "Lodestar, arXiv 2606.00946 (§8.4)"
    family = "papers"
    knows = ("ring", "index", "ledger", "telemetry")

    theta: int = 1000
    fifo_size: int = 5000
    replay_size: int = 5000
    gpu_kv_saturation_threshold: float = 0.8
    prefix_blocks: int = 4
    training_epochs: int = 5
    batch_size: int = 256
    learning_rate: float = 0.001
    virtual_nodes: int = 160

    def __post_init__(self) -> None:
        for name in (
            "theta", "fifo_size", "replay_size", "prefix_blocks", "training_epochs", "batch_size",
            "virtual_nodes",
        ):  # fmt: skip
            self.require(name, getattr(self, name) >= 1, "at least 1")
        usage = self.gpu_kv_saturation_threshold
        self.require("gpu_kv_saturation_threshold", 0 <= usage <= 1, "0 to 1")
        self.require("learning_rate", 0 < self.learning_rate < math.inf, "above 0 and finite")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Untrained networks, no samples."""
        super().reset(cluster, seeds)
        num_envs, num_instances = len(seeds), len(cluster.instances)
        profiles = [instance.profile for instance in cluster.instances]
        kinds = [profiles.index(profile) for profile in profiles]
        self._kinds = np.equal.outer(kinds, sorted(set(kinds))).astype(np.float32)  # [N, kinds]
        num_features = _MEASURED + self._kinds.shape[1]
        keys = np.array([stream_key(seed, _NETWORK_STREAM) for seed in seeds], np.uint64)
        self._network = RewardNetwork(keys, num_features)
        self._data = [TrainingData(num_features, self.fifo_size, self.replay_size) for _ in seeds]
        self._trained = np.zeros(num_envs, np.bool_)
        # Samples since the last training: their number, features and rewards.
        self._num_new = np.zeros(num_envs, np.int64)
        self._new_features = np.empty((num_envs, 2 * self.theta, num_features), np.float32)
        self._new_rewards = np.empty((num_envs, 2 * self.theta), np.float32)
        # What any instance has shown, and by the last training.
        self._seen = np.empty((num_envs, 2, num_features), np.float32)
        self._seen[:, 0], self._seen[:, 1] = np.inf, -np.inf
        self._range = self._seen.copy()
        self._flights = Flights(num_envs, num_instances)
        self._routed_with = np.zeros((num_envs, 0, num_features), np.float32)
        self._features = np.empty((num_envs, num_instances, num_features), np.float32)
        self._features[:, :, _MEASURED:] = self._kinds
        self._ring = HashRing(num_instances, self.virtual_nodes)
        self._ring_keys = router_keys(seeds)
        self._block_size = cluster.block_size

    def hear(self, view: View) -> None:
        """First tokens label samples; where enough have come, the network learns."""
        self._routed_with = _with_room(self._routed_with, view.num_slots)
        most = int((self._num_new + view.num_events).max())
        if most > self._new_rewards.shape[1]:
            self._new_features = _with_room(self._new_features, 2 * most)
            self._new_rewards = _with_room(self._new_rewards, 2 * most)
        self._flights.hear(view)
        _label(
            view.events,
            view.num_events,
            self._flights.slots,
            self._routed_with,
            self._num_new,
            self._new_features,
            self._new_rewards,
        )
        for e in np.flatnonzero(self._num_new >= self.theta).tolist():
            self._train(e)

    def _train(self, e: int) -> None:
        data, new = self._data[e], int(self._num_new[e])
        data.add(self._new_features[e, :new], self._new_rewards[e, :new])
        self._num_new[e] = 0
        if data.too_many_old:
            data.keep_diverse(*self._network.last_hidden(e, data.old_features))
        features, rewards = data.all()
        self._network.train(
            e,
            features,
            rewards,
            epochs=self.training_epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
        )
        self._range[e] = self._seen[e]
        self._trained[e] = True

    def scores(self, view: View) -> NDArray[np.float64]:
        """Predicted TTFT in seconds, or what speaks against each instance by the heuristic."""
        _measure(view.requests, view.instances, self._flights.decode, self._features)
        scores = np.zeros(view.instances.shape)
        if self._trained.any():
            self._network.predict(self._features, scores)
        _decide_by(
            view.requests,
            view.block_ids,
            view.instances,
            self._features,
            self._range,
            self._trained,
            self._ring.positions,
            self._ring.owners,
            self._ring_keys,
            self._block_size,
            self.prefix_blocks,
            self.gpu_kv_saturation_threshold,
            scores,
        )
        return scores

    def commit(self, view: View, chosen: NDArray[np.int64]) -> None:
        """In flight, with what the chosen instance showed."""
        _remember(view.requests, self._features, chosen, self._routed_with, self._seen)
        self._flights.book(view, chosen, view.requests["time"])


def _with_room(array: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """The array with at least `length` places along its second axis."""
    places = [(0, 0)] * array.ndim
    places[1] = (0, max(0, length - array.shape[1]))
    return np.pad(array, places) if places[1][1] else array


@kernel
def _label(
    events: NDArray[np.void],
    num_events: NDArray[np.int64],
    slots: NDArray[np.void],
    routed_with: NDArray[np.float32],
    num_new: NDArray[np.int64],
    new_features: NDArray[np.float32],
    new_rewards: NDArray[np.float32],
) -> None:
    for e in range(len(num_events)):
        for k in range(num_events[e]):
            event = events[e, k]
            if event["kind"] == FIRST_TOKEN:
                q, place = event["slot"], num_new[e]
                new_features[e, place] = routed_with[e, q]
                new_rewards[e, place] = slots[e, q]["routed"] - event["time"]
                num_new[e] += 1


@kernel
def _measure(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    decode: NDArray[np.void],
    features: NDArray[np.float32],
) -> None:
    for e in range(instances.shape[0]):
        prompt_tokens = requests[e]["prompt_tokens"]
        for i in range(instances.shape[1]):
            row, seen = instances[e, i], features[e, i]
            seen[0] = prompt_tokens
            seen[1] = row["hit_tokens"] / prompt_tokens
            seen[2] = row["running"]
            seen[3] = row["waiting"]
            seen[4] = row["prefill_tokens"]
            seen[5] = decode[e, i]["prompt_tokens"]
            seen[6] = row["kv_usage"]


@kernel
def _decide_by(
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    features: NDArray[np.float32],
    known_range: NDArray[np.float32],
    trained: NDArray[np.bool_],
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    keys: NDArray[np.uint64],
    block_size: int,
    prefix_blocks: int,
    threshold: float,
    scores: NDArray[np.float64],
) -> None:
    """Turn predicted rewards into scores: narrow the candidates, or fall back on the heuristic."""
    num_instances = instances.shape[1]
    picks = np.empty(num_instances, np.int64)
    for e in range(len(scores)):
        count = candidates(instances[e], picks)
        if not trained[e] or not _in_range(features[e], known_range[e], picks, count):
            _heuristic(features[e], instances[e], picks, count, scores[e])
            continue
        for i in range(num_instances):
            scores[e, i] = -scores[e, i]
        usage = 0.0
        for k in range(count):
            usage += instances[e, picks[k]]["kv_usage"] / count
        has_key = full_blocks(requests[e], block_size) >= prefix_blocks
        if usage > threshold and has_key and count > 2:
            key = block_ids[e, prefix_blocks - 1]
            homes = two_homes(positions, owners, keys[e], key, picks, count, num_instances)
            for i in range(num_instances):
                if i != homes[0] and i != homes[1]:
                    scores[e, i] = np.inf


@kernel
def _in_range(
    features: NDArray[np.float32],
    known_range: NDArray[np.float32],
    picks: NDArray[np.int64],
    count: int,
) -> bool:
    """Whether the network has to interpolate only. A feature that never varied is not looked at."""
    for f in range(features.shape[1]):
        low, high = known_range[0, f], known_range[1, f]
        for k in range(count):
            value = features[picks[k], f]
            if low < high and (value < low or value > high):
                return False
    return True


@kernel
def _heuristic(
    features: NDArray[np.float32],
    instances: NDArray[np.void],
    picks: NDArray[np.int64],
    count: int,
    scores: NDArray[np.float64],
) -> None:
    counts = np.empty(len(scores))
    ready = np.empty(len(scores), np.bool_)
    for i in range(len(scores)):
        counts[i] = instances[i]["requests"]
    keep_least_loaded(counts, picks, count, _MOST_DIFFERENCE, ready)
    limit = usual_load(counts, picks, count, _DEVIATIONS)
    matched = False
    for i in range(len(scores)):
        fits = ready[i] and counts[i] <= limit and features[i, 1] > 0
        matched = matched or fits
        # The larger share, then the fewer requests: these stay far below a share's weight.
        scores[i] = counts[i] - 1e9 * features[i, 1] if fits else np.inf
    if not matched:
        scores[:] = counts


@kernel
def _remember(
    requests: NDArray[np.void],
    features: NDArray[np.float32],
    chosen: NDArray[np.int64],
    routed_with: NDArray[np.float32],
    seen: NDArray[np.float32],
) -> None:
    for e in range(len(chosen)):
        routed_with[e, requests[e]["slot"]] = features[e, chosen[e]]
        for f in range(features.shape[2]):
            for i in range(features.shape[1]):
                seen[e, 0, f] = min(seen[e, 0, f], features[e, i, f])
                seen[e, 1, f] = max(seen[e, 1, f], features[e, i, f])
