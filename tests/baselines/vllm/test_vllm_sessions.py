"""Routers of vLLM's that keep sessions together, worked by hand."""

from typing import Any

import numpy as np
import pytest
from made_views import decide, one_view, router_for

from prefixgym.baselines.router import Router, router_keys
from prefixgym.baselines.vllm.rendezvous_hash import weight

SESSIONS = range(200)


def homes(router: Router, **columns: Any) -> list[int]:
    return [decide(router, one_view(4, request={"session": s}, **columns)) for s in SESSIONS]


def test_session_affinity_ignores_load_and_moves_only_a_down_instances_sessions() -> None:
    router = router_for(4, "session_affinity")
    before = homes(router)
    assert set(before) == {0, 1, 2, 3}
    assert homes(router, requests=[99, 0, 0, 0], waiting=[99, 0, 0, 0]) == before
    after = homes(router, available=[1, 0, 1, 1])
    assert all(a == b for a, b in zip(before, after, strict=True) if a != 1)
    assert {b for a, b in zip(before, after, strict=True) if a == 1} == {0, 2, 3}


def test_session_affinity_depends_on_the_seed() -> None:
    by_seed = [homes(router_for(4, "session_affinity", seed=s)) for s in (0, 1)]
    assert by_seed[0] != by_seed[1]


@pytest.mark.parametrize("failover", ["ring", "first"])
def test_consistent_hash_while_an_instance_is_away(failover: str) -> None:
    router = router_for(4, "consistent_hash", failover=failover)
    before = homes(router, requests=[99, 0, 0, 0])
    assert set(before) == {0, 1, 2, 3}
    after = homes(router, available=[1, 0, 1, 1])
    assert all(a == b for a, b in zip(before, after, strict=True) if a != 1)
    moved = {b for a, b in zip(before, after, strict=True) if a == 1}
    assert moved == ({0, 2, 3} if failover == "ring" else {0})


def test_rendezvous_hash_takes_the_highest_weight_and_moves_only_what_has_to() -> None:
    router = router_for(4, "rendezvous_hash")
    (key,) = router_keys([0])
    weights = np.array([[weight(key, s, i) for i in range(4)] for s in SESSIONS])
    before = homes(router)
    assert before == weights.argmax(axis=1).tolist()
    assert (abs(np.bincount(before) - 50) < 25).all()  # 4 standard deviations
    after = homes(router, available=[1, 0, 1, 1])
    assert all(a == b for a, b in zip(before, after, strict=True) if a != 1)
    assert {b for a, b in zip(before, after, strict=True) if a == 1} == {0, 2, 3}


def ask(router: Router, session: int, time: float = 0.0, **columns: Any) -> int:
    return decide(router, one_view(3, request={"session": session, "time": time}, **columns))


def test_sticky_least_loaded_spreads_new_sessions_and_keeps_old_ones() -> None:
    router = router_for(3, "sticky_least_loaded")
    first = [ask(router, s) for s in range(3)]
    assert sorted(first) == [0, 1, 2]
    assert [ask(router, s, requests=[9, 9, 9]) for s in range(3)] == first
    # 1 1 1: all equal again, so rendezvous hash decides.
    (key,) = router_keys([0])
    assert ask(router, 3) == int(np.argmax([weight(key, 3, i) for i in range(3)]))
    assert len({ask(router, s) for s in (3, 4, 5)}) == 3


def test_sticky_least_loaded_moves_a_session_whose_instance_is_away() -> None:
    router = router_for(3, "sticky_least_loaded")
    home = ask(router, 0)
    away = [int(i != home) for i in range(3)]
    second = ask(router, 0, available=away)
    assert second != home
    assert ask(router, 0) == second  # it does not come back
    # Its old place counts no more, so the next two sessions go to the two empty instances.
    assert {ask(router, 1), ask(router, 2)} == {0, 1, 2} - {second}


def test_sticky_least_loaded_forgets_sessions_in_sweeps() -> None:
    router = router_for(3, "sticky_least_loaded", session_expiration=100.0)
    homes = [ask(router, s, time=0.0) for s in range(3)]
    # The sweep at 99 s finds none expired; session 0 is used again then.
    assert ask(router, 0, time=99.0) == homes[0]
    # At 150 s no sweep is due (60 s), although 1 and 2 are 150 s old: 1 1 1.
    assert ask(router, 1, time=150.0) == homes[1]
    # At 160 s session 2 goes: 1 1 0.
    assert ask(router, 3, time=160.0) == homes[2]
