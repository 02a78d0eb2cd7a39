"""Closed loop against open loop."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from prefixgym.envs.episode_state import OUTCOME
from prefixgym.envs.workload.tape import NO_ROW, REQUEST
from prefixgym.experiments.bench.closed_loop import (
    capacities,
    compare,
    early_calls,
    main,
    summarize,
)
from prefixgym.experiments.bench.closed_loop_sessions import (
    Load,
    choose_sessions,
    generated_ladder,
    recorded_ladder,
)

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def ladder() -> list[Load]:
    return generated_ladder([16.0, 24.0], 60.0, SEEDS)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions a to h fit; the others have a call too long, too late or without api_time."""
    fitting: list[tuple[str, int, dict[str, Any]]] = [
        (name, turn, {}) for name in "abcdefgh" for turn in range(3)
    ]
    unfit: list[tuple[str, int, dict[str, Any]]] = [
        ("long", 0, {"input_length": 200_001}),
        ("late", 0, {"t": 3600.5}),
        ("untimed", 0, {}),
    ]
    path = tmp_path_factory.mktemp("trace") / "requests.jsonl"
    with path.open("w") as file:
        for number, (name, turn, changes) in enumerate([*fitting, *unfit]):
            call: dict[str, Any] = {
                "session": name,
                "agent": "main",
                "t": 20.0 * turn,
                "output_length": 64,
            }
            call |= {"input_length": 640 * (turn + 1)} | changes
            call["hash_runs"] = [[10_000 * number, call["input_length"] // 64]]
            if name != "untimed":
                call |= {"api_time": 5.0, "think_time": 15.0 if turn else 0.0}
            file.write(json.dumps(call) + "\n")
        file.write(json.dumps({"session": "c", "meta": 1, "spawns": []}) + "\n")
    return path


def assert_same_requests(load: Load) -> None:
    for seed, closed in load.closed.by_seed.items():
        opened = load.opened.by_seed[seed]
        for name in ("prompt_tokens", "output_tokens", "session", "num_blocks", "first_run"):
            np.testing.assert_array_equal(closed.requests[name], opened.requests[name])
        np.testing.assert_array_equal(closed.runs, opened.runs)
        assert (opened.requests["parent"] == NO_ROW).all()
        assert (closed.requests["parent"] != NO_ROW).any()


def test_both_loops_hold_the_same_generated_requests(ladder: list[Load]) -> None:
    for load in ladder:
        assert_same_requests(load)


def test_both_loops_hold_the_same_recorded_requests(trace: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.jsonl"
    assert choose_sessions(trace, chosen) == 8
    few, fewer = recorded_ladder(chosen, [2, 1], SEEDS, session_rate=0.1)
    assert_same_requests(few)
    assert len(few.closed.by_seed[0].requests) == 24
    assert few.closed.num_sessions == 8
    # The same calls in the same time on half the instances are twice the load.
    assert fewer.offered(1) == 2 * few.offered(1) > 0


def test_without_a_session_that_fits_the_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"session": "s", "t": 0, "input_length": 9}\n')
    with pytest.raises(ValueError, match="found no session that fits, of 1"):
        choose_sessions(path, tmp_path / "chosen.jsonl")
    path.write_text('{"session": "s", "t": "soon", "input_length": 9}\n')
    with pytest.raises(ValueError, match=r"requests\.jsonl:1: t: found"):
        choose_sessions(path, tmp_path / "chosen.jsonl")


def test_only_an_open_loop_sends_calls_early(ladder: list[Load]) -> None:
    found = summarize(compare(ladder, ["session_affinity"], SEEDS))
    closed, opened = (found.filter(loop=loop).sort("offered") for loop in ("closed", "open"))
    assert (closed["early"] == 0).all()
    assert (opened["early"] > 0).all()
    assert opened["early"][1] > opened["early"][0]
    # Past the knee agents wait, so they ask less; recorded arrivals come as they were recorded.
    assert closed["arrivals"][1] < 0.9 * closed["offered"][1]
    assert opened["arrivals"].to_list() == pytest.approx(opened["offered"].to_list())
    assert opened["in_flight"][1] > closed["in_flight"][1]
    assert opened["ttft_p99"][1] > closed["ttft_p99"][1]
    assert (found["goodput"] <= found["arrivals"]).all()


def test_a_call_is_early_until_all_that_it_follows_have_ended() -> None:
    # Row 1 follows 0; row 2 follows 0 as well and joins 1.
    requests = np.zeros(3, REQUEST)
    requests["parent"] = [NO_ROW, 0, 0]
    requests["then"] = [NO_ROW, 2, NO_ROW]
    outcomes = np.zeros(3, OUTCOME)
    outcomes["end"] = [1.0, 5.0, 9.0]
    outcomes["arrival"] = [0.0, 1.0, 4.0]
    assert early_calls(requests, outcomes).tolist() == [False, False, True]
    outcomes["arrival"] = [0.0, 0.5, 5.0]
    assert early_calls(requests, outcomes).tolist() == [False, True, False]


def test_capacity_lies_where_attainment_crosses_90_percent() -> None:
    attained = {"closed": ([1.0, 0.95, 0.85], [1.0, 1.0, 0.8]), "open": ([1.0, 0.8, 0.0],) * 2}
    results = pl.DataFrame(
        {"router": "r", "loop": loop, "seed": seed, "offered": load, "attainment": share}
        for loop, seeds in attained.items()
        for seed, shares in enumerate(seeds)
        for load, share in zip((1.0, 2.0, 3.0), shares, strict=True)
    )
    (row,) = capacities(results).to_dicts()
    assert row["closed"] == pytest.approx(2.5)
    assert row["open"] == pytest.approx(1.5)
    assert [row[name] for name in ("ratio", "low", "high")] == pytest.approx([0.6] * 3)
    (uncrossed,) = capacities(results.filter(pl.col("offered") < 3)).to_dicts()
    assert np.isnan(uncrossed["closed"])


def test_command(
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figure = tmp_path / "loops.png"
    size = ["--rates", "5", "20", "--seconds", "20", "--seeds", "1", "--trace", str(trace)]
    monkeypatch.setattr(sys, "argv", ["closed_loop", *size, "--figure", str(figure), "--json"])
    main()
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"generated", "recorded"}
    assert len(found["generated"]["loads"]) == 2 * 2 * 2  # loads, routers, loops
    assert figure.read_bytes()[:4] == b"\x89PNG"

    monkeypatch.setattr(sys, "argv", ["closed_loop", *size[:-1], str(tmp_path / "none.jsonl")])
    main()
    printed = capsys.readouterr().out
    assert "left out: recorded sessions" in printed
    assert "open / closed" in printed
