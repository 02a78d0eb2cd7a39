"""The production stack's kvaware, worked by hand."""

from typing import Any

from made_views import decide, one_view, router_for

from prefixgym.envs.view.view import View


def long_view(num_instances: int, tokens: int, **columns: Any) -> View:
    return one_view(num_instances, request={"prompt_tokens": tokens, "session": 5}, **columns)


def kvaware_home(num_instances: int) -> int:
    return decide(router_for(num_instances, "kvaware"), long_view(num_instances, 4000))


def test_kvaware_takes_the_first_holder_not_the_best_one() -> None:
    router = router_for(4, "kvaware")
    view = long_view(4, 1500, hit_tokens=[0, 16, 1499, 0], requests=[0, 999, 0, 0])
    assert decide(router, view) == 1
    assert decide(router, long_view(4, 1500, hit_tokens=[0, 0, 1, 1])) == 2
    down = long_view(4, 1500, hit_tokens=[0, 16, 1499, 0], available=[1, 0, 1, 1])
    assert decide(router, down) == 2


def test_kvaware_threshold_is_2000_missing_tokens() -> None:
    router, other = router_for(4, "kvaware"), (kvaware_home(4) + 1) % 4
    hits = [0, 0, 0, 0]
    hits[other] = 8000
    assert decide(router, long_view(4, 10_000, hit_tokens=hits)) == other  # 2000 missing
    assert decide(router, long_view(4, 10_001, hit_tokens=hits)) == kvaware_home(4)
    # A second holder with everything does not help, since only the first one is looked at.
    hits = [10, 10_000, 10_000, 10_000]
    assert decide(router, long_view(4, 10_001, hit_tokens=hits)) == kvaware_home(4)
    strict = router_for(4, "kvaware", kv_aware_threshold=0)
    assert decide(strict, long_view(4, 10_000, hit_tokens=[0, 9999, 0, 0])) == kvaware_home(4)


def test_kvaware_falls_back_on_the_sessions_home() -> None:
    router = router_for(4, "kvaware")
    views = [one_view(4, request={"session": s}) for s in range(100)]
    homes = [decide(router, view) for view in views]
    affinity = router_for(4, "session_affinity")
    assert homes == [decide(affinity, view) for view in views]


def test_kvaware_falls_back_on_the_lowest_arrival_rate_without_sessions() -> None:
    router = router_for(3, "kvaware", fallback="qps")
    for time, holder in [(0.0, 0), (1.0, 0), (2.0, 2), (3.0, 2)]:
        hits = [int(i == holder) for i in range(3)]
        view = one_view(3, request={"time": time, "prompt_tokens": 100}, hit_tokens=hits)
        assert decide(router, view) == holder
    # Instance 1 never had a request: it wins at once. Then the fewest arrivals, first of equals.
    times = [4.0, 5.0, 6.0, 7.0, 60.5, 61.5]
    # Arrivals in the window before each: 2 0 2 · 2 1 2 · 2 2 2 · 3 2 2 · at 60.5 the one of 0.0
    # is gone: 2 3 2 · at 61.5 that of 1.0 too: 2 3 2.
    expected = [1, 1, 0, 1, 0, 0]
    assert [decide(router, one_view(3, request={"time": t})) for t in times] == expected
