"""Whatever happens to instances, clients and routers: equal to the reference, nobody lost."""

import numpy as np
from cluster_invariants import check_cluster
from comparison import assert_equals_reference, assert_same
from hypothesis import Phase, find, given, settings
from random_cases import Case, cases
from reference_simulation import play_reference

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.state import CANCELLED, FAILED, FINISHED, REJECTED

CORNERS = {
    "answered when its time was up",
    "back before it was found dead",
    "cancelled between steps",
    "cancelled in a queue",
    "cancelled in a router",
    "cancelled in a step",
    "cancelled in limbo",
    "cancelled in wait for its next attempt",
    "crash in a prefill",
    "crash of one that was away before",
    "crash while decoding",
    "crash while requests for it are held",
    "found dead",
    "grace runs out",
    "idle when drained",
    "leaked",
    "lost after its first token",
    "nobody available",
    "refused",
    "restart of a draining one",
    "scaled in",
    "scaled out",
    "sent into limbo",
    "trusted again",
}


@given(cases(holding=True, disturbed=True))
@settings(max_examples=150)
def test_every_decision_and_outcome_equals_the_reference(case: Case) -> None:
    assert_equals_reference(case)


def test_random_cases_reach_every_corner() -> None:
    missing = set(CORNERS)

    def reaches_the_last(case: Case) -> bool:
        missing.difference_update(play_reference(case).corners)
        return not missing

    enough = settings(max_examples=2000, phases=[Phase.generate], database=None)
    strategy = cases(most_requests=30, holding=True, disturbed=True)
    assert find(strategy, reaches_the_last, settings=enough)


@given(cases(num_tapes=2, most_requests=30, holding=True, disturbed=True))
@settings(max_examples=60)
def test_every_request_is_accounted_for_exactly_once(case: Case) -> None:
    simulation = case.simulation()
    while not simulation.done.all():
        case.step(simulation)
    c, clients = simulation.arrays.cluster, case.clients
    for e, tape in enumerate(case.tapes):
        outcomes = simulation.outcomes(e)
        assert sorted(outcomes["row"].tolist()) == list(range(len(tape.requests)))
        assert (np.diff(outcomes["end"]) >= 0).all()
        assert (outcomes["end"] >= outcomes["arrival"]).all()
        assert simulation.num_ended[e] == len(tape.requests)
        status, attempts = outcomes["status"], outcomes["attempts"]
        assert set(status.tolist()) <= {FINISHED, REJECTED, FAILED, CANCELLED}
        assert attempts.sum() == simulation.arrays.episodes["decisions"][e]
        assert (attempts >= 1).all()
        assert (attempts[status == FAILED] == clients.retries + 1).all()
        assert (attempts <= clients.retries + 1).all()
        assert not outcomes["good"][status != FINISHED].any()
        assert not np.isnan(outcomes["ttft"][status == FINISHED]).any()
        assert np.isnan(outcomes["ttft"][(status == FAILED) | (status == REJECTED)]).all()
        check_cluster(c, e)  # no request in flight, and every block has as many users as it says
        assert not c.slots["users"][e].any()
        assert c.status["free_blocks"][e].tolist() == c.limits["num_blocks"][0].tolist()
        for name in ("running", "waiting", "waiting_tokens", "prefilling_tokens"):
            assert not c.status[name][e].any(), name
        if not case.faults and case.autoscaler is None:
            assert not (status == FAILED).any()
        if clients.timeout is None and clients.cancel == 0:
            assert not (status == CANCELLED).any()


@given(cases(most_requests=30, holding=True, disturbed=True))
@settings(max_examples=40)
def test_ledgers_keep_what_leaked_and_nothing_else(case: Case) -> None:
    expected = play_reference(case)
    simulation = case.simulation()
    while not simulation.done.all():
        case.step(simulation)
    cancelled = {r.row for r in expected.ended if r.status == CANCELLED}
    for w, replica in enumerate(expected.replicas):
        assert replica.bookings.keys() <= cancelled
        if case.clients.leak == 0:
            assert not replica.bookings
        for i, row in enumerate(simulation.arrays.knowledge.instances[w]):
            left = replica.ledger(i)
            for name in ("requests", "prefill_requests", "prefill_tokens", "context_tokens"):
                assert row[name] == getattr(left, name), name
            assert row["backlog_seconds"] == left.backlog / TICKS_PER_SECOND
            assert row["held"] == 0


@given(cases(most_requests=30, holding=True, disturbed=True))
@settings(max_examples=30)
def test_equal_seeds_give_equal_episodes(case: Case) -> None:
    first, second = case.simulation(), case.simulation()
    while not first.done.all():
        assert_same(first.view.requests, second.view.requests)
        assert_same(first.view.instances, second.view.instances)
        case.step(first)
        case.step(second)
    assert_same(first.outcomes(0), second.outcomes(0))
