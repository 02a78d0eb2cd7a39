"""What a compiled simulation did, recorded and held against the reference or another run."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from random_cases import Case
from reference_simulation import ReferenceSimulation, play_reference

from prefixgym.envs.cluster import state
from prefixgym.envs.cluster.state import CANCELLED as GONE
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.view.view import CANCELLED, ENDED, FAILED, FIRST_TOKEN, STARTED

Event = tuple[float, int, int, int]

OVER = (ENDED, FAILED, CANCELLED)
"""Kinds of events after which a router has nothing more to expect of a request."""


def assert_same(found: NDArray[np.void], expected: NDArray[np.void], where: str = "") -> None:
    """Equal in every field; NaN equals NaN."""
    assert found.shape == expected.shape, where
    for name in expected.dtype.names or ():
        nan = np.issubdtype(expected.dtype[name], np.floating)
        equal = np.array_equal(found[name], expected[name], equal_nan=nan)
        assert equal, f"{where} {name}: found {found[name]}, expected {expected[name]}"


def in_order(events: list[Event], starts: Sequence[int] = (STARTED,)) -> list[Event]:
    """Events (time, row, instance, kind) with the starts of an instant last, by instance.

    A step that starts touches no other instance, so that nobody need say which is first. `starts`
    are the kinds that come with one: first tokens too, of what was prefilled elsewhere.
    """

    def place(event: Event) -> tuple[float, int]:
        time, _, instance, kind = event
        return time, 1 + instance if kind in starts else 0

    return sorted(events, key=place)


def held(simulation: Simulation) -> list[int]:
    """The flights of environment 0 that its router holds back."""
    found, v = [], simulation.arrays.knowledge
    for i, count in enumerate(v.instances["held"][0].tolist()):
        q = int(v.queues["head"][0, i])
        for _ in range(count):
            found.append(q)
            q = int(simulation.arrays.cluster.flights["next"][0, q])
    return found


def caches(simulation: Simulation, e: int) -> list[list[int | None]]:
    """For every instance the keys of its blocks without users, least recently used first."""
    found = []
    c = simulation.arrays.cluster
    for i in range(c.status.shape[1]):
        keys: list[int | None] = []
        slot = c.instances[e, i]["lru_head"]
        while slot != state.NONE:
            key = int(c.slots[e, i, slot]["key"])
            keys.append(None if key == state.NONE else key)
            slot = c.slots[e, i, slot]["next"]
        found.append(keys)
    return found


def assert_equals_reference(case: Case) -> ReferenceSimulation:
    """Every decision's view, every event, outcome and total of the case's first tape."""
    expected = play_reference(case)
    simulation = case.simulation()
    # Rows of the requests in flight, by slot. A slot may be another router's before the one whose
    # request had it hears of that one's end.
    in_flight: list[dict[int, int]] = [{} for _ in expected.replicas]
    starts = (STARTED,) if case.decoders is None else (STARTED, FIRST_TOKEN)
    untold = {None, *(request.row for request in expected.ended if request.status == GONE)}
    for k, decision in enumerate(expected.decisions):
        rows = in_flight[decision.replica]
        view = simulation.view
        where = f"decision {k}:"
        assert not simulation.done[0], where
        assert simulation.arrays.episodes["now"][0] == decision.time, where
        assert simulation.arrays.episodes["row"][0] == decision.row, where
        assert caches(simulation, 0) == decision.caches, where
        heard = view.events[0, : view.num_events[0]].tolist()
        found = [(t, rows[slot], i, kind) for t, slot, i, kind in heard]
        assert heard == sorted(heard, key=lambda event: event[0]), where
        assert in_order(found, starts) == in_order(decision.events, starts), where
        for _, slot, _, kind in heard:
            if kind in OVER:
                del rows[slot]
        slot = int(view.requests["slot"][0])
        assert 0 <= slot < view.num_slots, where
        assert rows.get(slot) in untold, where
        rows[slot] = decision.row
        decision.request["slot"] = slot
        assert_same(view.requests[0], decision.request, where)
        assert_same(view.instances[0], decision.instances, where)
        unused = view.block_ids.shape[1] - len(decision.block_ids)
        assert view.block_ids[0].tolist() == decision.block_ids + [-1] * unused, where
        if case.actions[0, k] == len(case.cluster.instances):
            del rows[slot]
        case.step(simulation)
    assert simulation.done[0]
    assert_same(simulation.outcomes(0), expected.outcomes)
    assert_same(simulation.instance_totals[0], expected.totals)
    if not case.faults and case.autoscaler is None:
        # Else whether a drained one leaves with the last request of all is nobody's business.
        assert caches(simulation, 0) == expected.caches()
    return expected


class Record(NamedTuple):
    """All that one environment showed in an episode."""

    requests: list[NDArray[np.void]]
    instances: list[NDArray[np.void]]
    good: list[int]
    outcomes: NDArray[np.void]
    totals: NDArray[np.void]
    caches: list[list[int | None]]


def record(simulation: Simulation, case: Case, first: int = 0) -> list[Record]:
    """Play tapes `first` and following of a case to the end; a record for each environment."""
    envs = range(simulation.num_envs)
    requests: list[list[NDArray[np.void]]] = [[] for _ in envs]
    instances: list[list[NDArray[np.void]]] = [[] for _ in envs]
    good: list[list[int]] = [[] for _ in envs]
    while not simulation.done.all():
        view, running = simulation.view, np.flatnonzero(~simulation.done)
        for e in running:
            requests[e].append(view.requests[e].copy())
            requests[e][-1]["slot"] = 0  # which one depends on how much room there is
            instances[e].append(view.instances[e].copy())
        case.step(simulation, first)
        for e in running:
            good[e].append(int(simulation.good[e]))
    return [
        Record(
            requests[e],
            instances[e],
            good[e],
            simulation.outcomes(e),
            simulation.instance_totals[e],
            caches(simulation, e),
        )
        for e in envs
    ]


def assert_same_record(found: Record, expected: Record) -> None:
    assert found.good == expected.good
    for name in ("requests", "instances"):
        for a, b in zip(getattr(found, name), getattr(expected, name), strict=True):
            assert_same(a, b, name)
    assert_same(found.outcomes, expected.outcomes, "outcomes")
    assert_same(found.totals, expected.totals, "totals")
    assert found.caches == expected.caches


class Shown(NamedTuple):
    """One decision as its router saw it."""

    time: float
    replica: int
    request: NDArray[np.void]
    instances: NDArray[np.void]
    events: list[Event]  # with rows


def watch(case: Case) -> list[Shown]:
    """The case's first tape as its routers saw it."""
    simulation = case.simulation()
    rows: dict[tuple[int, int], int] = {}  # by router and slot
    decisions: list[Shown] = []
    while not simulation.done[0]:
        view = simulation.view
        request = view.requests[0].copy()
        replica = int(request["replica"])
        heard = view.events[0, : view.num_events[0]].tolist()
        events = [(t, rows[replica, slot], i, kind) for t, slot, i, kind in heard]
        rows[replica, int(request["slot"])] = int(simulation.arrays.episodes["row"][0])
        decisions.append(
            Shown(
                float(request["time"]),
                replica,
                request,
                view.instances[0].copy(),
                in_order(events),
            )
        )
        case.step(simulation)
    return decisions
