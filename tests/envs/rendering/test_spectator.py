import copy

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from random_cases import SLOS, Case, RequestDraw, Tapes, build_tape, cases

from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.cluster.profiles import constant_profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.cluster.state import NONE
from prefixgym.envs.rendering.frame import GOOD, MISSED, NOTHING, Frame, ShownDecision, ShownRequest
from prefixgym.envs.rendering.spectator import Spectator
from prefixgym.envs.simulation import Simulation

BLOCK = 8


def draw(gap_ms: float, prompt: int, output: int, slo_class: int, base_back: int) -> RequestDraw:
    """A root `gap_ms` after the last one, with two blocks of the one `base_back` before."""
    return RequestDraw(
        gap=round(gap_ms * TICKS_PER_MS),
        parent_back=0,
        join_back=0,
        base_back=base_back,
        shared_blocks=2,
        prompt_tokens=prompt,
        output_tokens=output,
        cacheable=1.0,
        partial_id=True,
        slo_class=slo_class,
    )


def scripted() -> Simulation:
    """Four requests on two instances of ten and twenty blocks, whose prefill takes 1 and 5 ms."""
    tape = build_tape(
        [
            draw(0, prompt=16, output=3, slo_class=0, base_back=0),
            draw(10, prompt=24, output=1, slo_class=1, base_back=1),
            draw(0.5, prompt=8, output=1, slo_class=0, base_back=0),
            draw(0.25, prompt=24, output=2, slo_class=0, base_back=3),
        ],
        BLOCK,
    )
    instances = (
        InstanceSpec(constant_profile(1.0, 1.0), kv_blocks=10),
        InstanceSpec(constant_profile(5.0, 1.0), kv_blocks=20),
    )
    simulation = Simulation(ClusterSpec(instances, BLOCK), Tapes((tape,)), SLOS, record=True)
    simulation.reset([0])
    return simulation


def frames_of(simulation: Simulation, actions: list[int]) -> list[Frame]:
    """One frame before each decision and one at the end."""
    spectator = Spectator(simulation, "scripted")
    frames = [spectator.frame(0)]
    for action in actions:
        spectator.note(np.array([action]))
        simulation.step(np.array([action]))
        frames.append(spectator.frame(0))
    return frames


def test_frames_tell_what_happened_in_a_scripted_episode() -> None:
    first, second, third, fourth, last = frames_of(scripted(), [0, 1, 1, 0])

    assert first.request == ShownRequest(0, 0, 16, 0.0, slo_ttft=0.05, slo_tpot=0.02)
    assert first.decision is None
    assert (first.time, first.decisions, first.num_requests) == (0.0, 0, 4)
    assert np.isnan([first.totals.attainment, first.totals.ttft_p50, first.totals.goodput]).all()
    assert np.isnan(first.hit_rate).all()
    assert (first.recent == NOTHING).all()
    assert first.prefill.tolist() == [0.001, 0.005]

    # 10 ms: the first has ended after 3 ms, and left its two full blocks behind.
    assert second.request == ShownRequest(1, 1, 24, 0.01, slo_ttft=0.004, slo_tpot=0.002)
    assert second.decision == ShownDecision(0, 0, prompt_tokens=16, hit_tokens=0, best_hit_tokens=0)
    assert second.running.tolist() == second.waiting.tolist() == [0, 0]
    assert second.kv_used.tolist() == [0, 0]
    assert second.kv_cached.tolist() == [0.2, 0]
    assert second.hit.tolist() == [16 / 24, 0]
    assert second.routed.tolist() == [1, 0]
    assert second.recent[0].tolist() == [NOTHING] * 23 + [GOOD]
    assert second.totals.goodput == pytest.approx(1 / 0.01)

    # 10.5 ms: the second went past its prefix, and its three blocks are in use there.
    assert third.decision == ShownDecision(1, 1, 24, hit_tokens=0, best_hit_tokens=16)
    assert third.running.tolist() == [0, 1]
    assert third.kv_used.tolist() == [0, 0.15]
    assert third.backlog.tolist() == [0, 0.005]

    # 10.75 ms: the third waits behind it.
    assert fourth.running.tolist() == [0, 1]
    assert fourth.waiting.tolist() == [0, 1]
    assert fourth.routed.tolist() == [1, 2]
    assert fourth.hit.tolist() == [16 / 24, 16 / 24]  # blocks count once they are being computed

    # The end: 10 + 5 + 5 ms. The second took 5 ms to its first token, 4 were allowed.
    assert last.request is None
    assert last.time == pytest.approx(0.020)
    assert last.decision == ShownDecision(3, 0, 24, hit_tokens=16, best_hit_tokens=16)
    assert last.routed.tolist() == [2, 2]
    assert last.missed.tolist() == [0, 1]
    assert last.recent[:, -2:].tolist() == [[GOOD, GOOD], [MISSED, GOOD]]
    assert last.hit_rate.tolist() == [16 / 40, 0]
    assert last.running.tolist() == last.waiting.tolist() == [0, 0]
    assert (last.totals.ended, last.totals.good, last.totals.attainment) == (4, 3, 0.75)
    assert last.totals.hit_rate == 16 / 72
    assert last.totals.tpot_p99 == pytest.approx(0.001)


def test_a_frame_keeps_its_numbers() -> None:
    simulation = scripted()
    spectator = Spectator(simulation, "")
    before = spectator.frame(0)
    kept = copy.deepcopy(before)
    for _ in range(4):
        simulation.step(np.array([1]))
    assert repr(before) == repr(kept)


@given(cases(num_tapes=2))
@settings(max_examples=30, deadline=None)
def test_every_request_is_somewhere(case: Case) -> None:
    simulation = case.simulation()
    spectator = Spectator(simulation, "")
    for k in range(case.actions.shape[1] + 1):
        for e in range(2):
            frame = spectator.frame(e)
            in_flight = frame.waiting.sum() + frame.running.sum()
            nowhere = np.count_nonzero(simulation.outcomes(e)["instance"] == NONE)  # turned away
            assert frame.totals.ended + in_flight == frame.decisions == frame.routed.sum() + nowhere
            assert frame.missed.sum() + nowhere == frame.totals.ended - frame.totals.good
            assert (frame.kv_used >= 0).all()
            assert (frame.kv_used + frame.kv_cached <= 1).all()
            told = [i for i in (frame.request, frame.decision) if i is not None]
            assert len({i.index for i in told}) == len(told)  # the decision is the one before
        if k < case.actions.shape[1]:
            spectator.note(case.actions[:, k])
            simulation.step(case.actions[:, k])


def test_a_new_episode_has_no_decision_yet() -> None:
    simulation = scripted()
    spectator = Spectator(simulation, "")
    spectator.note(np.array([1]))
    simulation.step(np.array([1]))
    simulation.reset([0])
    spectator.restart(np.array([True]))
    assert spectator.frame(0).decision is None


def test_labels_are_what_tells_profiles_apart() -> None:
    (frame,) = frames_of(scripted(), [])
    assert frame.labels == ("constant(1, 1)", "constant(5, 1)")


def test_a_frame_needs_an_episode_and_its_outcomes() -> None:
    simulation = scripted()
    unused = Simulation(simulation.cluster, simulation.workload, SLOS, record=True)
    with pytest.raises(gym.error.ResetNeeded, match="call reset before render"):
        Spectator(unused, "").frame(0)
    with pytest.raises(ValueError, match="found record=False"):
        Spectator(Simulation(simulation.cluster, simulation.workload, SLOS), "")
