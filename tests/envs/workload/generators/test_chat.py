"""Multi-turn chat: growth of a conversation, steady state from time 0, the closed loop."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_tapes import check_session_tape

from prefixgym.envs.clock import to_seconds
from prefixgym.envs.workload.arrivals import Gamma, Poisson
from prefixgym.envs.workload.distributions import Empirical, Geometric, LogNormal, Mixture
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.tape import NO_ROW

WORKLOADS = st.builds(
    MultiTurnChat,
    num_requests=st.integers(1, 200),
    arrivals=st.sampled_from([Poisson(5.0), Gamma(5.0, 3.0)]),
    block_size=st.sampled_from([1, 16, 64]),
    turns=st.sampled_from([1, 3, (2, 6), Geometric(3, high=30), LogNormal(4, 0.8, high=40)]),
    think_time=st.one_of(
        st.floats(0, 100), st.builds(LogNormal, st.floats(0.1, 100), st.floats(0.1, 2))
    ),
    num_system_prompts=st.integers(1, 5),
    zipf=st.sampled_from([0.0, 1.0]),
    system_tokens=st.sampled_from([0, 40, (0, 100)]),
    user_tokens=st.sampled_from(
        [1, (1, 60), LogNormal(20, 1, high=80), Mixture([3, 1], [(1, 9), (50, 80)])]
    ),
    output_tokens=st.sampled_from([1, (1, 90), LogNormal(20, 1, high=80)]),
    max_prompt_tokens=st.sampled_from([180, 400, 10**6]),
    closed_loop=st.booleans(),
)


@settings(max_examples=40)
@given(workload=WORKLOADS, seed=st.integers(0, 2**63))
def test_tapes_are_valid_and_within_their_bounds(workload: MultiTurnChat, seed: int) -> None:
    check_session_tape(workload, workload.tape(seed))


@settings(max_examples=40)
@given(workload=WORKLOADS, seed=st.integers(0, 2**63))
def test_the_same_seed_gives_the_same_bits(workload: MultiTurnChat, seed: int) -> None:
    tape, again = workload.tape(seed), replace(workload).tape(seed)
    assert tape.requests.tobytes() == again.requests.tobytes()
    assert tape.runs.tobytes() == again.runs.tobytes()


@settings(max_examples=40)
@given(workload=WORKLOADS, seed=st.integers(0, 2**63))
def test_a_turn_continues_the_one_before(workload: MultiTurnChat, seed: int) -> None:
    tape = workload.tape(seed)
    before: dict[int, int] = {}
    for row, request in enumerate(tape.requests):
        session = int(request["session"])
        if session in before:
            previous = tape.requests[before[session]]
            said = int(previous["prompt_tokens"]) + int(previous["output_tokens"])
            assert request["prompt_tokens"] > said
            old, new = tape.block_ids(before[session]), tape.block_ids(row)
            np.testing.assert_array_equal(new[: len(old)], old)
        before[session] = row


@settings(max_examples=40)
@given(workload=WORKLOADS, seed=st.integers(0, 2**63))
def test_closed_loop_is_the_same_requests_linked(workload: MultiTurnChat, seed: int) -> None:
    opened = replace(workload, closed_loop=False).tape(seed)
    closed = replace(workload, closed_loop=True).tape(seed)
    assert opened.runs.tobytes() == closed.runs.tobytes()
    assert np.all(opened.requests["parent"] == NO_ROW)
    # If answers took no time, think times would add up to the open loop's arrivals.
    arrival = closed.requests["arrival"].copy()
    last: dict[int, int] = {}
    for row, request in enumerate(closed.requests):
        session = int(request["session"])
        assert request["parent"] == last.get(session, NO_ROW)
        if session in last:
            arrival[row] += arrival[last[session]]
        last[session] = row
    np.testing.assert_array_equal(arrival, opened.requests["arrival"])


def test_sessions_share_their_system_prompts_full_blocks() -> None:
    # 100 tokens in blocks of 16: six shared blocks.
    workload = MultiTurnChat(
        200, Poisson(5.0), 16, think_time=5.0, num_system_prompts=3, system_tokens=100
    )
    tape = workload.tape(0)
    heads = {tuple(tape.block_ids(row)[:6]) for row in range(200)}
    assert heads == {tuple(range(start, start + 6)) for start in (0, 6, 12)}
    owners: dict[int, int] = {}
    for row in range(200):
        session = int(tape.requests["session"][row])
        assert all(owners.setdefault(int(b), session) == session for b in tape.block_ids(row)[6:])


def test_what_users_add_may_depend_on_the_place_in_the_session() -> None:
    # Prompts of sessions with one, two, three and four turns; answers have 20 tokens.
    sessions = [[3000], [500, 620], [500, 527, 647], [500, 527, 554, 674]]
    chat = MultiTurnChat(
        600,
        Poisson(20.0),
        16,
        turns=(1, 4),
        think_time=2.0,
        system_tokens=0,
        opening_tokens=500,
        user_tokens=7,
        closing_tokens=100,
        lone_tokens=3000,
        output_tokens=20,
    )
    requests = chat.tape(0).requests
    seen = set()
    for session in range(requests["session"].max() + 1):
        prompts = requests["prompt_tokens"][requests["session"] == session].tolist()
        # Sessions from before the episode lack their first turns, those after it their last ones.
        assert any(
            prompts == whole[k : k + len(prompts)] for whole in sessions for k in range(len(whole))
        )
        seen.add(tuple(prompts))
    assert {tuple(whole) for whole in sessions} <= seen
    assert chat.mean_turns == pytest.approx(2.5)
    chat = replace(chat, lone_tokens=None)
    # Up to a cap: one turn of one, two of two, two of three, three of four.
    assert replace(chat, max_prompt_tokens=625).mean_turns == pytest.approx((1 + 2 + 2 + 3) / 4)
    with pytest.raises(ValueError, match=r"500 \(system_tokens \+ opening_tokens\)"):
        replace(chat, max_prompt_tokens=499)


def test_system_prompts_have_zipf_popularity() -> None:
    workload = MultiTurnChat(
        30_000, Poisson(50.0), 16, turns=1, num_system_prompts=4, system_tokens=16, zipf=1.0
    )
    tape = workload.tape(0)
    roots = tape.runs["start"][tape.requests["first_run"]]
    weights = 1.0 / np.arange(1, 5)
    np.testing.assert_allclose(np.bincount(roots) / len(roots), weights / weights.sum(), atol=0.012)


TURNS = (1, 5)
STEADY = MultiTurnChat(
    120,
    Poisson(4.0),
    16,
    turns=TURNS,
    think_time=LogNormal(8.0, 0.7),
    system_tokens=100,
    user_tokens=10,
    output_tokens=10,
)
"""Turn k has a prompt of 90 + 20 k tokens, so that a row tells which turn it is."""


def test_steady_state_from_the_first_request_on() -> None:
    episodes = [STEADY.tape(seed).requests for seed in range(400)]
    turn = np.array([(e["prompt_tokens"].astype(int) - 90) // 20 for e in episodes])
    # A request is a turn k with probability P(N ≥ k) / E[N], whenever it comes.
    expected = np.array([5, 4, 3, 2, 1]) / 15
    for part in (turn[:, :20], turn[:, 50:70], turn[:, 100:]):
        shares = np.bincount(part.ravel(), minlength=6)[1:] / part.size
        np.testing.assert_allclose(shares, expected, atol=0.025)
    # And the rate is that of the arrivals, early and late.
    arrival = to_seconds(np.array([e["arrival"] for e in episodes]))
    for window in ((0.0, 4.0), (10.0, 14.0), (16.0, 20.0)):
        counts = np.count_nonzero((arrival >= window[0]) & (arrival < window[1]), axis=1)
        # 16 expected in 4 s; 400 episodes give a standard error of about 0.25.
        assert counts.mean() == pytest.approx(16.0, abs=1.0)


def _play_from_the_past(seed: int) -> tuple[int, float]:
    """Sessions seen and mean gap between their turns in 20 s, by playing 200 s before them."""
    generator = np.random.default_rng(seed)
    start, seen = -200.0, 0
    gaps: list[float] = []
    while (start := start + generator.exponential(3.0 / 4.0)) < 20.0:
        turns = generator.integers(TURNS[0], TURNS[1] + 1)
        think = generator.lognormal(np.log(8.0), 0.7, turns - 1)
        times = start + np.concatenate([[0.0], np.cumsum(think)])
        times = times[(times >= 0.0) & (times < 20.0)]
        seen += len(times) > 0
        gaps.extend(np.diff(times))
    return seen, float(np.mean(gaps))


def test_steady_state_equals_playing_from_the_past() -> None:
    played = np.array([_play_from_the_past(seed) for seed in range(150)])
    longer = replace(STEADY, num_requests=200)
    drawn = []
    for seed in range(150):
        requests = longer.tape(seed).requests
        arrival = to_seconds(requests["arrival"])
        session = requests["session"][arrival < 20.0]
        rows = [np.flatnonzero(session == s) for s in np.unique(session)]
        gaps = np.concatenate([np.diff(arrival[r]) for r in rows])
        drawn.append((len(rows), float(np.mean(gaps))))
    difference = np.mean(drawn, axis=0) - played.mean(axis=0)
    error = np.sqrt((np.var(drawn, axis=0) + played.var(axis=0)) / 150)
    assert np.all(np.abs(difference) < 4 * error)
    assert np.all(error < 0.02 * played.mean(axis=0))


def test_the_rate_holds_where_the_context_limit_ends_sessions() -> None:
    # Prompts of 90 + 20 k tokens fit up to k = 3: E[N] = 1 + 4/5 + 3/5.
    capped = replace(STEADY, num_requests=20_000, max_prompt_tokens=155)
    assert capped.mean_turns == pytest.approx(2.4)
    requests = capped.tape(0).requests
    assert requests["prompt_tokens"].max() == 150
    assert 20_000 / to_seconds(requests["arrival"][-1]) == pytest.approx(4.0, rel=0.03)
    assert STEADY.mean_turns == pytest.approx(3.0)


def test_bursty_sessions_keep_the_rate() -> None:
    requests = replace(STEADY, num_requests=20_000, arrivals=Gamma(4.0, 3.0)).tape(0).requests
    assert 20_000 / to_seconds(requests["arrival"][-1]) == pytest.approx(4.0, rel=0.1)


def test_think_times_are_the_gaps() -> None:
    workload = MultiTurnChat(
        20_000, Poisson(20.0), 64, think_time=LogNormal(6.0, 1.0), closed_loop=True
    )
    requests = workload.tape(0).requests
    gaps = to_seconds(requests["arrival"][requests["parent"] != NO_ROW])
    # Gaps that the episode's end cuts are long ones: 1,000 s make them few.
    assert np.median(gaps) == pytest.approx(6.0, rel=0.05)
    assert np.log(gaps).std() == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_requests", 0),
        ("block_size", 0),
        ("turns", 0),
        ("think_time", -1.0),
        ("num_system_prompts", 0),
        ("zipf", float("nan")),
        ("system_tokens", -1),
        ("user_tokens", 0),
        ("output_tokens", 0),
        ("max_prompt_tokens", 9191),
        ("closed_loop", "false"),
    ],
)
def test_bad_fields_are_refused_by_key(key: str, value: object) -> None:
    fields: dict[str, object] = {"num_requests": 5, "arrivals": Poisson(1.0), "block_size": 16}
    with pytest.raises(ValueError, match=rf"^{key}: found"):
        MultiTurnChat(**(fields | {key: value}))  # type: ignore[arg-type]


def test_pasted_documents_give_the_growth_of_real_conversations() -> None:
    """`traces.md` §3.6: growth a turn p10/50/90 = 75 / 475 / 4,705; beyond the answer -2 / 27 /
    4,369, a typed line or a pasted file. (Here an answer is kept whole: at least 1.)"""
    workload = MultiTurnChat(
        40_000,
        Poisson(20.0),
        64,
        think_time=5.0,
        user_tokens=Mixture(
            [3, 1], [LogNormal(10.5, 2.2, high=300), LogNormal(3400, 1.0, high=100_000)]
        ),
        output_tokens=Empirical([1, 24, 350, 597, 1119, 2000], [0, 0.1, 0.5, 0.9, 0.99, 1]),
        max_prompt_tokens=128_000,
        closed_loop=True,
    )
    requests = workload.tape(0).requests
    later = requests[requests["parent"] != NO_ROW]
    before = requests[later["parent"]]
    growth = later["prompt_tokens"] - before["prompt_tokens"]
    added = growth - before["output_tokens"]
    assert np.percentile(added, 10) <= 2
    np.testing.assert_allclose(np.percentile(added, (50, 90)), (27, 4369), rtol=0.1)
    np.testing.assert_allclose(np.percentile(growth, (10, 50, 90)), (75, 475, 4705), rtol=0.25)
