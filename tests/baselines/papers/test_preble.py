"""Preble's E2: decisions worked by hand, its public code's defects, and what its memory keeps."""

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_tapes import Sent, play
from made_views import BLOCK, cluster_of, decide, one_view, router_for, view_of

from prefixgym.baselines.papers.preble import Preble
from prefixgym.baselines.prefill_time import A6000_MISTRAL_7B, prefill_ms
from prefixgym.baselines.prefix_tree import ROOT
from prefixgym.baselines.router import Router
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.view.recency import contains
from prefixgym.envs.view.view import ENDED, FIRST_TOKEN, View

Event = tuple[float, int, int, int]  # time, slot, instance, kind


def preble(num_gpus: int, kv_blocks: int = 100, **parameters: Any) -> Preble:
    """A fresh router; made clusters have no cost profiles."""
    parameters = {"prefill_model": "a6000_mistral_7b", "decode_seconds": 0.0, **parameters}
    router = router_for(num_gpus, "preble", **parameters)
    instance = InstanceSpec(cast(Any, None), kv_blocks)
    router.reset(ClusterSpec((instance,) * num_gpus, BLOCK), [0])
    return cast(Preble, router)


def with_events(view: View, events: list[Event]) -> View:
    return view_of(view.cluster, view.requests, view.block_ids, view.instances, [events])


def send(
    router: Router,
    ids: list[int],
    time: float,
    slot: int = 0,
    events: list[Event] | None = None,
    **columns: Any,
) -> int:
    num_gpus = len(cast(Preble, router)._memory.capacity)
    view = one_view(num_gpus, ids, {"time": time, "slot": slot}, **columns)
    return decide(router, with_events(view, events or []))


def seconds(new_blocks: int, context_blocks: int) -> float:
    return prefill_ms(A6000_MISTRAL_7B, new_blocks * BLOCK, context_blocks * BLOCK) / 1000


def load(router: Preble) -> list[float]:
    """L without decoding, s."""
    return [round(ns / 1e9, 6) for ns in router._memory.prefill[0].tolist()]


# --- exploit and explore -----------------------------------------------------------------------


def test_more_cached_than_missed_is_exploited_else_explored() -> None:
    router = preble(3)
    assert send(router, [1, 2], 0.0) == 0
    assert send(router, [1, 2, 3], 1.0) == 0  # 2 cached, 1 missed
    assert load(router) == [round(seconds(2, 2) + seconds(1, 3), 6), 0, 0]
    # 1 cached, 1 missed: not strictly more. L = 0 elsewhere, where more has to be computed.
    assert send(router, [1, 5], 2.0) == 1
    assert load(router)[1:] == [round(seconds(2, 2), 6), 0]


def test_exploring_weighs_load_against_what_is_missed() -> None:
    router = preble(2)
    long = list(range(10, 14))
    assert send(router, long, 0.0) == 0
    assert send(router, [1], 0.1) == 1
    # Half is cached on 0: L_0 = P(4), to which 4 of 8 come; L_1 = P(1), and all 8.
    assert seconds(4, 4) + seconds(4, 8) < seconds(1, 1) + seconds(8, 8)
    assert send(router, [*long, *range(50, 54)], 0.3) == 0
    # Where only 3 are cached it is the other way round.
    assert seconds(4, 4) + seconds(4, 8) + seconds(5, 8) > seconds(1, 1) + seconds(8, 8)
    assert send(router, [*long[:3], *range(60, 65)], 0.4) == 1


def test_of_several_holders_the_least_loaded_wins_and_ties_go_to_the_first() -> None:
    router = preble(3)
    assert send(router, [1, 2], 0.0, available=[1, 0, 0]) == 0
    assert send(router, [1, 2], 0.1, available=[0, 0, 1]) == 2
    assert load(router)[0] == load(router)[2]
    assert send(router, [1, 2], 0.2) == 0
    assert send(router, [1, 2, 3], 0.3) == 0
    assert send(router, [1, 2, 4], 0.4) == 2
    assert send(router, [1, 2, 3], 0.5, available=[0, 1, 1]) == 2  # 0 has more, but is down


def test_exploiting_returns_the_gpu_and_not_its_place_among_the_candidates() -> None:
    router = preble(4)
    homes = {k: send(router, [10 * k, 10 * k + 1], k / 10) for k in range(4)}
    assert homes == {0: 0, 1: 1, 2: 2, 3: 3}
    # The candidates are [2], then [3]: the public code would return 0 for both.
    assert send(router, [20, 21, 99], 1.0) == 2
    assert send(router, [30, 31, 98], 1.1) == 3


def test_prefills_of_361_to_383_tokens_are_not_free() -> None:
    router = preble(2)
    view = one_view(2, [1], {"prompt_tokens": 370.0})
    assert decide(router, view) == 0
    # The public code's fit says -7 ms, so that the GPU would look less loaded than an idle one.
    assert load(router)[0] == pytest.approx(22.32 / 0.9 / 1000, abs=1e-6)
    assert send(router, [2], 0.1) == 1


# --- M -----------------------------------------------------------------------------------------


def test_eviction_cost_counts_what_the_gpu_would_lose() -> None:
    def choose(enable_eviction: bool) -> int:
        router = preble(2, kv_blocks=4, enable_eviction=enable_eviction)
        assert send(router, [1, 2], 0.0) == 0
        assert send(router, [5, 6, 7], 0.1) == 1
        assert send(router, [3], 0.2) == 0
        assert send(router, [4], 0.3) == 0
        return send(router, [8, 9], 0.4)

    first, second = seconds(2, 2) + 2 * seconds(1, 1), seconds(3, 3)
    assert second < first
    assert choose(False) == 1
    # 0 is full and would lose [1, 2], which one of its three requests used; 1 would lose all.
    assert first + seconds(2, 2) / 3 < second + seconds(3, 3)
    assert choose(True) == 0


def test_a_gpu_caches_up_to_its_capacity_tails_first() -> None:
    router = preble(1, kv_blocks=4)
    send(router, [1, 2, 3], 0.0)
    send(router, [1, 5], 0.1)
    m = router._memory
    assert m.tokens[0, 0] == 4 * BLOCK
    send(router, [7], 0.2)  # [2, 3] goes, the shared [1] stays
    assert m.tokens[0, 0] == 3 * BLOCK
    before = load(router)[0]
    send(router, [1, 2, 3], 0.3)  # 1 cached
    assert load(router)[0] - before == pytest.approx(seconds(2, 3), abs=1e-6)


# --- window, decoding, rebalance, autoscale ----------------------------------------------------


def test_load_leaves_the_window() -> None:
    router = preble(2)
    assert send(router, [1, 2], 0.0) == 0
    assert send(router, [3], 179.9) == 1
    assert send(router, [4], 180.0) == 0
    assert load(router)[0] == round(seconds(1, 1), 6)


def test_decode_time_is_the_mean_of_those_that_ended() -> None:
    router = preble(2, decode_seconds=2.0)
    assert send(router, [1], 0.0, slot=0) == 0
    assert router._memory.decode_mean[0] == 2e9
    assert send(router, [2], 0.1, slot=1) == 1
    events: list[Event] = [(1.0, 0, 0, FIRST_TOKEN), (4.0, 0, 0, ENDED)]
    assert send(router, [3], 5.0, slot=2, events=events) == 0
    assert router._memory.decode_mean[0] == 3e9
    events = [(6.0, 2, 0, FIRST_TOKEN), (7.0, 2, 0, ENDED), (8.0, 1, 1, ENDED)]
    send(router, [4], 9.0, slot=0, events=events)  # the last one ended without an answer
    assert router._memory.decode_mean[0] == 2e9
    send(router, [5], 500.0, slot=1)
    assert router._memory.decode_mean[0] == 2e9


def test_heavy_decoding_attracts_explorers_only_if_asked_for() -> None:
    for ratio, home in [(1.0, 1), (0.5, 0)]:
        router = preble(2, decode_seconds=0.2, decode_ratio=ratio)
        assert send(router, [1], 0.0) == 0
        # Shares of decoding: 0.2 / (0.2 + 0.067) = 0.75 and, on an idle GPU, none.
        assert send(router, [2], 0.1) == home


def test_rebalance_sends_exploiters_of_the_heaviest_to_the_lightest() -> None:
    def homes(requests_per_gpu: int, th_bal: float = 1.5) -> list[int]:
        router = preble(3, decode_seconds=1.0, requests_per_gpu=requests_per_gpu, th_bal=th_bal)
        first = [send(router, [k, 10 + k], k / 10) for k in (1, 2, 3)]
        assert first == [0, 1, 2]
        return [send(router, [1, 11], 1.0 + k / 10) for k in range(3)]

    # L: 1.13 each; then 2.13 against 1.13 is too much, and 1 gets a copy. It had to compute that,
    # so 0 is not the heaviest any more.
    assert homes(1) == [0, 1, 0]
    assert homes(1, th_bal=2.0) == [0, 0, 1]
    assert homes(50) == [0, 0, 0]


def test_a_prefix_whose_queueing_time_doubled_is_copied_to_the_lightest() -> None:
    def choose(newer: float, at: float = 70.0) -> int:
        router = preble(3, window=100.0)
        assert send(router, [1, 2], 0.0, slot=0) == 0
        events: list[Event] = [(seconds(2, 2) + 0.1, 0, 0, FIRST_TOKEN)]
        assert send(router, [9], 1.0, slot=1, events=events) == 1
        assert send(router, [1, 2, 3], 60.0, slot=2) == 0
        events = [(60.0 + seconds(1, 3) + newer, 2, 0, FIRST_TOKEN)]
        return send(router, [1, 2, 4], at, slot=3, events=events)

    assert choose(0.201) == 2
    assert choose(0.19) == 0
    # At 101 s the first request has left the window, so there is nothing to compare with.
    assert choose(0.9, at=101.0) == 0


def test_a_copy_is_followed_by_no_other_for_half_a_window() -> None:
    router = preble(4, window=100.0)
    send(router, [1, 2], 0.0, slot=0)
    send(router, [9], 1.0, slot=1, events=[(seconds(2, 2) + 0.1, 0, 0, FIRST_TOKEN)])
    send(router, [1, 2], 60.0, slot=2)
    slow: list[Event] = [(61.0, 2, 0, FIRST_TOKEN)]
    assert send(router, [1, 2, 4], 70.0, slot=3, events=slow) == 2
    assert send(router, [1, 2, 5], 70.1, slot=4) == 0  # the holders 0 and 2; 3 is not asked
    memory = router._memory
    assert [contains(memory.cached, 0, gpu, 1) for gpu in range(4)].count(True) <= 2


# --- memory ------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=4),
            st.floats(0, 40),
            st.sampled_from(["none", "first", "end", "both"]),
        ),
        max_size=40,
    )
)
def test_memory_is_consistent_and_bounded(steps: list[tuple[list[int], float, str]]) -> None:
    router = preble(2, kv_blocks=5, decode_seconds=1.0, requests_per_gpu=2)
    time, free, in_flight, answered = 0.0, list(range(63)), dict[int, int](), set[int]()
    for letters, gap, heard in steps:
        events: list[Event] = []
        slot = next(iter(in_flight), None)
        if slot is not None:
            if heard in ("first", "both") and slot not in answered:
                events.append((time + gap / 2, slot, in_flight[slot], FIRST_TOKEN))
                answered.add(slot)
            if heard in ("end", "both"):
                events.append((time + gap, slot, in_flight.pop(slot), ENDED))
                answered.discard(slot)
                free.append(slot)
        time += gap
        # The id of a block is the path that leads to it, read as a number.
        ids = np.cumsum((np.array(letters, np.int64) + 1) * 4 ** np.arange(len(letters)))
        slot = free.pop(0)
        in_flight[slot] = send(router, ids.tolist(), time, slot, events)
        check(router, time)
    # Of what is over only the cached nodes remain.
    ends: list[Event] = [(time, slot, gpu, ENDED) for slot, gpu in in_flight.items()]
    for k in range(0, len(ends), 4):
        send(router, [1], time, 63, ends[k : k + 4])
        ends.append((time, 63, 0, ENDED))
    send(router, [1], time + 1000, 63)
    send(router, [1], time + 2000, 63, [(time + 2000, 63, 0, ENDED)])
    check(router, time + 2000)
    m = router._memory
    in_use = m.tree.nodes.shape[1] - m.tree.num_spare[0]
    assert in_use <= 1 + 5 * 2
    assert m.num_requests[0].sum() == 1


def check(router: Preble, now: float, window: float = 180.0) -> None:
    m = router._memory
    nodes = range(m.tree.nodes.shape[1])
    spare = set(m.tree.spare[0, : m.tree.num_spare[0]].tolist())
    for gpu in range(2):
        held = [node for node in nodes if contains(m.cached, 0, gpu, node)]
        assert not spare & set(held)
        assert m.tokens[0, gpu] == sum(m.tree.nodes[0, node]["tokens"] for node in held)
        assert m.tokens[0, gpu] <= m.capacity[gpu]
        for node in held:  # with a node all above it
            parent = m.tree.nodes[0, node]["parent"]
            assert parent == ROOT or parent in held
    log = m.requests
    records = [log.records[0, (log.head[0] + k) % log.records.shape[1]] for k in range(log.size[0])]
    assert all(record["time"] > now - window for record in records)
    for gpu in range(2):
        mine = [record for record in records if record["instance"] == gpu]
        assert m.num_requests[0, gpu] == len(mine) == m.uses[0, ROOT, gpu]
        assert m.prefill[0, gpu] == sum(record["amount"] for record in mine)
    for node in nodes:
        if node not in spare and node != ROOT:
            assert m.stats[0, node]["references"] >= 0


def test_in_the_simulator_every_first_token_and_end_is_heard() -> None:
    rng = np.random.default_rng(0)
    requests, time = list[Sent](), 0.0
    for k in range(300):
        time += rng.exponential(0.05)
        shared = int(rng.zipf(1.5)) % 20
        requests.append(Sent(time, [*range(100 * shared, 100 * shared + 3), 10_000 + k], 20))
    router = Preble(window=4.0, requests_per_gpu=5)
    decisions = 0

    def look(view: View) -> None:
        nonlocal decisions
        decisions += 1
        if decisions > 1:
            check(router, requests[decisions - 2].time, router.window)
            m = router._memory
            unanswered = (m.flights[0]["node"] > ROOT).sum()
            assert unanswered >= view.instances["prefill_requests"].sum()

    outcomes = play(router, requests, 2, kv_blocks=60, look=look)
    assert decisions == 300
    # The mean over its last window is about that of all: decoding 19 tokens, in batches of few.
    measured = (outcomes["tpot"] * (outcomes["output_tokens"] - 1)).mean()
    assert abs(router._memory.decode_mean[0] / 1e9 - measured) < 0.2 * measured
    # Half the prompts would be found where they are sent.
    assert (outcomes["hit_tokens"].sum() / outcomes["prompt_tokens"].sum()) > 0.5


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"prefill_model": "h200"}, "prefill_model: found 'h200', allowed: profile, a6000"),
        ({"th_bal": 0.5}, "preble.th_bal: found 0.5, allowed: at least 1"),
        ({"window": 0.0}, "preble.window: found 0.0, allowed: above 0"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        router_for(2, "preble", **parameters).reset(cluster_of(2), [0])
