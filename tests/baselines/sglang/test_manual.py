"""SGLang's manual policy, worked by hand."""

from typing import Any

import numpy as np
import pytest
from made_views import decide, one_view, router_for

from prefixgym.baselines.router import Router
from prefixgym.envs.view.view import ENDED, EVENT_VIEW, FIRST_TOKEN


def send(
    router: Router,
    session: int,
    *,
    time: float = 0.0,
    index: int = 0,
    slot: int = 0,
    events: list[tuple[int, int, int]] = [],  # noqa: B006  (slot, instance, kind)
    **columns: Any,
) -> int:
    request = {"session": session, "time": time, "index": index, "slot": slot}
    view = one_view(3, request=request, **columns)
    view.num_slots = 8
    view.events = np.array([[(time, *event) for event in events]], EVENT_VIEW)
    view.num_events = np.array([len(events)])
    return decide(router, view)


def test_a_session_stays_where_it_was_assigned() -> None:
    router = router_for(3, "manual")
    homes = [send(router, session, index=session) for session in range(300)]
    assert min(np.bincount(homes)) > 70
    again = [send(router, s, index=999, requests=[9, 0, 9]) for s in range(300)]
    assert again == homes


def test_it_returns_when_its_instance_does() -> None:
    router = router_for(3, "manual", assignment_mode="min_load")
    assert send(router, 5, requests=[1, 0, 2]) == 1
    assert send(router, 5, requests=[1, 0, 2], available=[1, 0, 1]) == 0
    assert send(router, 5, requests=[9, 9, 0], available=[1, 0, 1]) == 0  # remembered
    assert send(router, 5, requests=[9, 9, 0]) == 1


def test_it_remembers_two_instances_the_older_gives_way() -> None:
    router = router_for(3, "manual", assignment_mode="min_load")
    assert send(router, 5, requests=[0, 1, 2]) == 0
    assert send(router, 5, requests=[0, 1, 2], available=[0, 1, 1]) == 1
    assert send(router, 5, requests=[0, 1, 2], available=[0, 0, 1]) == 2
    # 1 and 2 now: 0 is no longer known, 1 comes before 2.
    assert send(router, 5, requests=[0, 9, 9]) == 1
    assert send(router, 5, requests=[0, 9, 9], available=[1, 0, 1]) == 2


def test_min_load_breaks_ties_at_random() -> None:
    router = router_for(3, "manual", assignment_mode="min_load")
    homes = [send(router, session, index=session, requests=[1, 0, 0]) for session in range(300)]
    counts = np.bincount(homes, minlength=3)
    assert counts[0] == 0
    assert min(counts[1:]) > 110


def test_min_group_counts_different_sessions_in_flight() -> None:
    router = router_for(3, "manual", assignment_mode="min_group")
    first = send(router, 0, slot=0)
    second = send(router, 1, slot=1)
    third = send(router, 2, slot=2)
    assert {first, second, third} == {0, 1, 2}
    # A second request of session 0 is no second group; the fourth session goes anywhere, and the
    # fifth not where the fourth went.
    assert send(router, 0, slot=3) == first
    fourth = send(router, 3, slot=4)
    assert send(router, 4, slot=5) != fourth


def test_min_group_forgets_a_session_with_its_last_request() -> None:
    router = router_for(3, "manual", assignment_mode="min_group")
    homes = [send(router, session, slot=session) for session in range(3)]
    send(router, 1, slot=3)
    # One of session 1's two requests ends, a first token means nothing: all have one group.
    send(router, 0, slot=4, events=[(1, homes[1], ENDED), (0, homes[0], FIRST_TOKEN)])
    assert sorted(router._groups[0]) == [1, 1, 1]  # type: ignore[attr-defined]
    assert send(router, 7, slot=1, events=[(3, homes[1], ENDED)]) == homes[1]


def test_idle_keys_are_forgotten_by_a_sweep() -> None:
    router = router_for(
        3, "manual", assignment_mode="min_load", max_idle_secs=100, eviction_interval_secs=60
    )
    assert send(router, 5, time=10.0, requests=[0, 1, 1]) == 0
    # The sweep at 60 s finds it idle for 50 s, that at 120 s for 110 s.
    assert send(router, 6, time=10.0, requests=[0, 1, 1]) == 0
    assert send(router, 5, time=119.0, requests=[1, 0, 1]) == 0
    assert send(router, 6, time=121.0, requests=[1, 0, 1]) == 1
    # Used at 119 s: idle for 61 s at 180 s, for 121 s at 240 s.
    assert send(router, 5, time=239.0, requests=[1, 0, 1]) == 0
    assert send(router, 6, time=239.9, requests=[0, 1, 1]) == 1
    assert send(router, 5, time=301.0, requests=[1, 0, 1]) == 0
    assert send(router, 6, time=361.0, requests=[0, 1, 1]) == 0


@pytest.mark.parametrize("never", ["max_idle_secs", "eviction_interval_secs"])
def test_zero_never_forgets(never: str) -> None:
    router = router_for(3, "manual", assignment_mode="min_load", **{never: 0})
    assert send(router, 5, requests=[0, 1, 1]) == 0
    assert send(router, 5, time=1e7, requests=[1, 0, 0]) == 0


def test_any_number_of_sessions() -> None:
    router = router_for(3, "manual", assignment_mode="min_load")
    assert send(router, 1000, requests=[1, 0, 1]) == 1
    assert send(router, 100_000, requests=[0, 1, 1]) == 0
    assert send(router, 1000, requests=[0, 1, 1]) == 1
