"""SGLang's cache_aware_zmq, worked by hand."""

from typing import Any

from made_views import decide, one_view, router_for


def choose(hit_tokens: list[int], requests: list[int], **more: Any) -> int:
    """Prompts have 4 blocks of 512 tokens."""
    parameters = {
        key: more.pop(key) for key in list(more) if key.startswith(("hit_", "balance_", "cache_"))
    }
    view = one_view(len(requests), [1, 2, 3, 4], hit_tokens=hit_tokens, requests=requests, **more)
    return decide(router_for(len(requests), "cache_aware_zmq", **parameters), view)


def test_the_least_loaded_holder_of_the_longest_prefix() -> None:
    assert choose([0, 1536, 1024], [0, 9, 0]) == 1
    assert choose([1536, 0, 1536], [9, 0, 8]) == 2
    assert choose([1536, 0, 1536], [8, 0, 8]) == 0


def test_more_than_half_of_the_blocks() -> None:
    assert choose([0, 1024], [0, 1]) == 0
    assert choose([0, 1536], [0, 1]) == 1
    assert choose([0, 1024], [0, 1], cache_threshold=0.49) == 1


def test_out_of_balance_the_least_loaded() -> None:
    assert choose([0, 1536], [0, 32]) == 1
    assert choose([0, 1536], [0, 33]) == 0
    assert choose([0, 1536], [400, 440]) == 1
    assert choose([0, 1536], [400, 441]) == 0


def test_the_hit_guard() -> None:
    guard = {"hit_load_rel_threshold": 2.0}
    assert choose([0, 1536], [0, 1]) == 1
    assert choose([0, 1536], [0, 1], **guard) == 0
    assert choose([0, 1536], [4, 8], **guard) == 1
    assert choose([0, 1536], [4, 9], **guard) == 0
    assert choose([0, 1536], [4, 9], **guard, hit_load_abs_threshold=5) == 1


def test_only_available_instances_count() -> None:
    assert choose([0, 1024, 1536], [0, 9, 0], available=[1, 1, 0]) == 0
    assert choose([0, 1024, 1536], [0, 9, 0], available=[1, 1, 0], cache_threshold=0.4) == 1
