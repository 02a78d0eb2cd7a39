"""The compiled simulation: equal to a plain one to the last bit, and to itself however it runs."""

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from cluster_invariants import check_cluster
from comparison import (
    assert_equals_reference,
    assert_same,
    assert_same_record,
    caches,
    held,
    record,
)
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from random_cases import Case, RequestDraw, build_tape, cases
from reference_engine import Request
from reference_simulation import ReferenceSimulation, play_reference

from prefixgym.envs import simulation as simulation_module
from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.cluster import state
from prefixgym.envs.cluster.profiles import constant_profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.cluster.state import FINISHED
from prefixgym.envs.view.knowledge import Index, Knowledge, Snapshots, Telemetry
from prefixgym.envs.workload.tape import NO_ROW

DRAW = RequestDraw(
    gap=TICKS_PER_MS // 1000,
    parent_back=0,
    join_back=0,
    base_back=0,
    shared_blocks=0,
    prompt_tokens=8,
    output_tokens=8,
    cacheable=1.0,
    partial_id=True,
    slo_class=0,
)

LEDGER = (
    "requests",
    "prefill_requests",
    "prefill_tokens",
    "backlog_seconds",
    "context_tokens",
    "held",
    "held_since",
)


# --- against the reference --------------------------------------------------------------------


@given(cases(holding=True))
@settings(max_examples=200)
def test_every_decision_and_outcome_equals_the_reference(case: Case) -> None:
    assert_equals_reference(case)


@given(cases(most_requests=30, holding=True))
@settings(max_examples=60)
def test_state_is_consistent_at_every_decision(case: Case) -> None:
    expected = play_reference(case)
    simulation = case.simulation()
    c, now = simulation.arrays.cluster, 0
    for k in range(len(expected.decisions)):
        check_cluster(simulation.arrays.cluster, 0, held(simulation))
        episode = simulation.arrays.episodes[0]
        assert episode["decisions"] == k
        assert simulation.num_ended[0] + c.environments["in_flight"][0] == k
        assert episode["now"] >= now
        now = episode["now"]
        assert (simulation.arrays.cluster.status["due"] > 2 * now).all()  # all up to now happened
        case.step(simulation)
        c = simulation.arrays.cluster
    check_cluster(c, 0)
    assert not simulation.arrays.knowledge.batches.any()
    outcomes = simulation.outcomes(0)
    assert sorted(outcomes["row"].tolist()) == list(range(len(case.tapes[0].requests)))
    assert (np.diff(outcomes["end"]) >= 0).all()
    assert (outcomes["end"] >= outcomes["arrival"]).all()
    for name in LEDGER:
        assert not simulation.view.instances[name].any(), name
    for name in ("running", "waiting"):
        assert not c.status[name].any(), name
    assert c.status["free_blocks"][0].tolist() == c.limits["num_blocks"][0].tolist()


@given(cases(holding=True, disturbed=True))
@settings(max_examples=50)
def test_leaps_equal_single_steps(case: Case) -> None:
    leaping, stepping = case.simulation(), case.simulation(longest_leap=1)
    while not leaping.done.all():
        assert_same(leaping.view.instances, stepping.view.instances)
        case.step(leaping)
        case.step(stepping)
    assert_same(leaping.outcomes(0), stepping.outcomes(0))
    assert_same(leaping.instance_totals, stepping.instance_totals)
    assert caches(leaping, 0) == caches(stepping, 0)


def preempts(episode: ReferenceSimulation) -> bool:
    return bool(episode.totals["preemptions"].any())


def rejects(episode: ReferenceSimulation) -> bool:
    return any(request.rejected for request in episode.ended if placed(request))


def turns_away_what_others_follow(episode: ReferenceSimulation) -> bool:
    followed = episode.tape.requests["first_child"] != NO_ROW
    return any(followed[r.row] for r in episode.ended if not placed(r))


def placed(request: Request) -> bool:
    return request.instance != state.NONE


def prefills_in_chunks_after_a_hit(episode: ReferenceSimulation) -> bool:
    budget = max(engine.max_batched_tokens for engine in episode.engines)
    return any(
        0 < outcome["hit_tokens"] < outcome["prompt_tokens"] - budget
        for outcome in episode.outcomes
    )


def hits_what_decoding_filled(episode: ReferenceSimulation) -> bool:
    rows, parent = episode.tape.requests, episode.tape.requests["parent"]
    return any(
        parent[outcome["row"]] != NO_ROW
        and outcome["hit_tokens"] > rows["prompt_tokens"][parent[outcome["row"]]]
        for outcome in episode.outcomes
    )


def promises_a_hit_in_vain(episode: ReferenceSimulation) -> bool:
    promised = {
        decision.row: decision.instances["hit_tokens"][action]
        for decision, action in zip(episode.decisions, episode.actions, strict=False)
        if action < len(decision.instances)
    }
    return any(
        outcome["status"] == FINISHED and outcome["hit_tokens"] < promised[outcome["row"]]
        for outcome in episode.outcomes
    )


@pytest.mark.parametrize(
    "reached",
    [
        preempts,
        rejects,
        turns_away_what_others_follow,
        prefills_in_chunks_after_a_hit,
        hits_what_decoding_filled,
        promises_a_hit_in_vain,
    ],
)
def test_random_cases_reach_the_corners(reached: Callable[[ReferenceSimulation], bool]) -> None:
    enough = settings(max_examples=300, phases=[Phase.generate], database=None)
    assert find(cases(), lambda case: reached(play_reference(case)), settings=enough)


def test_random_cases_report_more_changes_than_are_remembered() -> None:
    def overflows(case: Case) -> bool:
        simulation, most = case.simulation(), 0
        for actions in case.actions.T:
            simulation.step(actions)
            most = max(most, simulation.arrays.cluster.journals.ends.max())
        return most > simulation.arrays.cluster.journals.records.shape[2] > 0

    enough = settings(max_examples=500, phases=[Phase.generate], database=None)
    assert find(cases(), overflows, settings=enough)


def test_a_follow_up_without_think_time_comes_before_the_next_steps() -> None:
    # Both first steps end at 1 ms. Row 0 ends with it on instance 1, so that its follow-up arrives
    # at once, on instance 0, whose next step starts at 1 ms too and has room for it.
    rows = [
        replace(DRAW, gap=0, output_tokens=1),
        replace(DRAW, gap=0),
        replace(DRAW, gap=0, parent_back=2, output_tokens=1),
    ]
    case = Case(
        ClusterSpec((InstanceSpec(constant_profile(1.0, 1.0), kv_blocks=50),) * 2, 4),
        Knowledge(),
        (build_tape(rows, 4),),
        np.array([[1, 0, 0]]),
    )
    simulation = case.simulation()
    for actions in case.actions.T:
        simulation.step(actions)
    assert_same(simulation.outcomes(0), play_reference(case).outcomes)
    assert simulation.outcomes(0)["ttft"][1] == 0.002  # with one decoding request: 1 + 1 ms


def test_a_join_comes_after_the_last_of_the_ends_that_it_waits_for() -> None:
    # Rows 1 and 2 follow row 0 and decode 5 and 9 tokens; row 3 waits for all of them.
    rows = [
        replace(DRAW, gap=0, output_tokens=1),
        replace(DRAW, gap=0, parent_back=1, output_tokens=5),
        replace(DRAW, gap=0, parent_back=2, output_tokens=9),
        replace(DRAW, gap=TICKS_PER_MS, parent_back=3, join_back=1, output_tokens=1),
    ]
    tape = build_tape(rows, 4)
    tape.requests["then"][1] = 3
    tape.requests["waits_for"][3] = 3
    case = Case(
        ClusterSpec((InstanceSpec(constant_profile(1.0, 1.0), kv_blocks=50),) * 2, 4),
        Knowledge(),
        (tape,),
        np.array([[0, 0, 1, 0]]),
    )
    simulation = case.simulation()
    for actions in case.actions.T:
        simulation.step(actions)
    outcomes = np.sort(simulation.outcomes(0), order="row")
    assert_same(simulation.outcomes(0), play_reference(case).outcomes)
    assert outcomes["end"][1] < outcomes["end"][2]
    assert outcomes["arrival"][3] == pytest.approx(outcomes["end"][2] + 0.001)


def test_a_tape_whose_follow_ups_would_never_come_is_refused() -> None:
    tape = build_tape([replace(DRAW, gap=0), replace(DRAW, gap=0, parent_back=1)], 4)
    tape.requests["waits_for"][1] = 0
    cluster = ClusterSpec((InstanceSpec(constant_profile(1.0, 1.0), kv_blocks=50),), 4)
    case = Case(cluster, Knowledge(), (tape,), np.zeros((1, 2), np.int64))
    with pytest.raises(ValueError, match=r"requests\[1\]\.waits_for: found 0, a follow-up waits"):
        case.simulation()


# --- against itself ---------------------------------------------------------------------------


several = cases(num_tapes=4, most_requests=20, holding=True, disturbed=True)


@given(case=several, threads=st.sampled_from([1, 2, 3, 4]))
@settings(max_examples=30)
def test_a_batch_equals_its_members_alone(case: Case, threads: int) -> None:
    batch = case.simulation(threads=threads)
    found = record(batch, case)
    batch.close()
    for e, member in enumerate(found):
        (alone,) = record(case.simulation(e, e + 1), case, e)
        assert_same_record(member, alone)
        assert sum(alone.good) == alone.outcomes["good"].sum()


@given(case=several, at=st.integers(0, 20))
@settings(max_examples=30)
def test_a_snapshot_goes_on_as_it_did(case: Case, at: int) -> None:
    simulation = case.simulation()
    for _ in range(at):
        case.step(simulation)
    snapshot = simulation.snapshot()
    expected = record(simulation, case)
    for _ in range(2):  # a snapshot can be used again
        simulation.restore(snapshot)
        for found, member in zip(record(simulation, case), expected, strict=True):
            assert_same_record(found, member)


@given(case=several, at=st.integers(0, 20))
@settings(max_examples=30)
def test_a_reset_forgets_its_environment_and_touches_no_other(case: Case, at: int) -> None:
    simulation = case.simulation(0, 3)
    # Tape 3 takes the place of tape 1 halfway; its requests and blocks may be more than any before.
    for _ in range(min(at, case.actions.shape[1])):
        case.step(simulation)
    begun = simulation.arrays.episodes["decisions"].copy()
    simulation.reset([None, 3, None], np.array([False, True, False]))
    order = [0, 3, 2]
    orders = None if case.orders is None else case.orders[order]
    found = record(simulation, replace(case, actions=case.actions[order], orders=orders))
    (alone,) = record(case.simulation(3, 4), case, 3)
    assert_same_record(found[1], alone)
    for e in (0, 2):
        (alone,) = record(case.simulation(e, e + 1), case, e)
        assert_same(found[e].outcomes, alone.outcomes)
        assert_same(found[e].totals, alone.totals)
        assert found[e].good == alone.good[begun[e] :]


@given(case=cases(num_tapes=4, most_requests=20), first=st.sampled_from([1, 2, 5]))
@settings(max_examples=30)
def test_playing_fixed_decisions_equals_stepping(case: Case, first: int) -> None:
    stepped = record(case.simulation(), case)
    with patch.object(simulation_module, "_FLIGHTS_AT_FIRST", first):  # it stops to grow, too
        playing = case.simulation()
    playing.play(case.actions)
    for e, expected in enumerate(stepped):
        assert_same(playing.outcomes(e), expected.outcomes)
        assert_same(playing.instance_totals[e], expected.totals)
        assert caches(playing, e) == expected.caches


@given(case=several, first=st.sampled_from([1, 2, 5]))
@settings(max_examples=30)
def test_room_for_more_requests_in_flight_changes_nothing(case: Case, first: int) -> None:
    expected = record(case.simulation(), case)
    with patch.object(simulation_module, "_FLIGHTS_AT_FIRST", first):
        growing = case.simulation()
    for found, member in zip(record(growing, case), expected, strict=True):
        assert_same_record(found, member)
    check_cluster(growing.arrays.cluster, 0)


def test_hundreds_in_flight() -> None:
    case = Case(
        ClusterSpec(
            (InstanceSpec(constant_profile(2.0, 1.0), kv_blocks=50, max_sequences=8),) * 2, 4
        ),
        Knowledge(
            index=Index(source="snapshots", snapshots=Snapshots(interval=0.01)),
            telemetry=Telemetry(interval=0.01),
        ),
        (build_tape([DRAW] * 700, 4), build_tape([DRAW] * 20, 4)),
        np.random.default_rng(0).integers(0, 2, (2, 700)),
    )
    growing = case.simulation()
    found = record(growing, case)
    assert growing.arrays.cluster.flights.shape[1] > 700
    check_cluster(growing.arrays.cluster, 0)
    with patch.object(simulation_module, "_FLIGHTS_AT_FIRST", 1024):
        for member, expected in zip(record(case.simulation(), case), found, strict=True):
            assert_same_record(member, expected)
    reference = play_reference(case)
    assert_same(found[0].outcomes, reference.outcomes)
