"""Traces as workloads: spread batches, windows, speed."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.generators.shared_prompts import SharedPrompts
from prefixgym.envs.workload.readers.mooncake import read_mooncake
from prefixgym.envs.workload.tape import Tape
from prefixgym.envs.workload.trace import TraceWorkload, batch_interval, spread_batches
from prefixgym.envs.workload.validate import validate


def recorded(batch: float) -> Tape:
    """400 requests at 10/s, stamped every `batch` seconds."""
    tape = SharedPrompts(400, Poisson(10.0), 16, 5, 4, 40, (10, 60), 8).tape(0)
    ticks = round(batch * TICKS_PER_SECOND)
    tape.requests["arrival"] = tape.requests["arrival"] // ticks * ticks
    return tape


def test_batches_are_recognised() -> None:
    assert batch_interval(recorded(2.0).requests["arrival"]) == 2 * TICKS_PER_SECOND
    # A clock of 1 ms leaves few ties, and a Poisson process has no even steps.
    assert batch_interval(recorded(0.001).requests["arrival"]) == 0
    bursts = np.repeat(np.cumsum(np.random.default_rng(0).exponential(1e12, 50)), 8)
    assert batch_interval(bursts.astype(np.int64)) == 0
    assert batch_interval(np.array([5])) == 0
    assert batch_interval(np.array([5, 5, 5])) == 0


@given(
    steps=st.lists(st.integers(0, 50), min_size=1, max_size=60),
    interval=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_spreading_keeps_order_and_stays_inside_the_batch(
    steps: list[int], interval: int, seed: int
) -> None:
    arrival = np.cumsum(steps)
    spread = spread_batches(arrival, interval, np.random.default_rng(seed))
    assert np.all(np.diff(spread) >= 0)
    assert np.all((spread >= arrival) & (spread < arrival + interval))
    stamps = np.append(np.unique(arrival), np.iinfo(np.int64).max)
    assert np.all(spread < stamps[np.searchsorted(stamps, arrival, side="right")])


def test_the_seed_spreads_the_batches_and_nothing_else() -> None:
    trace = recorded(2.0)
    workload = TraceWorkload(trace)
    tape, again, other = workload.tape(1), workload.tape(1), workload.tape(2)
    validate(tape)
    assert tape.requests.tobytes() == again.requests.tobytes()
    assert len(np.unique(tape.requests["arrival"])) == 400
    assert not np.array_equal(tape.requests["arrival"], other.requests["arrival"])
    other.requests["arrival"] = tape.requests["arrival"]
    assert tape.requests.tobytes() == other.requests.tobytes()
    as_recorded = TraceWorkload(trace, spread=False).tape(1).requests["arrival"]
    first = trace.requests["arrival"][0]
    np.testing.assert_array_equal(as_recorded, trace.requests["arrival"] - first)


def test_the_bounds_are_the_traces() -> None:
    trace = recorded(2.0)
    workload = TraceWorkload(trace)
    assert workload.block_size == 16
    assert workload.num_sessions == trace.requests["session"].max() + 1
    assert workload.max_blocks == trace.requests["num_blocks"].max()


def test_windows_are_consecutive_rows_that_start_at_zero() -> None:
    trace = recorded(2.0)
    workload = TraceWorkload(trace, num_requests=50)
    starts = set()
    for seed in range(60):
        tape = workload.tape(seed)
        validate(tape)
        assert tape.requests.tobytes() == workload.tape(seed).requests.tobytes()
        (start,) = np.flatnonzero(trace.requests["first_run"] == tape.requests["first_run"][0])
        starts.add(int(start))
        window = trace.requests[start : start + 50]
        for field in ("prompt_tokens", "output_tokens", "first_run", "session"):
            np.testing.assert_array_equal(tape.requests[field], window[field])
        late = tape.requests["arrival"] - (window["arrival"] - window["arrival"][0])
        assert np.all((late >= 0) & (late < 2 * TICKS_PER_SECOND))
    assert min(starts) < 60
    assert max(starts) > 290
    assert len(TraceWorkload(trace, num_requests=400).tape(3).requests) == 400


def test_speedup_compresses_time() -> None:
    trace = recorded(2.0)
    slow, fast = TraceWorkload(trace).tape(4), TraceWorkload(trace, speedup=4.0).tape(4)
    np.testing.assert_allclose(slow.requests["arrival"], 4 * fast.requests["arrival"], atol=4)


def test_follow_ups_keep_their_think_times() -> None:
    chat = MultiTurnChat(300, Poisson(20.0), 16, think_time=2.0, closed_loop=True).tape(0)
    tape = TraceWorkload(chat, speedup=2.0).tape(0)
    validate(tape)
    follow_up = chat.requests["parent"] >= 0
    before, after = chat.requests["arrival"], tape.requests["arrival"]
    np.testing.assert_array_equal(after[follow_up], before[follow_up])
    roots = before[~follow_up] - before[0]
    np.testing.assert_allclose(after[~follow_up], roots / 2, atol=1)
    with pytest.raises(ValueError, match=r"^num_requests: found 10, must be None for a trace with"):
        TraceWorkload(chat, num_requests=10)


def test_bad_fields_are_refused_by_key() -> None:
    trace = recorded(2.0)
    with pytest.raises(ValueError, match=r"^num_requests: found 401, must be between 1 and 400"):
        TraceWorkload(trace, num_requests=401)
    with pytest.raises(ValueError, match=r"^speedup: found 0"):
        TraceWorkload(trace, speedup=0.0)
    with pytest.raises(ValueError, match=r"^spread: found 0, must be true or false"):
        TraceWorkload(trace, spread=0)  # type: ignore[arg-type]


def test_mooncakes_bursts_are_an_artefact_of_its_batches(traces: Path) -> None:
    # `traces.md` §3.1: gaps have a CV of 3.03 as recorded and 1.01 once spread over 3 s.
    trace = read_mooncake(traces / "mooncake_conversation" / "conversation_trace.jsonl.gz")
    workload = TraceWorkload(trace)
    raw = np.diff(trace.requests["arrival"])
    assert batch_interval(trace.requests["arrival"]) == 3 * TICKS_PER_SECOND
    assert raw.std() / raw.mean() == pytest.approx(3.03, abs=0.01)
    spread = [np.diff(workload.tape(seed).requests["arrival"]) for seed in range(3)]
    for gaps in spread:
        assert gaps.std() / gaps.mean() == pytest.approx(1.01, abs=0.03)
