"""The production stack's loadaware, by requests and by token backlog, worked by hand."""

from typing import Any

from made_views import decide, one_view, router_for

from prefixgym.envs.view.view import View


def long_view(num_instances: int, tokens: int, **columns: Any) -> View:
    return one_view(num_instances, request={"prompt_tokens": tokens, "session": 5}, **columns)


def loadaware(hit_tokens: list[int], requests: list[int], beta: float = 1.0, **more: Any) -> int:
    n = len(requests)
    view = long_view(n, 1000, hit_tokens=hit_tokens, requests=requests, **more)
    return decide(router_for(n, "loadaware", beta=beta), view)


def test_loadaware_with_two_instances_cancels_a_full_hit_at_half_of_one_over_beta() -> None:
    # Mean 20, r = (N - mean) / mean = 1 / (2 beta): scores 1 - beta r and beta r are both 0.5.
    for beta, r in [(1.0, 0.5), (0.5, 1.0), (2.0, 0.25)]:
        above = int(20 * r)
        assert loadaware([1000, 0], [20 + above, 20 - above], beta) == 0  # a tie: lowest index
        assert loadaware([0, 1000], [20 - above, 20 + above], beta) == 0
        if beta != 0.5:
            assert loadaware([1000, 0], [21 + above, 19 - above], beta) == 1
        assert loadaware([0, 1000], [21 - above, 19 + above], beta) == 1


def test_loadaware_against_many_instances_at_the_mean() -> None:
    # 101 instances: the others stay at about the mean, a full hit is worth r = 1 / beta = 1.
    requests = [10] * 100 + [19]
    hits = [0] * 100 + [1000]
    assert loadaware(hits, requests) == 100  # 1 - 0.88 > 0.01
    requests[100] = 22
    assert loadaware(hits, requests) == 0  # 1 - 1.17 < 0.01


def test_loadaware_in_an_idle_fleet_one_request_costs_a_full_hit() -> None:
    # Mean 0.5, clamped to 1: scores 1 - 0.5 and 0 + 0.5.
    assert loadaware([0, 1000], [0, 1]) == 0
    assert loadaware([0, 1000], [0, 1], beta=0.9) == 1
    # With mean 20 it takes 20.
    assert loadaware([0, 1000], [11, 29]) == 1


def test_loadaware_scores_share_sign_and_fallback() -> None:
    assert loadaware([500, 600, 0], [4, 4, 4]) == 1  # equal load: the larger share
    assert loadaware([500, 500, 0], [4, 4, 4]) == 0
    assert loadaware([200, 0, 0], [6, 6, 3]) == 2  # 0.2 - 0.2 < 0.4: below the mean is rewarded
    assert loadaware([0, 0, 1], [5, 5, 5]) == 2
    # No holder: the session's home, although it is the busiest.
    home = decide(router_for(3, "session_affinity"), long_view(3, 1000))
    assert loadaware([0, 0, 0], [99 * (i == home) for i in range(3)]) == home
    # An unavailable instance is no holder, no choice and not in the mean: (4 + 6) / 2 = 5.
    up = [0, 1, 1]
    assert loadaware([900, 390, 0], [0, 6, 4], available=up) == 2  # 0.39 - 0.2 < 0.2
    assert loadaware([900, 410, 0], [0, 6, 4], available=up) == 1
    assert loadaware([900, 0, 0], [0, 99, 99], available=up) in (1, 2)


def with_backlog(name: str, hits: list[int], requests: list[int], backlog: list[int]) -> int:
    view = one_view(
        len(hits),
        request={"prompt_tokens": 1000},
        hit_tokens=hits,
        requests=requests,
        prefill_tokens=backlog,
    )
    return decide(router_for(len(hits), name), view)


def test_the_backlog_is_the_load() -> None:
    # Three requests that decode against one that prefills 8,000 tokens. By requests the mean is 2:
    # 0.5 + 0.5 against 1 - 0.5. By tokens it is 4,000: 0.5 - 1 against 1 + 1.
    assert with_backlog("loadaware", [500, 1000], [1, 3], [8000, 0]) == 0
    assert with_backlog("loadaware_tokens", [500, 1000], [1, 3], [8000, 0]) == 1


def test_in_an_idle_fleet_only_the_share_counts() -> None:
    # No tokens are queued anywhere: the mean is clamped to 1, every load term is 0.
    assert with_backlog("loadaware_tokens", [400, 500, 0], [9, 9, 0], [0, 0, 0]) == 1


def test_a_full_hit_against_an_empty_instance() -> None:
    # Mean 1,000: 1 - (W - 1000) / 1000 against 0 - (2000 - W - 1000) / 1000; equal at W = 1,500.
    assert with_backlog("loadaware_tokens", [1000, 0], [0, 0], [1500, 500]) == 0
    assert with_backlog("loadaware_tokens", [1000, 0], [0, 0], [1501, 499]) == 1
