"""loadaware by token backlog, worked by hand. (loadaware itself: test_routers.py.)"""

from made_views import decide, one_view, router_for


def choose(name: str, hits: list[int], requests: list[int], backlog: list[int]) -> int:
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
    assert choose("loadaware", [500, 1000], [1, 3], [8000, 0]) == 0
    assert choose("loadaware_tokens", [500, 1000], [1, 3], [8000, 0]) == 1


def test_in_an_idle_fleet_only_the_share_counts() -> None:
    # No tokens are queued anywhere: the mean is clamped to 1, every load term is 0.
    assert choose("loadaware_tokens", [400, 500, 0], [9, 9, 0], [0, 0, 0]) == 1


def test_a_full_hit_against_an_empty_instance() -> None:
    # Mean 1,000: 1 - (W - 1000) / 1000 against 0 - (2000 - W - 1000) / 1000; equal at W = 1,500.
    assert choose("loadaware_tokens", [1000, 0], [0, 0], [1500, 500]) == 0
    assert choose("loadaware_tokens", [1000, 0], [0, 0], [1501, 499]) == 1
