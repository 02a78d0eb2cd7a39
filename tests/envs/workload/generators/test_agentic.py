"""Agents: growth and resets of a context, sub-agents and joins, steady state, published figures."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from session_tapes import check_session_tape

from prefixgym.envs.clock import to_seconds, to_ticks
from prefixgym.envs.cluster.profiles import profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.arrivals import Gamma, Poisson
from prefixgym.envs.workload.distributions import Geometric, LogNormal, Mixture
from prefixgym.envs.workload.generators.agentic import Agentic
from prefixgym.envs.workload.reuse import reuse
from prefixgym.envs.workload.tape import NO_ROW
from prefixgym.envs.workload.validate import validate

WORKLOADS = st.builds(
    Agentic,
    num_requests=st.integers(1, 150),
    arrivals=st.sampled_from([Poisson(5.0), Gamma(5.0, 3.0)]),
    block_size=st.sampled_from([1, 16, 64]),
    calls=st.sampled_from([1, 3, (2, 9), Geometric(5, high=40)]),
    think_time=st.sampled_from([0.0, 2.0, Mixture([7, 3], [(0.0, 1.0), LogNormal(20, 1)])]),
    system_tokens=st.sampled_from([0, 40, (0, 100)]),
    num_repositories=st.integers(1, 4),
    zipf=st.sampled_from([0.0, 1.2]),
    repository_tokens=st.sampled_from([0, 30, (0, 90)]),
    file_tokens=st.sampled_from([0, (0, 50)]),
    new_tokens=st.sampled_from([1, LogNormal(20, 1, high=80), Mixture([3, 1], [(1, 9), 80])]),
    output_tokens=st.sampled_from([1, (1, 90)]),
    reset_probability=st.sampled_from([0.0, 0.2, 1.0]),
    summary_tokens=st.sampled_from([0, (0, 60)]),
    max_prompt_tokens=st.sampled_from([400, 1000, 10**6]),
    spawn_probability=st.sampled_from([0.0, 0.3, 1.0]),
    sub_agents=st.sampled_from([1, (1, 4)]),
    sub_agent_calls=st.sampled_from([1, (1, 5)]),
    sub_agent_think_time=st.sampled_from([0.0, (0.0, 3.0)]),
    sub_agent_system_tokens=st.sampled_from([0, 70]),
    sub_agent_task_tokens=(st.sampled_from([1, (1, 30)])),
    sub_agent_new_tokens=st.sampled_from([1, (1, 80)]),
    nominal_ttft=st.sampled_from([0.0, 0.5]),
    nominal_tpot=st.sampled_from([0.0, 0.03]),
    closed_loop=st.booleans(),
)


@settings(max_examples=30, deadline=None)
@given(workload=WORKLOADS, seed=st.integers(0, 2**63))
def test_tapes_are_valid_and_within_their_bounds(workload: Agentic, seed: int) -> None:
    check_session_tape(workload, workload.tape(seed))


@settings(max_examples=25, deadline=None)
@given(workload=WORKLOADS, seed=st.integers(0, 2**63))
def test_the_same_seed_gives_the_same_bits(workload: Agentic, seed: int) -> None:
    tape, again = workload.tape(seed), replace(workload).tape(seed)
    assert tape.requests.tobytes() == again.requests.tobytes()
    assert tape.runs.tobytes() == again.runs.tobytes()


@settings(max_examples=30, deadline=None)
@given(workload=WORKLOADS, seed=st.integers(0, 2**63))
def test_closed_loop_served_in_nominal_time_is_the_open_loop(workload: Agentic, seed: int) -> None:
    opened = replace(workload, closed_loop=False).tape(seed)
    closed = replace(workload, closed_loop=True).tape(seed)
    assert opened.runs.tobytes() == closed.runs.tobytes()
    assert np.all(opened.requests["parent"] == NO_ROW)
    assert np.all(opened.requests["then"] == NO_ROW)
    # Serve every row in nominal time: it arrives a think time after the last end it waits for.
    per_token = int(to_ticks(workload.nominal_tpot))
    arrival = np.zeros(len(closed.requests), np.int64)
    last_end = np.zeros(len(closed.requests), np.int64)
    for row, request in enumerate(closed.requests):
        arrival[row] = last_end[row] + request["arrival"]
        end = arrival[row] + int(to_ticks(workload.nominal_ttft))
        end += per_token * int(request["output_tokens"])
        child = request["first_child"]
        while child != NO_ROW:
            last_end[child] = max(last_end[child], end)
            child = closed.requests[child]["next_sibling"]
        if request["then"] != NO_ROW:
            last_end[request["then"]] = max(last_end[request["then"]], end)
    np.testing.assert_array_equal(arrival, opened.requests["arrival"])


PLAIN = Agentic(
    400,
    Poisson(8.0),
    16,
    calls=(3, 9),
    think_time=1.0,
    system_tokens=64,
    num_repositories=3,
    repository_tokens=40,
    file_tokens=30,
    new_tokens=(5, 40),
    output_tokens=(5, 40),
    reset_probability=0.0,
    summary_tokens=20,
    max_prompt_tokens=2000,
    spawn_probability=0.3,
    sub_agents=(2, 3),
    sub_agent_calls=(1, 4),
    sub_agent_think_time=(0.1, 2.0),
    sub_agent_system_tokens=48,
    sub_agent_task_tokens=30,
    sub_agent_new_tokens=(5, 40),
)
"""64 tokens, 4 blocks, of all main agents, 40 of a repository: 6 full blocks; 3 of sub-agents."""


def _agents(workload: Agentic, seed: int) -> tuple[Any, NDArray[np.bool_], NDArray[np.int64]]:
    """Tape, which rows are of sub-agents, and of each row the one before it by the same agent."""
    tape = workload.tape(seed)
    firsts = {int(tape.block_ids(row)[0]) for row in range(len(tape.requests))}
    assert firsts == {0, 10}  # main agents' tools have the first ids, sub-agents' follow
    is_sub = np.array([tape.block_ids(row)[0] != 0 for row in range(len(tape.requests))])
    before = np.full(len(is_sub), NO_ROW)
    latest: dict[int, int] = {}
    for row, request in enumerate(tape.requests):
        if is_sub[row]:
            parent = int(request["parent"])
            before[row] = parent if parent != NO_ROW and is_sub[parent] else NO_ROW
        else:
            before[row] = latest.get(int(request["session"]), NO_ROW)
            latest[int(request["session"])] = row
    return tape, is_sub, before


def test_a_call_continues_the_one_before_by_the_same_agent() -> None:
    tape, is_sub, before = _agents(PLAIN, 0)
    followed = 0
    for row in np.flatnonzero(before != NO_ROW):
        previous, request = tape.requests[before[row]], tape.requests[row]
        said = int(previous["prompt_tokens"]) + int(previous["output_tokens"])
        assert 5 <= request["prompt_tokens"] - said <= 40
        old, new = tape.block_ids(before[row]), tape.block_ids(row)
        np.testing.assert_array_equal(new[: len(old)], old)
        followed += is_sub[row]
    assert 20 < followed < np.count_nonzero(before != NO_ROW) - 20
    # Else agents share the heads' full blocks, and nothing else.
    owners: dict[int, int] = {}
    groups: dict[int, set[int]] = {}
    for number, request in enumerate(tape.requests):
        ids = tape.block_ids(number)
        first = number
        while before[first] != NO_ROW:
            first = int(before[first])
        assert all(
            owners.setdefault(int(b), first) == first for b in ids[3 if is_sub[number] else 6 :]
        )
        if not is_sub[number]:
            assert list(ids[:4]) == [0, 1, 2, 3]
            groups.setdefault(int(ids[4]), set()).add(int(request["session"]))
    assert sorted(groups) == [4, 6, 8]
    assert min(len(sessions) for sessions in groups.values()) > 1
    assert {tuple(tape.block_ids(row)[:3]) for row in np.flatnonzero(is_sub)} == {(10, 11, 12)}


def test_a_reset_leaves_the_shared_head_and_a_summary() -> None:
    workload = replace(PLAIN, max_prompt_tokens=300, calls=20, spawn_probability=0.0)
    tape = workload.tape(1)
    latest: dict[int, int] = {}
    resets = 0
    for row, request in enumerate(tape.requests):
        session = int(request["session"])
        if session in latest:
            previous = tape.requests[latest[session]]
            said = int(previous["prompt_tokens"]) + int(previous["output_tokens"])
            old, new = tape.block_ids(latest[session]), tape.block_ids(row)
            if request["prompt_tokens"] < said:
                resets += 1
                assert said > 300 - 40
                assert 64 + 40 + 20 + 5 <= request["prompt_tokens"] <= 64 + 40 + 20 + 40
                assert list(old[:6]) == list(new[:6])
                assert not set(old[6:]) & set(new[6:])
            else:
                np.testing.assert_array_equal(new[: len(old)], old)
        latest[session] = row
    assert resets > 20
    # With a probability in proportion to the prompt it happens before.
    often = replace(workload, reset_probability=1.0, max_prompt_tokens=600).tape(1).requests
    assert 64 + 40 + 20 + 5 < often["prompt_tokens"].mean() < 250


def test_the_main_agent_waits_for_all_its_sub_agents() -> None:
    tape, is_sub, _ = _agents(PLAIN, 2)
    requests = tape.requests
    joins = np.flatnonzero(~is_sub & (requests["waits_for"] > 1))
    whole = 0
    for row in joins:
        ends = np.flatnonzero(requests["then"] == row)
        assert requests["waits_for"][row] == 1 + len(ends)
        assert is_sub[ends].all()
        assert (requests["first_child"][ends] == NO_ROW).all()  # the last calls of their agents
        assert (requests["session"][ends] == requests["session"][row]).all()
        spawning = int(requests["parent"][row])
        if not is_sub[spawning]:
            starts = np.flatnonzero((requests["parent"] == spawning) & is_sub)
            assert len(starts) == len(ends) in (2, 3)
            assert (requests["arrival"][starts] == 0).all()
            whole += 1
    assert whole > 10
    # Sub-agents at work at time 0 are waited for too; their first calls seen are roots.
    assert np.any(is_sub[requests["parent"][joins]])
    assert np.any(is_sub & (requests["parent"] == NO_ROW))


STEADY = Agentic(
    320,
    Poisson(6.0),
    16,
    calls=(1, 7),
    think_time=(0.0, 12.0),
    system_tokens=16,
    num_repositories=1,
    repository_tokens=16,
    file_tokens=(0, 50),
    new_tokens=(1, 30),
    output_tokens=(1, 30),
    reset_probability=0.3,
    summary_tokens=10,
    max_prompt_tokens=240,
    spawn_probability=0.25,
    sub_agents=(1, 2),
    sub_agent_calls=(1, 6),
    sub_agent_think_time=(0.0, 6.0),
    sub_agent_system_tokens=16,
    sub_agent_task_tokens=10,
    sub_agent_new_tokens=(1, 30),
    nominal_ttft=1.0,
    nominal_tpot=0.05,
    closed_loop=False,
)
"""1 + 2 k tokens of head in all; main agents begin with block 0, sub-agents with block 2."""
WINDOWS = ((0.0, 6.0), (12.0, 18.0), (24.0, 30.0))


def _agent_from_the_past(
    generator: np.random.Generator, time: float, is_sub: bool, calls: list[tuple[float, int, bool]]
) -> float:
    """Append (time, prompt, is_sub) of an agent's calls, and its sub-agents'; return its end."""
    head = 16 if is_sub else 32
    prompt = head + (10 if is_sub else int(generator.integers(0, 51) + generator.integers(1, 31)))
    number = int(generator.integers(1, 7 if is_sub else 8))
    for call in range(number):
        calls.append((time, prompt, is_sub))
        output = int(generator.integers(1, 31))
        end = time + 1.0 + 0.05 * output
        if call == number - 1:
            return end
        if not is_sub and generator.random() < 0.25:
            end = max(
                _agent_from_the_past(generator, end, True, calls)
                for _ in range(generator.integers(1, 3))
            )
        time = end + generator.uniform(0.0, 6.0 if is_sub else 12.0)
        new = int(generator.integers(1, 31))
        prompt += output + new
        if prompt > 240 or generator.random() < 0.3 * prompt / 240:
            prompt = min(prompt, head + 10 + new)
    raise AssertionError


def _statistics(
    time: NDArray[np.float64], prompt: NDArray[np.float64], is_sub: NDArray[np.bool_]
) -> list[float]:
    """Calls, sub-agents' calls and prompt tokens in each window."""
    found = []
    for low, high in WINDOWS:
        inside = (time >= low) & (time < high)
        found += [inside.sum(), is_sub[inside].sum(), prompt[inside].sum()]
    return found


def test_steady_state_equals_playing_from_the_past() -> None:
    rate = 6.0 / STEADY.mean_calls
    played, drawn = [], []
    for seed in range(80):
        generator = np.random.default_rng(seed)
        calls: list[tuple[float, int, bool]] = []
        start = -250.0
        while (start := start + generator.exponential(1 / rate)) < WINDOWS[-1][1]:
            _agent_from_the_past(generator, start, False, calls)
        time, prompt, is_sub = (np.array(column) for column in zip(*calls, strict=True))
        played.append(_statistics(time, prompt, is_sub))
    for seed in range(160):
        tape = STEADY.tape(seed)
        time = to_seconds(tape.requests["arrival"])
        assert time[-1] > WINDOWS[-1][1]
        first_block = tape.runs["start"][tape.requests["first_run"]]
        drawn.append(_statistics(time, tape.requests["prompt_tokens"], first_block == 2))
    difference = np.mean(drawn, axis=0) - np.mean(played, axis=0)
    error = np.sqrt(np.var(drawn, axis=0) / 160 + np.var(played, axis=0) / 80)
    assert np.all(np.abs(difference) < 4 * error)
    assert np.all(error < 0.07 * np.mean(played, axis=0))
    # The rate is that of the arrivals from the first second on: 36 calls in 6 s.
    assert np.mean(drawn, axis=0)[::3] == pytest.approx([36.0] * 3, rel=0.06)


@pytest.mark.parametrize(
    ("changes", "calls"),
    [
        ({"calls": 5, "spawn_probability": 0.0}, 5.0),
        # After 4 of 5 calls come 2.5 sub-agents of 2.5 calls, three times out of ten.
        ({"calls": 5}, 5 + 4 * 0.3 * 2.5 * 2.5),
        ({"calls": (1, 3), "spawn_probability": 1.0}, 2 + 1 * 2.5 * 2.5),
    ],
)
def test_rate_counts_all_calls_of_a_session(changes: dict[str, Any], calls: float) -> None:
    workload = replace(PLAIN, num_requests=30_000, closed_loop=False, **changes)
    assert workload.mean_calls == pytest.approx(calls)
    arrival = workload.tape(0).requests["arrival"]
    assert 30_000 / to_seconds(arrival[-1]) == pytest.approx(8.0, rel=0.04)


def test_loads_are_the_same_process_at_another_pace() -> None:
    # Twice the sessions, not sessions twice as fast.
    slow, fast = (replace(PLAIN, arrivals=Poisson(r), num_requests=5000).tape(0) for r in (4, 8))
    for tape in (slow, fast):
        follow_ups = tape.requests["parent"] != NO_ROW
        assert np.median(to_seconds(tape.requests["arrival"][follow_ups])) == pytest.approx(1.0)
    assert fast.requests["session"].max() / slow.requests["session"].max() == pytest.approx(1, 0.1)


def test_claude_code_has_the_published_figures() -> None:
    """`traces.md` §3.2, §3.3 and §3.6, v6 … v8; an episode long enough to see whole sessions."""
    workload = Agentic.claude_code(60_000, Poisson(2.0), 64)
    tape = workload.tape(0)
    requests = tape.requests
    prompt = np.percentile(requests["prompt_tokens"], (10, 50, 90))
    assert 30_000 < prompt[0] < 43_000  # 35,658 … 42,420
    assert 80_000 < prompt[1] < 104_000  # 89,191 … 103,659
    assert 140_000 < prompt[2] < 234_000  # 141,916 … 233,633
    output = np.percentile(requests["output_tokens"], (10, 50, 90))
    np.testing.assert_allclose(output, (105, 216, 898), rtol=0.03)
    plain = (requests["waits_for"] == 1) & (requests["then"] == NO_ROW)
    think = np.percentile(to_seconds(requests["arrival"][plain]), (50, 90))
    assert 1 < think[0] < 10
    assert 100 < think[1] < 162
    assert reuse(tape).prompt_tokens == pytest.approx(90_717, rel=0.05)
    assert reuse(tape).token_hit == pytest.approx(0.963, abs=0.015)
    calls = workload.lengths["calls"].sample(np.random.default_rng(0), 20_000)
    np.testing.assert_allclose(np.percentile(calls, (50, 90)), (45, 155), rtol=0.03)


@pytest.mark.parametrize("preset", [Agentic, Agentic.claude_code, Agentic.aiperf])
def test_presets_make_valid_tapes(preset: Any) -> None:
    workload: Agentic = preset(2000, Poisson(4.0), 64)
    tape = workload.tape(0)
    validate(tape)
    assert tape.requests["prompt_tokens"].max() <= workload.max_prompt_tokens
    assert reuse(tape).token_hit_second_half > 0.88


def test_a_cluster_serves_every_call_once() -> None:
    cluster = ClusterSpec((InstanceSpec(profile("llama-3.1-8b/h100/tp1"), kv_blocks=600),) * 2, 16)
    for closed_loop in (True, False):
        workload = replace(PLAIN, arrivals=Poisson(40.0), closed_loop=closed_loop)
        simulation = Simulation(cluster, workload, [Slo(0.5, 0.03)], record=True)
        simulation.reset([3])
        simulation.play((np.arange(workload.num_requests) % 2)[None])
        outcomes = simulation.outcomes(0)
        assert sorted(outcomes["row"]) == list(range(workload.num_requests))
        arrival, end = np.empty((2, len(outcomes)))
        arrival[outcomes["row"]], end[outcomes["row"]] = outcomes["arrival"], outcomes["end"]
        requests = workload.tape(3).requests
        for row in np.flatnonzero(requests["parent"] != NO_ROW):
            waits = np.append(np.flatnonzero(requests["then"] == row), requests["parent"][row])
            think = float(to_seconds(requests["arrival"][row]))
            assert arrival[row] == pytest.approx(end[waits].max() + think)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_requests", 0),
        ("block_size", 0),
        ("calls", 0),
        ("think_time", -1.0),
        ("num_repositories", 0),
        ("zipf", -0.5),
        ("system_tokens", -1),
        ("new_tokens", 0),
        ("output_tokens", (0, 4)),
        ("reset_probability", 1.5),
        ("spawn_probability", -0.1),
        ("sub_agents", 0),
        ("sub_agent_calls", 0),
        ("sub_agent_think_time", float("nan")),
        ("max_prompt_tokens", 1000),
        ("nominal_ttft", -1.0),
        ("nominal_tpot", float("inf")),
        ("closed_loop", 1),
    ],
)
def test_bad_fields_are_refused_by_key(key: str, value: object) -> None:
    fields: dict[str, Any] = {"num_requests": 5, "arrivals": Poisson(1.0), "block_size": 16}
    with pytest.raises(ValueError, match=rf"^{key}: found"):
        Agentic(**(fields | {key: value}))


def test_a_rate_beyond_the_clock_is_refused() -> None:
    with pytest.raises(ValueError, match=r"arrivals\.rate: found 1e-09, too low"):
        Agentic(5, Poisson(1e-9), 16).tape(0)
