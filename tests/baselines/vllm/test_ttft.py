"""The production stack's ttft, worked by hand."""

from made_views import decide, one_view, router_for

from prefixgym.baselines.router import Router
from prefixgym.baselines.vllm.ttft import triangular_work
from prefixgym.envs.view.view import ENDED, FIRST_TOKEN

Heard = list[tuple[float, int, int, int]]


def ask(
    router: Router, tokens: int, hits: list[int], slot: int = 0, heard: Heard | None = None
) -> int:
    view = one_view(
        len(hits), request={"prompt_tokens": tokens, "slot": slot, "session": 7}, hit_tokens=hits
    )
    for k, event in enumerate(heard or []):
        view.events[0, k] = event
    view.num_events[0] = len(heard or [])
    return decide(router, view)


def test_work_is_the_sum_of_positions() -> None:
    # W(n, c) = (c + 1) + … + n.
    assert triangular_work(4, 0) == 1 + 2 + 3 + 4
    assert triangular_work(4, 2) == 3 + 4
    assert triangular_work(1000, 400) == sum(range(401, 1001))


def test_queued_work_counts_until_the_first_token() -> None:
    router = router_for(2, "ttft")
    # Slot 0 goes to the holder with W(1000, 900) = 95,050.
    assert ask(router, 1000, [900, 0], slot=0) == 0
    # 95,050 + W(1000, 400) = 515,350 against W(1000, 0) = 500,500.
    assert ask(router, 1000, [400, 0], slot=1) == 1
    # 95,050 + W(1000, 10) = 595,495 against 500,500 + W(1000, 900) = 595,550.
    assert ask(router, 1000, [10, 900], slot=2) == 0
    # The first tokens of slots 0 and 2 free instance 0, the end of slot 1 frees instance 1: only
    # W(1000, 899) = 95,950 and W(1000, 900) are left.
    heard = [(0.0, 0, 0, FIRST_TOKEN), (0.0, 2, 0, FIRST_TOKEN), (0.0, 1, 1, ENDED)]
    assert ask(router, 1000, [899, 900], slot=1, heard=heard) == 1
    # An end after a first token frees nothing twice: instance 1 has 95,050 of slot 1.
    heard = [(0.0, 0, 0, ENDED), (0.0, 2, 0, ENDED)]
    assert ask(router, 1000, [899, 900], slot=0, heard=heard) == 0


def test_last_of_equals_holders_first() -> None:
    router = router_for(4, "ttft")
    assert ask(router, 1000, [0, 500, 500, 0], slot=0) == 2
    # W(100, 20) = 4,840 at holders 0 and 1; W(98, 0) = 4,851.
    assert ask(router, 100, [20, 20, 0, 0], slot=1) == 1


def test_without_a_holder_the_fallback_decides_and_its_work_is_booked() -> None:
    router, sessions = router_for(3, "ttft"), router_for(3, "session_affinity")
    home = decide(sessions, one_view(3, request={"session": 7}))
    assert ask(router, 1000, [0, 0, 0], slot=0) == home
    # A small holder elsewhere: the home now has W(1000, 0) queued.
    hits = [0, 0, 0]
    hits[home] = 990
    assert ask(router, 1000, hits, slot=1) != home
