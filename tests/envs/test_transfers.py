"""Prefilled here, decoded there: equal to a plain simulation to the last bit."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cluster_invariants import check_cluster
from comparison import (
    assert_equals_reference,
    assert_same,
    assert_same_record,
    held,
    record,
)
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_cases import SLOS, Case, RequestDraw, Tapes, build_tape, cases
from reference_simulation import ReferenceSimulation, play_reference

from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.cluster.faults import Fault
from prefixgym.envs.cluster.profiles import constant_profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec, Link
from prefixgym.envs.cluster.state import NONE
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.view.knowledge import Knowledge
from prefixgym.envs.view.view import DISPATCHED, ENDED, FIRST_TOKEN, PREFILLED, STARTED

# --- by hand ----------------------------------------------------------------------------------

PREFILL = InstanceSpec(constant_profile(4.0, 1.0), kv_blocks=8, role="prefill")
DECODE = InstanceSpec(constant_profile(4.0, 1.0), kv_blocks=8, role="decode")
# constant_profile has 131,072 bytes a token: 1 ms a token.
LINK = Link(bandwidth=131_072_000.0, latency=0.5e-3)
DRAW = RequestDraw(0, 0, 0, 0, 0, 8, 3, 1.0, True, 0)


def by_hand(rows: list[RequestDraw], link: Link = LINK, kv_blocks: int = 8) -> Case:
    """Everything is prefilled on instance 0 and decoded on instance 1."""
    cluster = ClusterSpec((PREFILL, replace(DECODE, kv_blocks=kv_blocks)), 4, link=link)
    decoders = np.ones((1, len(rows)), np.int64)
    actions = np.zeros_like(decoders)
    return Case(cluster, Knowledge(), (build_tape(rows, 4),), actions, decoders=decoders)


def outcomes(case: Case) -> NDArray[np.void]:
    assert_equals_reference(case)
    (found,) = record(case.simulation(), case)
    return np.sort(found.outcomes, order="row")


def test_the_first_token_comes_with_the_kv() -> None:
    (found,) = outcomes(by_hand([DRAW]))
    assert found["ttft"] == pytest.approx(4.0e-3 + 8e-3 + 0.5e-3)  # prefill, 8 tokens, latency
    assert found["tpot"] == pytest.approx(1e-3)
    assert (found["instance"], found["decoder"]) == (0, 1)


def test_transfers_of_one_port_come_one_after_the_other() -> None:
    first, second = outcomes(by_hand([DRAW, DRAW]))
    assert first["ttft"] == pytest.approx(12.5e-3)
    assert second["ttft"] == pytest.approx(20.5e-3, abs=1.1e-3)  # it joins a step that is running


def test_what_the_decoder_has_cached_is_not_moved() -> None:
    later = replace(DRAW, gap=100 * TICKS_PER_MS, base_back=1, shared_blocks=1)
    _, second = outcomes(by_hand([DRAW, later]))
    # One block is found on either side.
    assert second["hit_tokens"] == 4
    assert second["ttft"] == pytest.approx(4e-3 + 4e-3 + 0.5e-3)


def test_an_answer_of_one_token_needs_no_decoder() -> None:
    case = by_hand([replace(DRAW, output_tokens=1)])
    (found,) = outcomes(case)
    assert found["ttft"] == pytest.approx(4e-3)
    assert found["end"] == found["arrival"] + found["ttft"]


def test_one_waits_for_room_where_it_decodes() -> None:
    # 8 tokens and the next take 3 blocks of 4; only one of them fits.
    first, second = outcomes(by_hand([DRAW, DRAW], Link(bandwidth=1e15), kv_blocks=3))
    assert second["arrival"] + second["ttft"] == pytest.approx(first["end"], abs=1e-9)


def test_what_is_too_long_for_its_decoder_is_rejected() -> None:
    case = by_hand([replace(DRAW, output_tokens=6)], kv_blocks=3)
    assert np.isnan(outcomes(case)["ttft"][0])


def test_the_router_hears_of_each_half() -> None:
    case = by_hand([DRAW, replace(DRAW, gap=100 * TICKS_PER_MS)])
    simulation = case.simulation()
    case.step(simulation)
    view = simulation.view
    heard = [(int(e["instance"]), int(e["kind"])) for e in view.events[0, : view.num_events[0]]]
    assert heard == [(0, DISPATCHED), (0, STARTED), (0, PREFILLED), (1, FIRST_TOKEN), (1, ENDED)]


def test_its_ledger_counts_a_request_on_both_sides_while_they_have_it() -> None:
    rows = [replace(DRAW, gap=gap * TICKS_PER_MS) for gap in (0, 2, 4, 20)]
    case = by_hand(rows)
    simulation, seen = case.simulation(), []
    while not simulation.done[0]:
        seen.append(simulation.view.instances["requests"][0].tolist())
        case.step(simulation)
    assert seen[:2] == [[0, 0], [1, 1]]  # the second arrives in the first's prefill
    assert seen[2][1] == 2


def test_roles_must_leave_somebody_for_each_half() -> None:
    with pytest.raises(ValueError, match=r"found roles prefill; .* another to decode"):
        ClusterSpec((PREFILL, PREFILL), 4)
    with pytest.raises(ValueError, match=r"role: found 'both', allowed: mixed, prefill, decode"):
        ClusterSpec((replace(PREFILL, role="both"),), 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bandwidth: found 0\.0, must be above 0"):
        Link(bandwidth=0.0)


def test_roles_and_faults_do_not_go_together_yet() -> None:
    cluster = ClusterSpec((PREFILL, DECODE), 4)
    with pytest.raises(ValueError, match="found roles, which go with neither faults"):
        Simulation(
            cluster,
            Tapes((build_tape([DRAW], 4),)),
            SLOS,
            faults=[Fault(kind="restart", instances=(0,), at=1.0, lasts=1.0)],
        )


# --- against the reference, and itself --------------------------------------------------------

several = cases(num_tapes=3, most_requests=20, holding=True, split=True)


@given(cases(holding=True, split=True))
@settings(max_examples=150)
def test_every_decision_and_outcome_equals_the_reference(case: Case) -> None:
    assert_equals_reference(case)


@given(cases(most_requests=30, split=True))
@settings(max_examples=40)
def test_state_is_consistent_at_every_decision(case: Case) -> None:
    simulation = case.simulation()
    while not simulation.done[0]:
        check_cluster(simulation.arrays.cluster, 0, held(simulation))
        case.step(simulation)
    check_cluster(simulation.arrays.cluster, 0)
    c = simulation.arrays.cluster
    assert c.status["free_blocks"][0].tolist() == c.limits["num_blocks"][0].tolist()
    for name in ("requests", "prefill_requests", "prefill_tokens", "context_tokens"):
        assert not simulation.view.instances[name].any(), name
    rows = simulation.outcomes(0)["row"]
    assert sorted(rows.tolist()) == list(range(len(case.tapes[0].requests)))


@given(cases(holding=True, split=True))
@settings(max_examples=40)
def test_leaps_equal_single_steps(case: Case) -> None:
    (leaping,) = record(case.simulation(), case)
    (stepping,) = record(case.simulation(longest_leap=1), case)
    assert_same_record(leaping, stepping)


@given(case=several, threads=st.sampled_from([1, 2, 3]))
@settings(max_examples=20)
def test_a_batch_equals_its_members_alone(case: Case, threads: int) -> None:
    batch = case.simulation(threads=threads)
    found = record(batch, case)
    batch.close()
    assert case.decoders is not None
    for e, member in enumerate(found):
        (alone,) = record(case.simulation(e, e + 1), case, e)
        assert_same_record(member, alone)


@given(case=several, at=st.integers(0, 20))
@settings(max_examples=20)
def test_a_snapshot_goes_on_as_it_did(case: Case, at: int) -> None:
    simulation = case.simulation()
    for _ in range(at):
        case.step(simulation)
    snapshot = simulation.snapshot()
    expected = record(simulation, case)
    simulation.restore(snapshot)
    for found, member in zip(record(simulation, case), expected, strict=True):
        assert_same_record(found, member)


@given(cases(split=True))
@settings(max_examples=40)
def test_decoding_where_it_was_prefilled_is_no_disaggregation(case: Case) -> None:
    here = replace(case, decoders=np.where(case.actions < 4, case.actions, NONE))
    there = replace(case, decoders=None)
    (found,), (expected,) = (record(c.simulation(), c) for c in (here, there))
    assert_same(found.outcomes, expected.outcomes)
    assert_same(found.totals, expected.totals)
    assert found.caches == expected.caches


def preempts_what_was_moved(episode: ReferenceSimulation) -> bool:
    moved = {r.decoder for r in episode.ended if r.decoder not in (None, r.prefiller)}
    preemptions = episode.totals["preemptions"]
    return "moved" in episode.corners and any(preemptions[i] > 0 for i in moved if i is not None)


@pytest.mark.parametrize(
    "reached",
    [
        lambda episode: "waited for a port" in episode.corners,
        lambda episode: "moved in part" in episode.corners,
        preempts_what_was_moved,
    ],
)
def test_random_cases_reach_the_corners(reached: Callable[[ReferenceSimulation], bool]) -> None:
    enough = settings(max_examples=300, phases=[Phase.generate], database=None)
    assert find(cases(split=True), lambda case: reached(play_reference(case)), settings=enough)
