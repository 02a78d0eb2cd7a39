"""Faults and clients in cases small enough to work out by hand, on instances of 1 ms steps.

A prompt takes one step of 1 ms, every further token another one; a step with a prompt beside
decoding requests takes 2 ms. So a request of 8 tokens that arrives at 0 ends at 8 ms.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from comparison import assert_equals_reference
from numpy.typing import ArrayLike, NDArray
from random_cases import Case, RequestDraw, build_tape
from reference_clients import client_key
from reference_simulation import ReferenceSimulation

from prefixgym.envs.clients import Clients
from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.cluster.faults import Autoscaler, Fault, Kind
from prefixgym.envs.cluster.profiles import constant_profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.rng import uniform
from prefixgym.envs.view.knowledge import Health, Index, Knowledge, Replicas, Snapshots, Telemetry
from prefixgym.envs.view.view import (
    CANCELLED,
    DISPATCHED,
    ENDED,
    FAILED,
    FIRST_TOKEN,
    HOLD,
    STARTED,
)

FINISHED, REJECTED, LOST, GONE = range(4)  # of OUTCOME; events have FAILED and CANCELLED


def request(at: float, output_tokens: int = 8, *, prefix_of: int = 0) -> RequestDraw:
    """Arrives `at` ms after the one before; has the prompt of the request `prefix_of` rows up."""
    return RequestDraw(
        gap=round(at * TICKS_PER_MS),
        parent_back=0,
        join_back=0,
        base_back=prefix_of,
        shared_blocks=99,
        prompt_tokens=9,
        output_tokens=output_tokens,
        cacheable=1.0,
        partial_id=True,
        slo_class=0,
    )


def play(
    requests: Sequence[RequestDraw],
    *faults: Fault,
    actions: Sequence[int] | None = None,
    instances: int = 1,
    kv_blocks: tuple[int, ...] = (),
    max_sequences: int = 8,
    clients: Clients | None = None,
    knowledge: Knowledge | None = None,
    autoscaler: Autoscaler | None = None,
    hold: dict[str, Any] | None = None,
) -> ReferenceSimulation:
    """An episode on which simulation and reference agree; all go to instance 0 by default."""
    profile, sizes = constant_profile(1.0, 1.0), kv_blocks or (4000,) * instances
    specs = tuple(InstanceSpec(profile, size, max_sequences=max_sequences) for size in sizes)
    clients = clients or Clients()
    decisions = len(requests) * (1 + clients.retries)
    chosen = np.zeros((1, decisions), np.int64)
    if actions is not None:
        chosen[0, : len(actions)] = actions
    orders = None
    if hold is not None:
        orders = np.zeros((1, decisions, len(sizes)), HOLD)
        for name, value in hold.items():
            orders[name] = value
    case = Case(
        ClusterSpec(specs, 4),
        knowledge or Knowledge(),
        (build_tape(requests, 4),),
        chosen,
        orders,
        faults,
        autoscaler,
        clients,
    )
    return assert_equals_reference(case)


def by_row(episode: ReferenceSimulation) -> NDArray[np.void]:
    return np.sort(episode.outcomes, order="row")


def ms(seconds: ArrayLike) -> list[float]:
    return [
        round(value * 1000, 6) for value in np.atleast_1d(np.asarray(seconds, np.float64)).tolist()
    ]


def heard(episode: ReferenceSimulation) -> list[tuple[float, int, int]]:
    """Time (ms), row and kind of all that was shown at decisions."""
    return [
        (round(time * 1000, 6), row, kind)
        for decision in episode.decisions
        for time, row, _, kind in decision.events
    ]


# --- restarts and crashes ---------------------------------------------------------------------


def test_without_faults() -> None:
    (outcome,) = play([request(0)]).outcomes
    assert (outcome["ttft"], outcome["end"], outcome["attempts"]) == (0.001, 0.008, 1)


def test_a_restart_fails_what_is_in_flight() -> None:
    episode = play([request(0)], Fault(kind="restart", at=0.0055, lasts=0.002))
    (outcome,) = episode.outcomes
    assert (outcome["status"], outcome["end"], outcome["good"]) == (LOST, 0.0055, 0)
    assert np.isnan(outcome["ttft"])  # though the first token came at 1 ms
    # Five steps have ended; half of the sixth counts as work.
    assert episode.totals["steps"] == 5
    assert episode.totals["busy_seconds"] == 0.0055


def test_a_retry_goes_on_until_the_instance_is_back() -> None:
    # Fails at 5.5 ms, tries at 6.5 ms (refused: down until 7.5 ms) and at 7.5 ms, served at once.
    clients = Clients(retries=2, retry_delay=0.001)
    episode = play([request(0)], Fault(kind="restart", at=0.0055, lasts=0.002), clients=clients)
    (outcome,) = episode.outcomes
    assert (outcome["status"], outcome["attempts"], outcome["good"]) == (FINISHED, 3, 1)
    assert ms(outcome["ttft"]) == [8.5]  # from the first arrival
    assert ms(outcome["end"]) == [15.5]
    assert ms(outcome["tpot"]) == [1.0]
    assert outcome["hit_tokens"] == 0  # the restarted cache is empty
    assert [d.request["attempt"] for d in episode.decisions] == [0, 1, 2]
    assert [d.instances["available"].tolist() for d in episode.decisions] == [[1], [0], [1]]
    assert episode.totals["prefilled_tokens"] == 18
    assert ms(episode.totals["busy_seconds"]) == [13.5]
    assert heard(episode) == [
        (0, 0, DISPATCHED),
        (0, 0, STARTED),
        (1, 0, FIRST_TOKEN),
        (5.5, 0, FAILED),
        (6.5, 0, DISPATCHED),
        (6.5, 0, FAILED),
    ]


def test_a_prefill_cut_short_counts_as_prefilled() -> None:
    episode = play([request(0)], Fault(kind="restart", at=0.0005))
    assert episode.totals["prefilled_tokens"] == 9
    assert episode.totals["steps"] == 0
    assert ms(episode.totals["busy_seconds"]) == [0.5]


@pytest.mark.parametrize(
    ("at", "found"),
    # Checks at 0, 2, 4, … ms. Two must fail, and one at the instant of the crash does not.
    [(0.0055, 8.0), (0.006, 10.0), (0.0061, 10.0)],
)
def test_a_crash_is_found_by_failing_health_checks(at: float, found: float) -> None:
    # The second request reaches the dead instance at 7 ms, the third refuses to believe it is dead.
    episode = play(
        [request(0), request(7), request(4.5)],
        Fault(kind="crash", at=at),
        knowledge=Knowledge(health=Health(interval=0.002, failures=2)),
    )
    outcomes = by_row(episode)
    assert outcomes["status"].tolist() == [LOST, LOST, LOST]
    assert ms(outcomes["end"]) == [found, found, 11.5]
    assert [d.instances["available"].tolist() for d in episode.decisions] == [[1], [1], [0]]
    assert ms(episode.totals["busy_seconds"]) == ms(at)


def test_a_crashed_instance_that_is_back_breaks_its_connections() -> None:
    # Nobody has noticed: the retry at 6.5 ms goes there again, and finds it empty.
    episode = play(
        [request(0)],
        Fault(kind="crash", at=0.0055, lasts=0.001),
        clients=Clients(retries=1),
    )
    (outcome,) = episode.outcomes
    assert (ms(outcome["ttft"]), ms(outcome["end"])) == ([7.5], [14.5])
    assert [d.instances["available"].tolist() for d in episode.decisions] == [[1], [1]]


def test_one_that_was_found_dead_is_trusted_again_after_a_check() -> None:
    # Checks every 2 ms; found at 4 ms, back at 5 ms, checked at 6 ms.
    shots = [request(0, 1), request(4.5, 1), request(1, 1), request(0.5, 1)]
    episode = play(
        shots,
        Fault(kind="crash", at=0.0025, lasts=0.0025),
        knowledge=Knowledge(health=Health(interval=0.002, failures=1)),
    )
    assert [ms(d.request["time"])[0] for d in episode.decisions] == [0, 4.5, 5.5, 6]
    assert [d.instances["available"].tolist() for d in episode.decisions] == [[1], [0], [0], [1]]
    assert by_row(episode)["status"].tolist() == [FINISHED, LOST, FINISHED, FINISHED]


def test_every_router_finds_out_by_itself() -> None:
    # Two routers check two instances every 8 ms, router w instance i at 8·(2i + w)/4 ms: the crash
    # of instance 1 at 1 ms is found by router 0 at 4 ms and by router 1 at 6 ms.
    episode = play(
        [request(0, 1), *[request(0.5, 1)] * 23],
        Fault(kind="crash", at=0.001, instances=(1,)),
        instances=2,
        actions=[1] * 24,
        knowledge=Knowledge(health=Health(interval=0.008, failures=1), replicas=Replicas(count=2)),
    )
    for decision in episode.decisions:
        time = ms(decision.request["time"])[0]
        assert decision.instances["available"].tolist() == [1, time < (4, 6)[decision.replica]]
    for outcome in by_row(episode)[2:]:  # those from 1 ms on hang until their router knows
        found = max(ms(outcome["arrival"])[0], (4, 6)[outcome["replica"]])
        assert (outcome["status"], ms(outcome["end"])) == (LOST, [found])
    assert set(episode.outcomes["replica"].tolist()) == {0, 1}


def test_a_crash_takes_the_queue_after_the_batch() -> None:
    # Two in the batch, two in the queue, one more that comes to the dead instance: they fail in
    # that order when the instance is back.
    episode = play(
        [*[request(0)] * 4, request(3)],
        Fault(kind="crash", at=0.002, lasts=0.003),
        max_sequences=2,
    )
    assert episode.outcomes["row"].tolist() == [0, 1, 2, 3, 4]
    assert ms(episode.outcomes["end"]) == [5] * 5


def test_all_instances_down_for_ever() -> None:
    episode = play(
        [*[request(1)] * 3],
        Fault(kind="restart", at=0.0015),
        instances=2,
        actions=[0, 1, 0, 1, 0, 1],
        clients=Clients(retries=1, retry_delay=0.002),
    )
    assert by_row(episode)["status"].tolist() == [LOST] * 3
    assert ms(by_row(episode)["end"]) == [3.5, 4, 5]
    assert by_row(episode)["attempts"].tolist() == [2, 2, 2]


# --- drains, joins, the autoscaler ------------------------------------------------------------


def test_a_drained_instance_finishes_what_it_has() -> None:
    # Drained at 2 ms with 4 tokens to make until 4 ms, then away until 7 ms.
    episode = play(
        [request(0, 4), request(5, 1), request(2, 1)],
        Fault(kind="drain", at=0.002, lasts=0.003),
    )
    outcomes = by_row(episode)
    assert outcomes["status"].tolist() == [FINISHED, LOST, FINISHED]
    assert ms(outcomes["end"]) == [4, 5, 8]
    assert [d.instances["available"].tolist() for d in episode.decisions] == [[1], [0], [1]]


def test_grace_ends() -> None:
    # The step that ends with the grace still counts; then the fourth token never comes.
    episode = play([request(0, 4)], Fault(kind="drain", at=0.002, grace=0.001))
    assert episode.outcomes["status"].tolist() == [LOST]
    assert ms(episode.outcomes["end"]) == [3]
    assert episode.totals["steps"] == 3


def test_an_idle_instance_drains_at_once_and_a_busy_one_takes_what_still_comes() -> None:
    episode = play(
        [request(0, 4), request(3, 4), request(0, 4)],
        Fault(kind="drain", at=0.002),
        instances=2,
        actions=[0, 0, 1],
    )
    assert by_row(episode)["status"].tolist() == [FINISHED, FINISHED, LOST]
    # Second: a step of 2 ms with the last token of the first; then three of 1 ms.
    assert ms(by_row(episode)["end"]) == [5, 8, 3]


def test_a_restart_ends_a_drain() -> None:
    # Back at 3 ms, and the drain's grace at 6 ms means nothing any more.
    episode = play(
        [request(0, 4), request(4, 4)],
        Fault(kind="drain", at=0.001, grace=0.005),
        Fault(kind="restart", at=0.002, lasts=0.001),
    )
    assert by_row(episode)["status"].tolist() == [LOST, FINISHED]
    assert ms(by_row(episode)["end"]) == [2, 8]


@pytest.mark.parametrize("kind", ["restart", "crash"])
def test_one_that_has_drained_is_gone_before_what_happens_at_that_instant(kind: Kind) -> None:
    # Instance 0 makes its last token at 4 ms, 1 has nothing to do when it is drained at 2 ms. Both
    # are gone for ever by the time they would fail and come back 2 ms later; 2 was not drained.
    episode = play(
        [request(0, 4), request(7, 1), request(0, 1), request(0, 1)],
        Fault(kind="drain", at=0.002, instances=(0, 1)),
        Fault(kind=kind, at=0.002, lasts=0.002, instances=(1, 2)),
        Fault(kind=kind, at=0.004, lasts=0.002, instances=(0,)),
        instances=3,
        actions=[0, 0, 1, 2],
    )
    assert [d.instances["available"].tolist() for d in episode.decisions[1:]] == [[0, 0, 1]] * 3
    assert by_row(episode)["status"].tolist() == [FINISHED, LOST, LOST, FINISHED]
    assert ms(by_row(episode)["end"]) == [4, 7, 7, 8]


def test_an_autoscaler_calls_for_one_that_has_just_drained() -> None:
    # At 10 ms the load is below 1 and instance 1 is drained; its request ends at 20 ms, when four
    # wait for instance 0: it is called for at once, and serves from 23 ms on.
    episode = play(
        [request(0, 20), request(15, 30), *[request(0, 30)] * 3, request(7.5, 1), request(1, 1)],
        instances=2,
        actions=[1, 0, 0, 0, 0, 1, 1],
        autoscaler=Autoscaler(first=2, interval=0.01, high=2, low=0.9, startup=0.003),
    )
    shown = [d.instances["available"].tolist() for d in episode.decisions]
    assert shown == [[1, 1]] + [[1, 0]] * 5 + [[1, 1]]


def test_an_instance_joins() -> None:
    episode = play([request(2, 1), request(1, 1)], Fault(kind="join", at=0.003))
    assert by_row(episode)["status"].tolist() == [LOST, FINISHED]
    assert ms(by_row(episode)["end"]) == [2, 4]
    assert [d.instances["available"].tolist() for d in episode.decisions] == [[0], [1]]


def test_a_rolling_restart_takes_one_at_a_time() -> None:
    # Instance 2 at 1 ms, 0 at 3 ms, 1 at 5 ms, 1 ms each.
    episode = play(
        [request(0.5, 1), *[request(1, 1)] * 6],
        Fault(kind="restart", at=0.001, lasts=0.001, stagger=0.002, instances=(2, 0, 1)),
        instances=3,
        actions=[0, 0, 1, 1, 0, 0, 0],
    )
    assert [np.flatnonzero(d.instances["available"] == 0).tolist() for d in episode.decisions] == [
        *([], [2], [], [0], [], [1], [])
    ]
    assert (episode.outcomes["status"] == FINISHED).all()


def test_an_autoscaler_follows_the_load() -> None:
    # Four requests at once on the one instance: at 10 ms (above 2 each) the other one is called and
    # comes at 15 ms; at 20 ms the four have ended (below 1 each) and it is drained at once.
    scaler = Autoscaler(first=1, interval=0.01, high=2, low=1, startup=0.005)
    times = [request(12, 1), request(3, 1), request(4, 1), request(1, 1)]
    episode = play(
        [*[request(0, 15)] * 4, *times],
        actions=[0, 0, 0, 0, 1, 1, 1, 1],
        instances=2,
        autoscaler=scaler,
    )
    shown = [d.instances["available"].tolist() for d in episode.decisions]
    assert shown == [[1, 0]] * 5 + [[1, 1], [1, 1], [1, 0]]
    assert by_row(episode)["status"].tolist()[4:] == [LOST, FINISHED, FINISHED, LOST]


# --- slow, flushed and silent instances -------------------------------------------------------


def test_a_slow_instance_is_slow_from_its_next_step_on() -> None:
    # From 2.5 to 6.5 ms: steps end at 1, 2, 3, then 5, 7, then 8, 9, 10 ms.
    episode = play([request(0)], Fault(kind="slow", at=0.0025, lasts=0.004, factor=2))
    assert ms(episode.outcomes["end"]) == [10]
    assert ms(episode.totals["busy_seconds"]) == [10]


def test_routers_expect_nominal_speed() -> None:
    episode = play([request(0), request(5)], Fault(kind="slow", at=0, factor=3))
    assert [ms(d.instances["prefill_seconds"]) for d in episode.decisions] == [[1], [1]]


def test_a_flush_spares_what_is_in_use() -> None:
    # Row 0 is in the batch until 8 ms. The flush at 3 ms spares its blocks, the one at 9 ms not.
    again = [request(4, 1, prefix_of=1), request(6, 1, prefix_of=2), request(1, 1, prefix_of=3)]
    episode = play(
        [request(0), *again], Fault(kind="flush", at=0.003), Fault(kind="flush", at=0.009)
    )
    assert by_row(episode)["hit_tokens"].tolist() == [0, 8, 0, 8]


def test_a_silent_publisher_serves() -> None:
    # Polled at 0, 2, 4, … ms, with one request in the batch from 1 to 9 ms; the polls at 2 and 4 ms
    # find nobody.
    shots = [request(1), *[request(1.5, 1)] * 6]
    episode = play(
        shots,
        Fault(kind="silence", at=0.0015, lasts=0.003),
        actions=[0, 1, 1, 1, 1, 1, 1],
        instances=2,
        knowledge=Knowledge(telemetry=Telemetry(interval=0.002)),
    )
    assert [ms(d.request["time"])[0] for d in episode.decisions] == [1, 2.5, 4, 5.5, 7, 8.5, 10]
    assert [d.instances["running"][0] for d in episode.decisions] == [0, 0, 0, 0, 1, 1, 0]
    assert by_row(episode)["status"].tolist() == [FINISHED] * 7


# --- clients ----------------------------------------------------------------------------------


def test_a_client_gives_up_in_the_queue() -> None:
    episode = play([request(0), request(0)], max_sequences=1, clients=Clients(timeout=0.002))
    outcomes = by_row(episode)
    assert outcomes["status"].tolist() == [FINISHED, GONE]
    assert ms(outcomes["end"]) == [8, 2]
    assert np.isnan(outcomes["ttft"][1])


def test_a_first_token_at_the_instant_of_the_timeout_is_in_time() -> None:
    (outcome,) = play([request(0)], clients=Clients(timeout=0.001)).outcomes
    assert (outcome["status"], outcome["ttft"]) == (FINISHED, 0.001)


def test_the_batch_is_left_at_the_end_of_a_step() -> None:
    # The client goes at 0.4 ms; the first token comes at 1 ms all the same, with the prompt's
    # blocks, which row 1 finds.
    clients = Clients(timeout=0.0004)
    episode = play([request(0), request(1, 1, prefix_of=1)], clients=clients)
    outcomes = by_row(episode)
    assert outcomes["status"].tolist() == [GONE, FINISHED]
    assert (ms(outcomes["ttft"][0]), ms(outcomes["end"][0])) == ([1], [1])
    assert outcomes["tpot"].tolist() == [0, 0]
    assert outcomes["good"].tolist() == [0, 1]
    assert outcomes["hit_tokens"].tolist() == [0, 8]
    assert heard(episode)[-2:] == [(1, 0, FIRST_TOKEN), (1, 0, CANCELLED)]


def test_one_that_finishes_in_its_last_step_has_finished() -> None:
    (outcome,) = play([request(0, 1)], clients=Clients(timeout=0.0004)).outcomes
    assert (outcome["status"], outcome["end"]) == (FINISHED, 0.001)


def test_a_client_goes_away_in_limbo() -> None:
    episode = play(
        [request(0)], Fault(kind="crash", at=0.0005), clients=Clients(timeout=0.002, retries=3)
    )
    (outcome,) = episode.outcomes
    assert (outcome["status"], outcome["end"], outcome["attempts"]) == (GONE, 0.002, 1)


@pytest.mark.parametrize("kind", ["restart", "crash"])
def test_one_that_has_gone_does_not_try_again(kind: Kind) -> None:
    # Gone at 0.4 ms, to be dropped with the end of the step at 1 ms; the server dies before.
    episode = play(
        [request(0), request(9, 1)],
        Fault(kind=kind, at=0.0006, lasts=0.001),
        clients=Clients(timeout=0.0004, retries=2),
    )
    (first, _) = by_row(episode)
    assert (first["status"], first["end"], first["attempts"]) == (GONE, 0.0006, 1)
    assert heard(episode)[-1] == (0.6, 0, CANCELLED)


def test_a_client_goes_away_while_its_retry_waits() -> None:
    clients = Clients(timeout=0.002, retries=3, retry_delay=0.005)
    episode = play([request(0)], Fault(kind="restart", at=0.0005), clients=clients)
    (outcome,) = episode.outcomes
    assert (outcome["status"], outcome["end"], outcome["attempts"]) == (GONE, 0.002, 1)


def test_a_timeout_is_counted_from_the_first_arrival() -> None:
    # Answered at 1 ms, failed at 2.5 ms: the retry has no first token by 3 ms, when its step ends,
    # so it leaves at the end of that one: at 3.5 ms.
    clients = Clients(timeout=0.003, retries=1)
    episode = play([request(0)], Fault(kind="crash", at=0.0015, lasts=0.001), clients=clients)
    (outcome,) = episode.outcomes
    assert (outcome["status"], outcome["attempts"]) == (GONE, 2)
    assert (ms(outcome["ttft"]), ms(outcome["end"])) == ([3.5], [3.5])


def test_when_clients_go_away_is_drawn() -> None:
    # They wait in a dead instance, and those who do not go away are told so after 30 s.
    clients = Clients(cancel=0.7, cancel_after=0.01)
    episode = play([request(0)] * 30, Fault(kind="crash", at=0), clients=clients)
    outcomes = by_row(episode)
    key, gone = client_key(0), outcomes["status"] == GONE
    assert 15 < gone.sum() < 28
    for row in range(30):
        assert gone[row] == (uniform(key, 2 * row) < 0.7)
        if gone[row]:
            after = -0.01 * np.log(1 - uniform(key, 2 * row + 1))
            assert outcomes["end"][row] == pytest.approx(after, abs=1e-12)


@pytest.mark.parametrize("leak", [0.0, 1.0])
def test_what_a_leak_leaves_in_the_ledger(leak: float) -> None:
    # Of the three, row 0 has its first token at 1 ms when it is cancelled, row 1 is in the queue.
    clients = Clients(cancel=1.0, cancel_after=1e-4, leak=leak)
    episode = play([request(0, 400), request(0), request(30, 1)], max_sequences=1, clients=clients)
    shown = episode.decisions[2].instances[0]
    left = {name: shown[name] for name in ("requests", "prefill_requests", "prefill_tokens")}
    kinds = [kind for _, _, kind in heard(episode)]
    if leak == 0.0:
        assert left == {"requests": 0, "prefill_requests": 0, "prefill_tokens": 0}
        assert kinds.count(CANCELLED) == 2
    else:
        assert left == {"requests": 2, "prefill_requests": 1, "prefill_tokens": 9}
        assert shown["context_tokens"] == 18
        assert shown["backlog_seconds"] == 0.001
        assert kinds.count(CANCELLED) == kinds.count(ENDED) == 0


def test_a_client_goes_away_while_the_router_holds_its_request() -> None:
    episode = play(
        [request(0), request(0), request(5, 1)],
        hold={"release": 0.01},
        clients=Clients(timeout=0.004),
    )
    outcomes = by_row(episode)
    assert outcomes["status"].tolist() == [GONE, GONE, GONE]
    assert ms(outcomes["end"]) == [4, 4, 9]
    assert episode.decisions[2].instances["held"].tolist() == [0]
    assert heard(episode) == [(4, 0, CANCELLED), (4, 1, CANCELLED)]


# --- several routers --------------------------------------------------------------------------


def test_each_router_knows_its_own_requests_and_those_of_the_last_exchange() -> None:
    # 20 long requests, one a millisecond; ledgers are exchanged every 5 ms.
    knowledge = Knowledge(replicas=Replicas(count=3, load_sync=0.005))
    episode = play([request(1, 400)] * 20, max_sequences=32, knowledge=knowledge)
    replicas = [decision.replica for decision in episode.decisions]
    assert set(replicas) == {0, 1, 2}
    for k, decision in enumerate(episode.decisions):  # decision k is at 1 + k ms
        exchanged = max(0, (1 + k) // 5 * 5 - 1)  # decisions before the last exchange
        others = sum(replica != decision.replica for replica in replicas[:exchanged])
        assert decision.instances["requests"][0] == others + replicas[:k].count(decision.replica)


def test_shares_of_the_traffic() -> None:
    episode = play(
        [request(1, 1)] * 400, knowledge=Knowledge(replicas=Replicas(count=2, shares=(3, 1)))
    )
    assert 0.68 < (episode.outcomes["replica"] == 0).mean() < 0.82


def test_the_index_of_a_dead_instance_is_forgotten_or_not() -> None:
    # Reported at 2 ms. The crash at 3 ms is found at 4 ms; back at 5 ms; next report at 6 ms.
    shots = [request(0, 1), *[request(t, 1, prefix_of=k + 1) for k, t in enumerate([3.5, 1, 2])]]
    for forget in (True, False):
        episode = play(
            shots,
            Fault(kind="crash", at=0.003, lasts=0.002),
            knowledge=Knowledge(
                index=Index(
                    source="snapshots", snapshots=Snapshots(interval=0.002), forget_down=forget
                ),
                health=Health(interval=0.002, failures=1),
            ),
        )
        shown = [decision.instances["hit_tokens"][0] for decision in episode.decisions]
        assert shown == [0, 8, 0 if forget else 8, 0]


def test_nothing_is_cached_before_the_first_request() -> None:
    # The smaller one has lost its (empty) cache before, and has told so.
    (decision,) = play(
        [request(5)],
        Fault(kind="restart", at=0.001, lasts=0.001, instances=(1,)),
        kv_blocks=(6, 5),
        knowledge=Knowledge(index=Index(source="snapshots", snapshots=Snapshots(interval=0.008))),
    ).decisions
    assert decision.instances["hit_tokens"].tolist() == [0, 0]


def test_a_request_follows_one_that_failed() -> None:
    rows = [request(0), replace(request(1), parent_back=1)]
    episode = play(rows, Fault(kind="restart", at=0.0025, lasts=0.0005))
    assert ms(by_row(episode)["arrival"]) == [0, 3.5]
    assert by_row(episode)["status"].tolist() == [LOST, FINISHED]
