"""Forks go on exactly as their origin would, whatever else is tried out beside them."""

import numpy as np
from cluster_invariants import check_index
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_cases import SLOS, Case, RequestDraw, Tapes, build_tape, cases

from prefixgym.envs.cluster.profiles import constant_profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.episode_state import OUTCOME
from prefixgym.envs.forks import Forks
from prefixgym.envs.simulation import Simulation


@settings(max_examples=30)
@given(case=cases(num_tapes=2, most_requests=40, disturbed=True), data=st.data())
def test_a_fork_is_its_origin(case: Case, data: st.DataObject) -> None:
    origin = case.simulation()
    most = case.actions.shape[1]
    see_truth = data.draw(st.booleans())
    forks = Forks(origin, 3, record=True, see_truth=see_truth)
    forks.restart()
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    for k in range(data.draw(st.integers(0, most - 1))):
        if rng.random() < 0.3:  # earlier trials leave no trace
            forks.take(rng.random(6) < 0.7)
            forks.simulation.step(rng.integers(0, len(case.cluster.instances), 6))
        origin.step(case.actions[:, k])
    taken = rng.random(6) < 0.8
    forks.take(taken)
    before = np.repeat(origin.num_ended, 3)
    # The middle fork of each environment decides at random, the others as the origin will.
    while not origin.done.all():
        actions = case.actions[np.arange(2), np.minimum(decisions(origin), most - 1)]
        wild = np.repeat(actions, 3)
        wild[1::3] = rng.integers(0, len(case.cluster.instances), 2)
        forks.simulation.step(wild)
        origin.step(actions)
        for k in np.flatnonzero(taken & see_truth).tolist():
            check_index(forks.simulation.arrays.cluster, k)
    for k in (0, 2, 3, 5):
        if taken[k]:
            found, expected = forks.simulation.outcomes(k), origin.outcomes(k // 3)
            for name in OUTCOME.names or ():
                np.testing.assert_array_equal(found[name][before[k] :], expected[name][before[k] :])
        else:
            assert forks.simulation.done[k]


def decisions(simulation: Simulation) -> NDArray[np.int32]:
    count: NDArray[np.int32] = simulation.arrays.episodes["decisions"]
    return count


def burst(count: int) -> Simulation:
    draw = RequestDraw(0, 0, 0, 0, 0, 10, 3, 1.0, True, 0)
    tape = build_tape([draw] * count, 10)
    cluster = ClusterSpec((InstanceSpec(constant_profile(10.0, 1.0), 10_000),) * 2, 10)
    simulation = Simulation(cluster, Tapes((tape,)), SLOS, record=True)
    simulation.reset([0])
    return simulation


def test_a_closed_fork_ends_what_is_in_flight_and_nothing_else() -> None:
    origin = burst(5)
    origin.step(np.array([0]))
    forks = Forks(origin, 2, record=True)
    forks.restart()
    forks.take(np.array([True, True]))
    forks.close()
    forks.simulation.step(np.array([0, 1]))
    assert forks.simulation.done.all()
    assert forks.simulation.num_ended.tolist() == [2, 2]
    # Both prefills in one step of 10 ms, or one on each instance.
    assert [forks.simulation.outcomes(k)["ttft"].tolist() for k in (0, 1)] == [[0.01, 0.01]] * 2
    assert not origin.done[0]
    forks.take(np.array([True, False]))  # open again
    forks.simulation.step(np.array([0, 0]))
    assert forks.simulation.done.tolist() == [False, True]


def test_room_grows_on_both_sides() -> None:
    origin = burst(700)
    forks = Forks(origin, 2)
    forks.restart()
    for k in range(300):  # more in flight than there is room for at first
        origin.step(np.array([k % 2]))
    forks.take(np.array([True, True]))
    for k in range(300):  # and now in the forks
        forks.simulation.step(np.array([k % 2, 0]))
    for k in range(10):
        forks.take(np.array([False, True]))
        forks.simulation.step(np.array([0, k % 2]))
        origin.step(np.array([k % 2]))
        assert forks.simulation.view.requests[1] == origin.view.requests[0]
        assert forks.simulation.view.instances[1].tolist() == origin.view.instances[0].tolist()
    assert forks.simulation.arrays.cluster.flights.shape[1] >= 600
