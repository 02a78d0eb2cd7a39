"""Several routers side by side: who decides, what each knows, and when it hears of the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import REPLICAS, STEPS, play, random_views
from made_views import one_view, view_of
from numpy.typing import NDArray

import prefixgym.baselines  # noqa: F401  (fills the registry)
from prefixgym.baselines.replicated import Replicated, side_by_side
from prefixgym.baselines.router import NOWHERE, Router, make_router
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.view.knowledge import Replicas
from prefixgym.envs.view.view import View

ALONE = Replicas(count=REPLICAS)
AT_ONCE = Replicas(count=REPLICAS, history_sync=0.0)

HASHES = ["prefix_hash", "session_affinity", "consistent_hash", "rendezvous_hash"]

# All that these know is in the view or in their history. A cache this large forgets nothing: by
# what it looks at, a tree also learns what is used, and that is not told.
HISTORIES: list[tuple[str, dict[str, Any]]] = [
    ("cache_aware", {}),
    ("vllm_cache_aware", {}),
    ("prefixaware", {}),
    ("aibrix_prefix_cache", {"prefix_cache_block_number": 256}),
    ("aibrix_preble", {}),
    ("aibrix_pd", {}),
    ("llmd_approximate", {"auto_tune": False, "lru_capacity_per_server": 4}),
    ("preble", {"window": 3, "requests_per_gpu": 1}),
    ("gorgo", {}),
    ("manual", {"assignment_mode": "min_load", "max_idle_secs": 2}),
    ("sticky_least_loaded", {}),
    ("probabilistic", {"router": "gorgo"}),
]


def runs() -> st.SearchStrategy[tuple[int, int, int]]:
    """Environments, instances and a seed."""
    return st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(0, 2**32 - 1))


@pytest.mark.parametrize("name", HASHES)
@settings(max_examples=10)
@given(run=runs(), up=st.sampled_from([0.6, 1.0]))
def test_who_only_hashes_needs_no_others(name: str, run: tuple[int, int, int], up: float) -> None:
    num_envs, num_instances, seed = run
    views = random_views(num_envs, num_instances, seed, up)
    seeds = list(range(num_envs))
    alone = play(make_router(name), views, seeds)
    assert (play(Replicated(make_router(name), ALONE), views, seeds) == alone).all()


@pytest.mark.parametrize(("name", "parameters"), HISTORIES)
@settings(max_examples=10)
@given(run=runs())
def test_told_at_once_they_decide_as_one(
    name: str, parameters: dict[str, Any], run: tuple[int, int, int]
) -> None:
    num_envs, num_instances, seed = run
    views = random_views(num_envs, num_instances, seed, up=1.0)
    seeds = list(range(num_envs))
    alone = play(make_router(name, parameters), views, seeds)
    together = play(Replicated(make_router(name, parameters), AT_ONCE), views, seeds)
    assert together.tolist() == alone.tolist()


@pytest.mark.parametrize(("name", "parameters"), [*HISTORIES, ("dynamo", {}), ("lodestar", {})])
@settings(max_examples=5)
@given(run=runs())
def test_untold_each_decides_by_its_own_share(
    name: str, parameters: dict[str, Any], run: tuple[int, int, int]
) -> None:
    num_envs, num_instances, seed = run
    views = random_views(num_envs, num_instances, seed, up=0.8)
    seeds = list(range(num_envs))
    together = play(Replicated(make_router(name, parameters), ALONE), views, seeds)
    reached = np.array([view.requests["replica"][0] for view in views])
    for replica in range(REPLICAS):
        own = np.flatnonzero(reached == replica)
        if len(own):
            chosen = play(make_router(name, parameters), [views[k] for k in own], seeds)
            assert chosen.tolist() == together[own].tolist()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # These count what they sent as well, which nobody is told.
        ("dynamo_approximate", {}),
        ("smg_cache_aware", {}),
        ("smg_cache_aware_hash", {"cache_boundaries": "512"}),
    ],
)
@pytest.mark.parametrize("told", [True, False])
def test_a_prompt_goes_where_another_router_sent_it(
    name: str, parameters: dict[str, Any], told: bool
) -> None:
    """Eight routers meet the same prompt, one after the other, with four instances idle."""
    replicas = Replicas(count=8, history_sync=0.0 if told else None)
    router = Replicated(make_router(name, parameters), replicas)
    router.reset(one_view(4).cluster, [1])
    chosen = set()
    for k in range(8):
        request = {"index": k, "replica": k, "slot": k, "time": float(k)}
        # The least loaded is another one each time.
        view = one_view(4, ids=[1, 2, 3], request=request, requests=[(i - k) % 4 for i in range(4)])
        chosen.update(router.route(view).tolist())
    assert (len(chosen) == 1) == told


@pytest.mark.parametrize(
    ("name", "parameters", "told", "expected"),
    [
        # What another router sent to 0 is in the window: out of balance.
        ("bucket", {}, True, 1),
        ("bucket", {}, False, 0),
        # A prefix that others were asked for is planned, and its home is 0, the busiest.
        ("cacheroute", {"period": 1.0, "prefix_blocks": 1}, True, 0),
        ("cacheroute", {"period": 1.0, "prefix_blocks": 1}, False, 1),
    ],
)
def test_a_window_has_what_the_others_sent(
    name: str, parameters: dict[str, Any], told: bool, expected: int
) -> None:
    """These also do something now and then, which side by side happens to each by itself."""
    replicas = Replicas(count=2, history_sync=0.0 if told else None)
    router = Replicated(make_router(name, parameters), replicas)
    router.reset(one_view(2).cluster, [1])
    router.route(one_view(2, request={"index": 0, "replica": 0, "time": 0.5}, requests=[0, 9]))
    request = {"index": 1, "replica": 1, "time": 1.5}
    assert router.route(one_view(2, request=request, requests=[9, 0])).tolist() == [expected]


@dataclass
class Listener(Router):
    """Chooses instance 1 and writes down what it is told: environment, first block and choice."""

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        self.heard: list[tuple[int, int, int]] = []

    def route(self, view: View) -> NDArray[np.int64]:
        return np.ones(view.num_envs, np.int64)

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        told = np.flatnonzero(chosen != NOWHERE)
        self.heard += [(int(e), int(block_ids[e, 0]), int(chosen[e])) for e in told]


def shown(
    times: Sequence[float], indices: Sequence[int], replica: int, num_instances: int = 2
) -> View:
    """Environments at these moments and decisions; a prompt's block says which decision it is."""
    views = [
        one_view(
            num_instances, ids=[index], request={"time": time, "index": index, "replica": replica}
        )
        for time, index in zip(times, indices, strict=True)
    ]
    return view_of(
        views[0].cluster,
        np.concatenate([view.requests for view in views]),
        np.concatenate([view.block_ids for view in views]),
        np.concatenate([view.instances for view in views]),
    )


def listeners(
    seconds: float, num_envs: int, num_instances: int = 2
) -> tuple[Replicated, list[Any]]:
    router = Replicated(Listener(), Replicas(count=2, history_sync=seconds))
    router.reset(one_view(num_instances).cluster, list(range(num_envs)))
    return router, router.routers


def test_decisions_arrive_when_they_are_old_enough_in_each_environment_by_itself() -> None:
    router, (first, second) = listeners(1.0, num_envs=2)
    router.route(shown([0.0, 0.0], [0, 0], replica=0))
    router.route(shown([0.5, 0.25], [1, 1], replica=0))
    router.route(shown([1.25, 0.75], [2, 2], replica=1))
    assert second.heard == [(0, 0, 1)]
    router.route(shown([1.5, 1.5], [3, 3], replica=1))
    assert second.heard == [(0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1)]
    assert first.heard == []
    router.route(shown([9.0, 2.0], [4, 4], replica=0))
    assert first.heard == [(0, 2, 1), (1, 2, 1), (0, 3, 1)]


def test_what_is_over_is_told_to_nobody() -> None:
    router, (_, second) = listeners(1.0, num_envs=2)
    router.route(shown([0.0, 0.0], [0, 0], replica=0))
    router.route(shown([5.0, 0.0], [1, 0], replica=1))  # the second episode has ended
    assert second.heard == [(0, 0, 1)]
    router.route(shown([9.0, 0.0], [2, 0], replica=0))
    router.route(shown([10.0, 0.0], [3, 0], replica=1))
    assert second.heard == [(0, 0, 1), (0, 2, 1)]


def test_a_request_that_was_turned_away_went_nowhere() -> None:
    router, (_, second) = listeners(0.0, num_envs=1, num_instances=1)  # it chooses 1 of 1
    router.route(shown([0.0], [0], replica=0, num_instances=1))
    router.route(shown([1.0], [1], replica=1, num_instances=1))
    assert second.heard == []


def test_environments_must_be_in_step() -> None:
    router, _ = listeners(0.0, num_envs=2)
    router.route(shown([0.0, 0.0], [0, 0], replica=0))
    router.route(shown([1.0, 1.0], [1, 1], replica=0))
    message = r"environments: found at decisions \[0, 2\], all that are not over must be at 2"
    with pytest.raises(ValueError, match=message):
        router.route(shown([2.0, 0.0], [2, 0], replica=1))


def test_one_router_stays_itself_and_a_reference_is_alone() -> None:
    router, reference = make_router("random"), make_router("oracle_greedy")
    assert side_by_side(router, Replicas()) is router
    assert isinstance(side_by_side(router, ALONE), Replicated)
    assert side_by_side(reference, ALONE) is reference


def test_an_episode_reaches_every_router() -> None:
    assert {view.requests["replica"][0] for view in random_views(1, 2, 0, 1.0)} == {0, 1, 2}
    assert STEPS > REPLICAS
