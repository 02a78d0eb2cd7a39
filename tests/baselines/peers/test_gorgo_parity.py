"""Our GORGO against gorgo-lb 0.2.0: its policies on its own trie, its tuner on the same draws."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from made_views import cluster_of

from prefixgym.baselines.papers.gorgo_tuner import OBJECTIVES, WeightTuner, normal
from prefixgym.baselines.router import make_router
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.view.view import (
    ENDED,
    EVENT_VIEW,
    FIRST_TOKEN,
    HOLD,
    INSTANCE_VIEW,
    REQUEST_VIEW,
    View,
)

gorgo = pytest.importorskip("gorgo", reason="gorgo-lb is not installed")

BLOCK = 8
REPLICAS = 4
DECISIONS = 1500


class Stage:
    """Requests that share beginnings, some in flight, one replica down at times."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._ids: dict[tuple[int, ...], int] = {}
        self.in_flight: list[tuple[int, int]] = []
        self.up = np.ones(REPLICAS, np.bool_)

    def queued(self) -> list[int]:
        counts = [0] * REPLICAS
        for replica, tokens in self.in_flight:
            counts[replica] += tokens
        return counts

    def prompt(self) -> tuple[list[int], list[int]]:
        """Tokens and block ids. Different blocks differ in their first token."""
        letters = (int(self.rng.integers(3)),) * int(self.rng.integers(0, 5))
        letters += tuple(int(x) for x in self.rng.integers(0, 2, int(self.rng.integers(1, 8))))
        rest = int(self.rng.integers(1, BLOCK + 1))
        # A last block that is not full has an id of its own, as in `View.block_ids`.
        paths = [letters[: k + 1] for k in range(len(letters) - 1)]
        paths.append(letters if rest == BLOCK else (*letters, -rest))
        ids = [self._ids.setdefault(path, len(self._ids)) for path in paths]
        tokens = [block_id * BLOCK + k for block_id in ids for k in range(BLOCK)]
        return tokens[: len(tokens) - BLOCK + rest], ids

    def view(self, tokens: list[int], ids: list[int], index: int) -> View:
        requests = np.zeros(1, REQUEST_VIEW)
        requests["prompt_tokens"], requests["num_blocks"] = len(tokens), len(ids)
        requests["index"] = index
        instances = np.zeros((1, REPLICAS), INSTANCE_VIEW)
        instances["available"] = self.up
        instances["context_tokens"] = self.queued()
        block_ids = np.full((1, 16), -1, np.int64)
        block_ids[0, : len(ids)] = ids
        events = np.zeros((1, 1), EVENT_VIEW)
        holds = np.zeros((1, REPLICAS), HOLD)
        cluster = ClusterSpec(cluster_of(REPLICAS).instances, BLOCK)
        count = np.zeros(1, np.int64)
        return View(cluster, requests, block_ids, instances, events, count, holds, 1)


NEAR, FAR = [0.0] * REPLICAS, [1.25, 0.0, 40.0, 3.5]
CASES: list[tuple[str, list[float], dict[str, float]]] = [
    ("gorgo", NEAR, {}),
    ("gorgo", FAR, {"rtt_weight": 2.5, "prefill_weight": 0.7, "load_weight": 0.1}),
    (
        "gorgo_2d",
        FAR,
        {"rtt_weight": 0.3, "prefill_rate": 0.11, "queue_rate": 0.02, "queue_weight": 1.7},
    ),
]


@pytest.mark.parametrize(("name", "rtts", "parameters"), CASES)
def test_same_decisions(name: str, rtts: list[float], parameters: dict[str, float]) -> None:
    rtt_ms = ",".join(str(rtt) for rtt in rtts)
    router: Any = make_router(name, {**parameters, "rtt_ms": rtt_ms})
    stage = Stage(2)
    policy = gorgo.get_policy(gorgo.normalize_policy(name)).fn
    store = gorgo.make_default_store()
    store["defaults"].update(parameters)
    trie = gorgo.RadixTrie()
    router.reset(ClusterSpec(cluster_of(REPLICAS).instances, BLOCK), [0])
    urls = [str(replica) for replica in range(REPLICAS)]
    ties = 0
    for number in range(DECISIONS):
        tokens, ids = stage.prompt()
        queued = stage.queued()
        context = gorgo.RouteContext(
            replica_urls=[url for url, up in zip(urls, stage.up, strict=True) if up],
            metrics={
                url: gorgo.ReplicaSnapshot(
                    num_running_reqs=0,
                    num_queue_reqs=0,
                    num_used_tokens=0,
                    latency=rtt / 1000,
                )
                for url, rtt in zip(urls, rtts, strict=True)
            },
            endpoints_queued_tokens=dict(zip(urls, queued, strict=True)),
            endpoints_queued_uncached_tokens={},
            endpoints_inflight_requests={},
            radix_trie=trie,
            token_ids=tokens,
            request_tokens=len(tokens),
            hyperparameters=store,
        )
        decision = policy(context)
        view = stage.view(tokens, ids, number)
        ours = router.scores(view)[0]
        assert {url: ours[int(url)] for url in context.replica_urls} == decision.scores
        ties += list(decision.scores.values()).count(min(decision.scores.values())) > 1
        (chosen,) = router.route(view)
        assert str(chosen) == decision.target
        trie.insert(tokens, decision.target)
        stage.in_flight.append((int(chosen), len(tokens)))
        while stage.in_flight and stage.rng.random() < 0.55:
            stage.in_flight.pop(int(stage.rng.integers(len(stage.in_flight))))
        if stage.rng.random() < 0.03:
            stage.up[:] = True
            if stage.rng.random() < 0.5:
                gone = int(stage.rng.integers(REPLICAS))
                stage.up[gone] = False
                trie.remove_endpoint(str(gone))
    # 19 % of the decisions are ties where no network tells the replicas apart: the first one wins.
    assert (ties > 100) == (rtts == NEAR)
    assert trie.node_count() > 300


class Draws:
    """Our normal numbers in the place of Python's."""

    def __init__(self, key: np.uint64) -> None:
        self._key = key
        self.count = 0

    def gauss(self, mean: float, deviation: float) -> float:
        self.count += 1
        return mean + deviation * normal(self._key, self.count - 1)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("trend", "window_size", "hop_size", "requests"),
    [(0.0, 30, 7, 1000), (1e-3, 4, 4, 800), (-2e-2, 5, 9, 300)],
)
def test_same_tuning(
    objective: str, trend: float, window_size: int, hop_size: int, requests: int
) -> None:
    """The same answer times lead to the same weights, step after step.

    Where answers get faster all the time, every step counts as a success and sigma grows without
    end; gorgo-lb then fails with an OverflowError, which is why that case is short.
    """
    start = {"prefill_weight": 0.4, "load_weight": 7.0, "rtt_weight": 1.0}
    ranges = {"prefill_weight": (1e-5, 5.0), "load_weight": (1e-5, 5.0)}
    key = np.uint64(99)
    tuner = WeightTuner(
        np.array([key]), list(start.values()), [0, 1], objective, window_size, hop_size
    )
    real = gorgo.OnlineTuner(objective_metric=objective, window_size=window_size, hop_size=hop_size)
    settings = {"hyperparam_ranges": ranges}
    assert real.configure(settings, active_policy="gorgo", current_defaults=start) is None
    real.online_tuner._rng = Draws(key)
    store = gorgo.make_default_store()
    store["defaults"].update(start)
    samples: list[dict[str, float]] = []
    rng = np.random.default_rng(5)
    stage = Stage(0)
    view = stage.view([1], [1], 0)
    now, changes, weights = 0.0, 0, tuner.weights.copy()
    for number in range(requests):
        view.requests["time"] = now
        tuner.book(view)
        ttft = float(np.exp(trend * number) * (rng.gamma(3.0) + store["defaults"]["load_weight"]))
        total = ttft + float(rng.gamma(2.0))
        events = np.zeros((1, 2), EVENT_VIEW)
        events[0, 0] = (now + ttft, 0, 0, FIRST_TOKEN)
        events[0, 1] = (now + total, 0, 0, ENDED)
        tuner.hear(dataclasses.replace(view, events=events, num_events=np.array([2])))
        # The clock's rounding is in our durations, so let the real one have it too.
        samples.append({"ttft_seconds": now + ttft - now, "total_seconds": now + total - now})
        store = real.on_sample(samples, store, policy="gorgo") or store
        expected = [store["defaults"][weight] for weight in start]
        assert tuner.weights[0].tolist() == pytest.approx(expected, rel=1e-12)
        changes += not np.array_equal(weights, tuner.weights)
        weights = tuner.weights.copy()
        now += total
    assert changes > 20
