"""vllm-router's cache_aware where it differs from SGLang's, worked by hand."""

from typing import Any

from made_views import decide, one_view, router_for

from prefixgym.baselines.router import Router


def ask(router: Router, ids: list[int], loads: list[int], **more: Any) -> int:
    return decide(router, one_view(len(loads), ids, requests=loads, **more))


def test_defaults_of_the_python_command_line() -> None:
    router: Any = router_for(2, "vllm_cache_aware")
    found = [router.cache_threshold, router.balance_abs_threshold, router.balance_rel_threshold]
    assert [*found, router.eviction_interval, router.max_tree_size] == [0.3, 64, 1.5, 120, 2**25]


def test_the_least_loaded_of_all_holders_is_taken() -> None:
    router = router_for(3, "vllm_cache_aware", balance_abs_threshold=4)
    assert ask(router, [1, 2], [1, 0, 1]) == 1
    assert ask(router, [1, 2], [0, 3, 0]) == 1  # alone with the prefix, in balance
    assert ask(router, [1, 2], [0, 9, 0]) == 0  # out of balance: instance 0 has the prefix now, too
    assert ask(router, [1, 2, 3], [3, 2, 0]) == 1  # SGLang: the same owner for ever
    assert ask(router, [1, 2, 4], [1, 2, 0]) == 0
    assert ask(router, [1, 2, 5], [2, 2, 0]) == 0  # the first of equals
    # [1, 2, 3] is instance 1's alone, although 0 has [1, 2].
    assert ask(router, [1, 2, 3], [0, 2, 0]) == 1


def test_with_the_holder_away_the_next_longest_prefix_counts() -> None:
    router = router_for(3, "vllm_cache_aware", balance_abs_threshold=4)
    assert ask(router, [1, 2], [0, 1, 1]) == 0
    assert ask(router, [1, 2, 3, 4], [9, 0, 1]) == 1  # out of balance
    assert ask(router, [1, 2, 3, 4], [0, 2, 0]) == 1
    # Without 1, instance 0 has half of the prompt, which is above 0.3.
    assert ask(router, [1, 2, 3, 4], [2, 0, 1], available=[1, 0, 1]) == 0
    # Without both, nobody has anything: the least loaded.
    assert ask(router, [1, 2, 3, 4], [0, 0, 1], available=[0, 0, 1]) == 2


def test_load_is_balanced_over_the_available_only() -> None:
    router = router_for(3, "vllm_cache_aware", balance_abs_threshold=4)
    assert ask(router, [1, 2], [0, 1, 1]) == 0
    assert ask(router, [1, 2], [3, 0, 99], available=[1, 1, 0]) == 0
    assert ask(router, [1, 2], [5, 0, 99], available=[1, 1, 0]) == 1
