"""What happens to an instance is not known before something could have told of it.

Two episodes have the same history up to a moment at which something happens to an instance in one
of them only: a crash, a flushed cache, a slowdown, a dead publisher. Everything that the routers
see must stay equal until a report, a poll, a response or a health check tells them.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from comparison import Shown, assert_same, watch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_cases import Case, cases

from prefixgym.envs.clock import TICKS_PER_SECOND, to_ticks
from prefixgym.envs.cluster.faults import Fault
from prefixgym.envs.routing import PrefixRoutingEnv
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.view.knowledge import Health, Index, Knowledge, Replicas, Snapshots, Telemetry

HIDDEN: dict[str, dict[str, Any]] = {
    "crash": {"kind": "crash"},
    "short crash": {"kind": "crash", "lasts": 0.006},
    "flush": {"kind": "flush"},
    "slow": {"kind": "slow", "factor": 3.0},
    "silence": {"kind": "silence"},
}


def next_turn(interval: float, i: int, n: int, after: float) -> float:
    """The first turn of instance i of n at or after a time, s."""
    ticks, now = int(to_ticks(interval)), int(to_ticks(after))
    phase = ticks * i // n
    return (phase + max(0, -(-(now - phase) // ticks)) * ticks) / TICKS_PER_SECOND


def first_difference(one: list[Shown], other: list[Shown]) -> tuple[float, set[int]]:
    """When what was heard differs first, and whom those events come from.

    Of both episodes as many decisions count as either has: what came of the last one is not shown.
    """
    both = [one, other]
    count = min(map(len, both))
    last = min(decisions[count - 1].time for decisions in both)
    shown = [{event for d in decisions[:count] for event in d.events} for decisions in both]
    differing = {event for event in shown[0] ^ shown[1] if event[0] <= last}
    first = min((event[0] for event in differing), default=np.inf)
    return first, {event[2] for event in differing if event[0] == first}


@given(
    case=cases(most_requests=40, holding=True, disturbed=True),
    happening=st.sampled_from(sorted(HIDDEN)),
    chance=st.floats(0, 1),
    at=st.integers(0, 60),
)
@settings(max_examples=80)
def test_nothing_is_known_before_it_can_be(
    case: Case, happening: str, chance: float, at: int
) -> None:
    n = len(case.cluster.instances)
    i, time = int(chance * (n - 1) + 0.5), at / 1000
    knowledge = case.knowledge.model_copy(
        update={
            "index": Index(source="snapshots", snapshots=Snapshots(interval=0.0101)),
            "telemetry": Telemetry(interval=0.0073),
            "replicas": Replicas(),
        }
    )
    clients = case.clients.model_copy(update={"leak": 0.0})  # all that ends is heard of
    # An autoscaler sees the truth, and all see what it does; so does a drain in good order.
    others = tuple(fault for fault in case.faults if fault.instances and i not in fault.instances)
    case = replace(case, knowledge=knowledge, autoscaler=None, faults=others, clients=clients)
    hidden = Fault(at=time, instances=(i,), **HIDDEN[happening])
    calm, troubled = watch(case), watch(replace(case, faults=(*others, hidden)))
    heard, whence = first_difference(calm, troubled)
    assert heard >= time
    assert heard == np.inf or i in whence
    for a, b in zip(calm, troubled, strict=False):
        if min(a.time, b.time) >= heard:
            break
        assert a.time == b.time
        checks = knowledge.health.interval * (knowledge.health.failures - 1)
        told = min(
            heard,
            next_turn(0.0101, i, n, time),
            next_turn(0.0073, i, n, time),
            next_turn(knowledge.health.interval, i, n, time) + checks,
        )
        if a.time < told:
            assert_same_decision(a, b)


def assert_same_decision(a: Shown, b: Shown) -> None:
    for name in set(a.request.dtype.names or ()) - {"slot"}:  # any number that is free
        assert a.request[name] == b.request[name], name
    assert_same(a.instances, b.instances)
    assert a.events == b.events


# --- what a learner sees ----------------------------------------------------------------------

INTERVAL, HEALTH = 0.05, 0.1
VICTIM = 3


def observed(faults: tuple[Fault, ...]) -> list[tuple[float, NDArray[Any], NDArray[Any]]]:
    """Times, observations and masks of an episode in which the victim has a full cache by 1 s.

    Until 0.5 s all eight instances get requests, then only the first three, but for the first one
    after 1.03 s.
    """
    scenario = load_scenario("shared-prompts-8")
    workload = scenario.workload.model_copy(
        update={"output_tokens": 12, "num_groups": 8, "num_requests": 200}
    )
    knowledge = Knowledge(
        index=Index(source="snapshots", snapshots=Snapshots(interval=INTERVAL)),
        telemetry=Telemetry(interval=INTERVAL),
        health=Health(interval=HEALTH, failures=3),
    )
    env = PrefixRoutingEnv(
        scenario.model_copy(
            update={"workload": workload, "knowledge": knowledge, "faults": faults}
        ),
        rate=100.0,
    )
    observation, info = env.reset(seed=0)
    found, victim_had_one, done, k = [], False, False, 0
    while not done:
        flat = np.concatenate([observation["request"], observation["instances"]])
        found.append((info["time"], flat, info["action_mask"]))
        action = k % 8 if info["time"] < 0.5 else k % 3
        if info["time"] > 1.03 and not victim_had_one:
            action, victim_had_one = VICTIM, True
        observation, _, done, _, info = env.step(np.int64(action))
        k += 1
    return found


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        # Its next report is at 0.05 · 3/8 s and every 0.05 s.
        (Fault(kind="flush", at=1.0, instances=(VICTIM,)), 1.01875),
        # An idle one that no more reports has nothing new to report until the next request. Of that
        # one nothing is heard (or late), be it the first token or the next poll.
        (Fault(kind="silence", at=1.0, instances=(VICTIM,)), 1.03),
        (Fault(kind="crash", at=1.0, instances=(VICTIM,)), 1.03),
        (Fault(kind="slow", at=1.0, instances=(VICTIM,), factor=500.0), 1.03),
    ],
)
def test_an_observation_changes_when_the_news_arrives(fault: Fault, told: float) -> None:
    calm, troubled = observed(()), observed((fault,))
    differs = None
    for (time, a, mask_a), (other, b, mask_b) in zip(calm, troubled, strict=True):
        assert time == other  # arrivals do not depend on answers here
        if differs is None and not (np.array_equal(a, b) and np.array_equal(mask_a, mask_b)):
            differs = time
    assert differs is not None
    assert told <= differs < told + 0.08


def test_a_mask_changes_when_the_last_check_has_failed() -> None:
    # Checks of the victim: 0.1 · 3/8 s and every 0.1 s; the third after 1 s is at 1.2375 s.
    crash = Fault(kind="crash", at=1.0, instances=(VICTIM,))
    for time, _, mask in observed((crash,)):
        assert mask.tolist() == [i != VICTIM or time < 1.2375 for i in range(8)]
