"""The same replay by us and by NVIDIA Dynamo."""

import dataclasses
import json
import os
from pathlib import Path

import polars as pl
import pytest

from prefixgym.experiments.bench.crosscheck import (
    TIMINGS,
    compare_requests,
    compare_totals,
    replay,
    summarize_requests,
    totals,
)
from prefixgym.experiments.bench.dynamo_peer import (
    PYTHON_VARIABLE,
    VERSION,
    FixedTiming,
    PeerCluster,
    PeerRequest,
    PeerResult,
    run_peer,
)

needs_dynamo = pytest.mark.skipif(
    not os.environ.get(PYTHON_VARIABLE), reason=f"needs Dynamo: {PYTHON_VARIABLE} is not set"
)

# ai-dynamo-runtime 1.6.1 from PyPI, run_mocker_trace_replay on Mooncake's conversation trace, as
# run_peer calls it with PeerCluster(timing=TIMINGS[name]); its results are the same in every run.
RECORDED = {
    "polynomial": {
        "prefix_reuse": 0.10647437632750398,
        "ttft_mean": 0.27190670809140886,
        "tpot_mean": 0.006525444460318754,
        "e2e_mean": 2.45128056544371,
        "makespan": 3540.549274144997,
    },
    "fixed": {
        "prefix_reuse": 0.10647084026505745,
        "ttft_mean": 0.22425492477765772,
        "tpot_mean": 0.010550717989584554,
        "e2e_mean": 3.8007215526556397,
        "makespan": 3542.659,
    },
}


@pytest.fixture(scope="module")
def conversation(traces: Path) -> Path:
    return traces / "mooncake_conversation" / "conversation_trace.jsonl.gz"


@pytest.mark.parametrize("timing", TIMINGS)
def test_we_agree_with_dynamo_on_the_conversation_trace(timing: str, conversation: Path) -> None:
    ours = totals(replay(conversation, PeerCluster(timing=TIMINGS[timing])))
    dynamo = RECORDED[timing]
    assert ours["makespan"] == pytest.approx(dynamo["makespan"], abs=1e-6)
    assert ours["ttft_mean"] == pytest.approx(dynamo["ttft_mean"], rel=1e-3)
    assert ours["tpot_mean"] == pytest.approx(dynamo["tpot_mean"], rel=1e-4)
    assert ours["e2e_mean"] == pytest.approx(dynamo["e2e_mean"], rel=2e-4)
    assert ours["prefix_reuse"] == pytest.approx(dynamo["prefix_reuse"], abs=7e-4)


@needs_dynamo
def test_seven_requests_differ_from_a_live_replay(conversation: Path) -> None:
    cluster = PeerCluster(timing=TIMINGS["fixed"])
    peer = run_peer(conversation, cluster, per_request=True)
    for name, value in RECORDED["fixed"].items():
        assert getattr(peer, name) == pytest.approx(value, rel=1e-9), name
    summary = summarize_requests(compare_requests(replay(conversation, cluster), peer))
    assert (summary["same_reuse"], summary["less_reuse"], summary["more_reuse"]) == (12_024, 7, 0)
    assert summary["same_ttft"] == 12_026
    assert summary["ttft_gap_max"] == pytest.approx(0.5)  # five steps of 0.1 s


def write(folder: Path, rows: list[tuple[int, int, int, list[int]]]) -> Path:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return path


def write_free_block_case(folder: Path) -> tuple[Path, PeerCluster]:
    """Four blocks of memory, four prompts of one full block and a partial one, the last the first.

    When the third comes, two partial blocks have been left behind, and the first prompt's full
    block is older than one of them.
    """
    prompts = [[0, 1], [2, 3], [4, 5], [0, 1]]
    rows = [(10_000 * i, 1000, 1, ids) for i, ids in enumerate(prompts)]
    timing = FixedTiming(prefill=0.1, decode=0.01)
    return write(folder, rows), PeerCluster(instances=1, num_gpu_blocks=4, timing=timing)


def test_a_partial_block_is_not_taken_before_an_older_cached_one(tmp_path: Path) -> None:
    outcomes = replay(*write_free_block_case(tmp_path))
    assert outcomes["hit_tokens"].tolist() == [0, 0, 0, 0]


@needs_dynamo
def test_dynamo_takes_a_partial_block_before_an_older_cached_one(tmp_path: Path) -> None:
    peer = run_peer(*write_free_block_case(tmp_path), per_request=True)
    assert [request.reused_tokens for request in peer.outcomes] == [0, 0, 0, 512]


def test_our_replay_is_arithmetic_by_hand(tmp_path: Path) -> None:
    rows = [
        (0, 1000, 3, [0, 1]),
        (1000, 1600, 1, [0, 2, 3, 4]),
        (1000, 8704, 1, list(range(9, 26))),
    ]
    cluster = PeerCluster(instances=2, timing=FixedTiming(prefill=0.1, decode=0.01))
    found = totals(replay(write(tmp_path, rows), cluster))
    # The first and the third go to instance 0; the third takes two steps (8,192 tokens and 512).
    assert found["ttft_mean"] == pytest.approx((0.1 + 0.1 + 0.2) / 3)
    assert found["tpot_mean"] == pytest.approx(0.01)
    assert found["e2e_mean"] == pytest.approx((0.12 + 0.1 + 0.2) / 3)
    assert found["makespan"] == pytest.approx(1.2)
    assert found["prefix_reuse"] == 0  # their common block lies on different instances


def peer_result(outcomes: list[PeerRequest]) -> PeerResult:
    numbers = {field.name: 0.0 for field in dataclasses.fields(PeerResult)}
    return PeerResult(**{**numbers, "version": VERSION, "outcomes": tuple(outcomes)})  # type: ignore[arg-type]


def test_requests_are_matched_and_compared(tmp_path: Path) -> None:
    rows = [(0, 1000, 2, [0, 1]), (1000, 1000, 1, [0, 2]), (1000, 1000, 1, [0, 3])]
    timing = FixedTiming(prefill=0.1, decode=0.01)
    cluster = PeerCluster(instances=1, max_num_batched_tokens=512, max_num_seqs=1, timing=timing)
    outcomes = replay(write(tmp_path, rows), cluster)  # 488 new tokens a request after the first
    theirs = [
        PeerRequest(1.0, 0, 1000, 1, 0, 1.2, 1.2, 1.3),
        PeerRequest(1.0, 0, 1000, 1, 512, 1.0, 1.1, 1.1),
        PeerRequest(0.0, 0, 1000, 2, 0, 0.0, 0.20005, 0.21),
    ]
    requests = compare_requests(outcomes, peer_result(theirs))
    assert requests["dynamo_reused"].to_list() == [0, 512, 0]
    assert requests["reused"].to_list() == [0, 512, 512]
    assert requests["ttft"].to_list() == pytest.approx([0.2, 0.1, 0.2])
    assert requests["dynamo_e2e"].to_list() == pytest.approx([0.21, 0.1, 0.3])
    assert summarize_requests(requests) == {
        "same_reuse": 2,
        "less_reuse": 0,
        "more_reuse": 1,
        "same_ttft": 3,
        "ttft_gap_median": pytest.approx(0.0, abs=1e-9),
        "ttft_gap_p99": pytest.approx(0.0, abs=1e-3),
        "ttft_gap_max": pytest.approx(5e-5),
    }
    figures = compare_totals(outcomes, peer_result(theirs))
    assert figures.filter(pl.col("figure") == "makespan")["difference"].item() == pytest.approx(1.2)
    with pytest.raises(ValueError, match="found 2 requests completed by Dynamo and 3 by us"):
        compare_requests(outcomes, peer_result(theirs[:2]))
    theirs[0] = dataclasses.replace(theirs[0], instance=1)
    with pytest.raises(ValueError, match="must be the same on the same instances"):
        compare_requests(outcomes, peer_result(theirs))


def test_only_round_robin_can_be_repeated(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found 'kv_router', allowed: round_robin"):
        replay(tmp_path / "none", PeerCluster(router="kv_router"))
