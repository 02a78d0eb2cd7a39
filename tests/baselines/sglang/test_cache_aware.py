"""SGLang's cache_aware, worked by hand. What its tree does is tested with `History`."""

from typing import Any, cast

import numpy as np
import pytest
from made_views import one_view
from numpy.typing import ArrayLike

from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec

BLOCK = 100
LARGE = {"max_tree_size": 10**9}


def started(num_instances: int, name: str = "cache_aware", **parameters: Any) -> Router:
    router = make_router(name, parameters)
    instance = InstanceSpec(profile=cast(Any, None), kv_blocks=100)
    router.reset(ClusterSpec((instance,) * num_instances, BLOCK), [0])
    return router


def decide(
    router: Router,
    ids: list[int],
    loads: list[int],
    time: float = 0.0,
    prompt_tokens: int | None = None,
    available: ArrayLike = 1,
    index: int = 0,
) -> int:
    request = {
        "index": index,
        "time": time,
        "num_blocks": len(ids),
        "prompt_tokens": prompt_tokens or BLOCK * len(ids),
    }
    view = one_view(len(loads), [], request, requests=loads, available=available)
    view.block_ids = np.array([[*ids, -1, -1]], np.int64)
    (choice,) = router.route(view)
    return int(choice)


def chain(first: int, length: int) -> list[int]:
    return list(range(first, first + length))


def test_two_default_sets() -> None:
    def defaults(name: str) -> list[float]:
        router: Any = make_router(name)
        return [
            router.cache_threshold,
            router.balance_abs_threshold,
            router.balance_rel_threshold,
            router.eviction_interval,
            router.max_tree_size,
        ]

    assert defaults("cache_aware") == [0.3, 64, 1.5, 60, 67_108_864]
    assert defaults("cache_aware_struct") == [0.5, 32, 1.1, 30, 10_000]


def test_a_miss_goes_to_the_least_loaded_first_of_equals() -> None:
    router = started(4)
    assert decide(router, [1], [3, 1, 0, 0]) == 2
    assert decide(router, [2], [0, 0, 0, 0]) == 0
    assert decide(router, [3], [0, 0, 0, 0]) == 0  # everything to worker 0 (sglang#32983)
    assert decide(router, [4], [3, 1, 0, 0], available=[1, 1, 0, 0]) == 1


@pytest.mark.parametrize(
    ("name", "at", "above"), [("cache_aware", 3, 4), ("cache_aware_struct", 5, 6)]
)
def test_match_has_to_exceed_the_threshold(name: str, at: int, above: int) -> None:
    router = started(3, name, **LARGE)
    assert decide(router, chain(0, 10), [5, 5, 0]) == 2
    assert decide(router, chain(0, at) + chain(50, 10 - at), [0, 5, 5]) == 0
    assert decide(router, chain(0, above) + chain(70, 10 - above), [0, 5, 5]) == 2


def test_share_is_of_tokens() -> None:
    # 3 of 4 blocks match: 300 of 1000 tokens when the ids stop short of the prompt, of 301, of 399.
    for tokens, expected in [(1000, 0), (999, 1), (399, 1), (301, 1)]:
        router = started(2)
        assert decide(router, chain(0, 3), [1, 0]) == 1
        assert decide(router, [*chain(0, 3), 9], [0, 1], prompt_tokens=tokens) == expected
    # A partial last block counts what it holds: 25 of 25 tokens.
    router = started(2, cache_threshold=0.99)
    assert decide(router, [1], [1, 0], prompt_tokens=25) == 1
    assert decide(router, [1], [0, 1], prompt_tokens=25) == 1


def test_first_creator_keeps_the_prefix() -> None:
    router = started(3)
    prompt = chain(0, 4)
    assert decide(router, prompt, [1, 0, 1]) == 1
    # Out of balance: the prompt spills to 2, again and again.
    for _ in range(5):
        assert decide(router, prompt, [70, 70, 0]) == 2
    assert decide(router, prompt, [3, 3, 0]) == 1


def test_imbalance_needs_both_thresholds_strictly() -> None:
    def spills(loads: list[int], **parameters: Any) -> bool:
        router = started(2, **parameters)
        assert decide(router, [1], [1, 0]) == 1  # instance 1 owns the prefix
        return decide(router, [1], loads) == 0

    # max - min > 64
    assert not spills([0, 64])
    assert spills([0, 65])
    # max > 1.5 min
    assert not spills([130, 195])
    assert spills([130, 196])
    assert not spills([1000, 1065])
    # struct: > 32 and > 1.1 min
    struct: dict[str, Any] = {"balance_abs_threshold": 32, "balance_rel_threshold": 1.1}
    assert not spills([10, 42], **struct)
    assert spills([10, 43], **struct)
    assert not spills([400, 440], **struct)
    assert spills([400, 441], **struct)


def test_down_instances_neither_count_for_balance_nor_are_chosen() -> None:
    router = started(3)
    assert decide(router, [1], [1, 0, 1]) == 1
    assert decide(router, [1], [0, 65, 64], available=[0, 1, 1]) == 1
    assert decide(router, [1], [99, 65, 0], available=[0, 1, 1]) == 2


def test_affinity_follows_a_spill() -> None:
    router = started(2)
    assert decide(router, [1, 2], [65, 0]) == 1  # unknown prompt, out of balance
    assert decide(router, [1, 2], [0, 1]) == 1  # now it belongs to 1


def test_an_owner_that_is_down_is_forgotten_and_the_first_available_not_remembered() -> None:
    router = started(3)
    assert decide(router, [1, 2], [1, 1, 0]) == 2
    assert decide(router, [8], [1, 1, 0]) == 2
    assert decide(router, [1, 2, 3, 4], [5, 9, 0], available=[1, 1, 0]) == 0
    # Neither that prompt nor any prompt of 2 is known now: all go to the least loaded.
    assert decide(router, [1, 2, 3, 4], [9, 0, 9]) == 1
    assert decide(router, [8], [9, 0, 9]) == 1


def test_a_forgotten_owner_leaves_its_prefix_to_another_holder() -> None:
    router = started(3)
    assert decide(router, [1, 2], [1, 1, 0]) == 2
    assert decide(router, [1, 2], [70, 0, 70]) == 1  # out of balance: 1 holds it as well
    assert decide(router, [1, 2], [0, 5, 0], available=[1, 1, 0]) == 0
    assert decide(router, [1, 2], [0, 5, 0]) == 1


def test_eviction_comes_with_the_interval_and_takes_the_oldest_leaf() -> None:
    # 800 characters = 200 tokens = 2 blocks; three leaves of 1 block each on instance 1.
    router = started(2, eviction_interval=30, max_tree_size=800)
    for k in range(3):
        assert decide(router, [k], [1, 0], time=10.0 + k) == 1
    for k in range(3):  # still there, before the sweep
        assert decide(router, [k], [0, 1], time=29.9) == 1
    # At 30 s the least recent one goes. Inserts have counts 3, 5, 7 and then 9, 11, 13.
    assert decide(router, [2], [0, 1], time=30.0) == 1
    assert decide(router, [1], [0, 1], time=30.0) == 1
    assert decide(router, [0], [0, 1], time=30.0) == 0
    # No second sweep before 60 s, however much is inserted.
    for k in range(10, 20):
        assert decide(router, [k], [1, 0], time=31.0) == 1
    assert decide(router, [2], [0, 1], time=59.9) == 1
    assert [decide(router, [k], [0, 1], time=61.0) for k in (10, 17, 18, 19, 2)] == [0, 0, 0, 1, 1]


def test_a_late_first_request_sweeps_once_and_zero_interval_never() -> None:
    for interval, expected in [(30.0, 0), (0.0, 1)]:
        router = started(2, eviction_interval=interval, max_tree_size=0)
        assert decide(router, [1], [1, 0], time=1000.0) == 1
        assert decide(router, [1], [0, 1], time=1019.9) == 1
        assert decide(router, [1], [0, 1], time=1020.0) == expected


def test_a_prompt_without_block_ids_goes_to_the_least_loaded() -> None:
    router = started(2)
    assert decide(router, [], [1, 0], prompt_tokens=7) == 1


def test_without_a_tree_a_balanced_request_is_drawn() -> None:
    router = started(3, has_tree=False)
    choices = [decide(router, [1], [5, 0, 5], index=k) for k in range(300)]
    assert min(np.bincount(choices)) > 70
    assert decide(router, [1], [70, 0, 0]) == 1
    assert {decide(router, [1], [9, 0, 0], available=[1, 0, 1], index=k) for k in range(30)} == {
        0,
        2,
    }


def test_reset_forgets() -> None:
    router = started(2)
    assert decide(router, [1], [1, 0]) == 1
    router.reset(ClusterSpec((InstanceSpec(cast(Any, None), 100),) * 2, BLOCK), [0])
    assert decide(router, [1], [0, 1]) == 0
