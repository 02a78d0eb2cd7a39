"""Random runs of decisions without a simulator: what is seen does not depend on what is chosen."""

import numpy as np
from made_views import view_of
from numpy.typing import NDArray

from prefixgym.baselines.router import Router
from prefixgym.envs.cluster.profiles import profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.view.view import INSTANCE_VIEW, REQUEST_VIEW, View

BLOCK = 64
NUM_BLOCKS = 6
STEPS = 30
REPLICAS = 3


def cluster_of(num_instances: int) -> ClusterSpec:
    instance = InstanceSpec(profile("llama-3.1-8b/h100/tp1"), 100)
    return ClusterSpec((instance,) * num_instances, BLOCK)


def random_views(num_envs: int, num_instances: int, seed: int, up: float) -> list[View]:
    """A run of decisions; environment e looks the same however many stand beside it.

    Each reaches one of REPLICAS routers, for those who play several.
    """
    views = []
    replicas = np.random.default_rng(seed).integers(0, REPLICAS, STEPS)
    generators = [np.random.default_rng([seed, e]) for e in range(num_envs)]
    times = np.zeros(num_envs)
    for index in range(STEPS):
        requests = np.zeros(num_envs, REQUEST_VIEW)
        block_ids = np.full((num_envs, NUM_BLOCKS), -1, np.int64)
        instances = np.zeros((num_envs, num_instances), INSTANCE_VIEW)
        for e, rng in enumerate(generators):
            times[e] += rng.exponential(0.3)
            letters = rng.integers(0, 2, int(rng.integers(0, NUM_BLOCKS + 1)))
            # The id of a block is the path that leads to it, read as a number.
            path = np.cumsum((letters + 1) * 3 ** np.arange(len(letters)))
            block_ids[e, : len(letters)] = path
            tokens = max(1, len(letters) * BLOCK - int(rng.integers(0, BLOCK)))
            requests[e] = (
                times[e], 0, tokens, len(letters), rng.integers(9), 0, 0.5, 1, index, 0, 0,
                replicas[index],
            )  # fmt: skip
            rows = instances[e]
            for column in ("requests", "waiting", "running"):
                rows[column] = rng.integers(0, 8, num_instances)
            rows["backlog_seconds"] = rng.integers(0, 3, num_instances) / 4
            rows["prefill_seconds"] = rng.integers(1, 3, num_instances) / 4
            rows["hit_tokens"] = rng.integers(0, tokens, num_instances)
            rows["hit_tokens"] *= rng.random(num_instances) < 0.5
            rows["available"] = rng.random(num_instances) < up
        views.append(view_of(cluster_of(num_instances), requests, block_ids, instances))
    return views


def play(router: Router, views: list[View], seeds: list[int]) -> NDArray[np.int64]:
    router.reset(views[0].cluster, seeds)
    return np.array([router.route(view) for view in views])
