"""The same disaggregated serving by us and by NVIDIA Dynamo."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from prefixgym.experiments.bench.crosscheck_split import (
    AMPLE,
    CONSTANT,
    SAME,
    each_row,
    like_row,
    link_row,
)
from prefixgym.experiments.bench.dynamo_peer import PYTHON_VARIABLE, FixedTiming
from prefixgym.experiments.bench.dynamo_split import SplitPeer, SplitRequest, run_split_peer
from prefixgym.experiments.bench.kv_arrivals import kv_arrivals
from prefixgym.experiments.bench.split_latencies import (
    dynamo_latencies,
    like_with_like,
    our_latencies,
)
from prefixgym.experiments.bench.split_replay import in_turns, pairs_of, read, replay, write_poisson

needs_dynamo = pytest.mark.skipif(
    not os.environ.get(PYTHON_VARIABLE), reason=f"needs Dynamo: {PYTHON_VARIABLE} is not set"
)

# ai-dynamo-runtime 1.6.1 from PyPI, run_split_peer with SplitPeer(2, 2, bandwidth) on the first
# 3,000 requests of Mooncake's conversation trace, from write_poisson at 5 requests/s: means, s.
RECORDED = {
    None: {"ttft": 0.7671404927754091, "tpot": 0.007727098748716572},
    50e9: {"ttft": 0.802908641223415, "tpot": 0.007736471759080155},
}

BY_HAND = SplitPeer(2, 1, bandwidth=50e9, timing=FixedTiming(prefill=0.1, decode=0.01))
MOVE = 131_072 / 50e9  # s a token


@pytest.fixture(scope="module")
def conversation(traces: Path) -> Path:
    return traces / "mooncake_conversation" / "conversation_trace.jsonl.gz"


def write(folder: Path, rows: list[tuple[int, int, int, list[int]]]) -> Path:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return path


def peer_request(arrival: float, prefiller: int, prefilled: float, **fields: float) -> SplitRequest:
    """A request of 1,000 tokens, answered with 3 on decoder 0."""
    times = {"activated": 0.0, "admitted": 0.0, "first_token": 0.0, "finished": 0.0, **fields}
    return SplitRequest(arrival, prefiller, 0, 1000, 3, 0, prefilled, **times)


def test_arrivals_have_a_millisecond_each(tmp_path: Path) -> None:
    source = write(tmp_path, [(0, 512, i + 1, [i]) for i in range(500)])
    write_poisson(source, tmp_path / "busy", rate=400.0, count=400)
    rows = [json.loads(line) for line in (tmp_path / "busy").read_text().splitlines()]
    times = np.array([row["timestamp"] for row in rows])
    assert [row["output_length"] for row in rows] == list(range(1, 401))
    assert times[0] == 0
    assert (np.diff(times) >= 1).all()
    assert 1e3 * 400 / times[-1] == pytest.approx(400, rel=0.2)
    with pytest.raises(ValueError, match="found 500 requests, must be at least 501"):
        write_poisson(source, tmp_path / "busy", rate=1.0, count=501)


def test_one_after_the_other_through_the_decoders_port(tmp_path: Path) -> None:
    rows = [(0, 1000, 3, [0, 1]), (1, 1000, 3, [2, 3]), (1000, 1000, 3, [0, 4])]
    tape = read(write(tmp_path, rows), BY_HAND)
    outcomes = replay(tape, BY_HAND, in_turns(3, BY_HAND), more_tokens=1)
    began = outcomes["arrival"] + outcomes["ttft"]
    # The second comes while the first decodes, the third has a block of the first in the decoder.
    first = 0.1 + 1000 * MOVE
    assert began == pytest.approx([first, first + 0.01, 1.1 + 488 * MOVE])
    assert outcomes["end"] == pytest.approx(began + 0.03)
    requests = [peer_request(0.0, 0, 0.1), peer_request(0.001, 1, 0.101), peer_request(1.0, 0, 1.1)]
    arrivals = kv_arrivals(tape, BY_HAND, requests, outcomes)
    assert arrivals == pytest.approx([first, first + 1000 * MOVE, began[2]])
    at_once = dataclasses.replace(BY_HAND, bandwidth=None)
    assert kv_arrivals(tape, at_once, requests, outcomes) == pytest.approx([0.1, 0.101, 1.1])


def test_latencies_are_what_each_says(tmp_path: Path) -> None:
    tape = read(write(tmp_path, [(0, 1000, 3, [0, 1]), (1000, 1000, 1, [2, 3])]), BY_HAND)
    ours = our_latencies(replay(tape, BY_HAND, in_turns(2, BY_HAND)))
    assert ours["ttft"].to_list() == pytest.approx([0.1 + 1000 * MOVE, 0.1])
    assert ours["tpot"].to_list() == [pytest.approx(0.01), None]
    theirs = dynamo_latencies(
        [
            peer_request(1.0, 0, 1.1, first_token=1.2, finished=1.24),
            dataclasses.replace(peer_request(2.0, 0, 2.1, first_token=2.2), output_tokens=1),
        ]
    )
    assert theirs["ttft"].to_list() == pytest.approx([0.2, 0.2])
    assert theirs["tpot"].to_list() == [pytest.approx(0.02), None]
    cells = each_row(theirs, pl.DataFrame({"ttft": [0.1, 0.1], "tpot": [0.01, None]}))
    assert cells[:3] == ("200, 200, 200", "100, 100, 100", "0.500, 0.500, 0.500")
    assert cells[3:] == ("20.00, 20.00, 20.00", "10.00, 10.00, 10.00", "0.500, 0.500, 0.500")


def test_requests_are_matched_by_their_arrivals(tmp_path: Path) -> None:
    tape = read(write(tmp_path, [(0, 1000, 3, [0, 1])]), BY_HAND)
    outcomes = replay(tape, BY_HAND, in_turns(1, BY_HAND), more_tokens=1)
    request = peer_request(0.0, 0, 0.1, admitted=0.2, first_token=0.21, finished=0.26)
    both = like_with_like([request], outcomes)
    assert both["dynamo_start"].item() == pytest.approx(0.2)
    assert both["start"].item() == pytest.approx(0.1 + 1000 * MOVE)
    assert both["dynamo_step"].item() == pytest.approx(0.02)
    assert both["step"].item() == pytest.approx(0.01)
    assert like_row(both)[:4] == ("100.00", "200.0", "102.6", "0.5131")
    late = dataclasses.replace(request, arrival=0.001)
    with pytest.raises(ValueError, match="found 1 requests completed by Dynamo and 1 by us"):
        like_with_like([late], outcomes)
    with pytest.raises(ValueError, match="found 0 requests completed by Dynamo and 1 by us"):
        like_with_like([], outcomes)


@pytest.mark.parametrize("bandwidth", RECORDED)
def test_we_are_within_three_percent_of_dynamo(
    bandwidth: float | None, conversation: Path, tmp_path: Path
) -> None:
    cluster = SplitPeer(2, 2, bandwidth)
    write_poisson(conversation, tmp_path / "trace.jsonl", rate=5.0, count=3000)
    tape = read(tmp_path / "trace.jsonl", cluster)
    ours = our_latencies(replay(tape, cluster, in_turns(3000, cluster)))
    for name, value in RECORDED[bandwidth].items():
        assert ours[name].mean() == pytest.approx(value, rel=0.03), name


@needs_dynamo
@pytest.mark.parametrize("bandwidth", RECORDED)
def test_a_live_replay_gives_what_was_recorded(
    bandwidth: float | None, conversation: Path, tmp_path: Path
) -> None:
    write_poisson(conversation, tmp_path / "trace.jsonl", rate=5.0, count=3000)
    theirs = dynamo_latencies(run_split_peer(tmp_path / "trace.jsonl", SplitPeer(2, 2, bandwidth)))
    for name, value in RECORDED[bandwidth].items():
        assert theirs[name].mean() == pytest.approx(value, rel=1e-9), name


@needs_dynamo
@pytest.mark.parametrize(("prefillers", "decoders"), [(2, 2), (3, 1)])
def test_all_requests_agree_where_nothing_is_evicted(
    prefillers: int, decoders: int, conversation: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    write_poisson(conversation, trace, rate=2.5 * prefillers, count=600)
    cluster = SplitPeer(prefillers, decoders, num_gpu_blocks=AMPLE, timing=CONSTANT)
    tape = read(trace, cluster)
    requests = run_split_peer(trace, cluster)
    outcomes = replay(tape, cluster, pairs_of(requests), more_tokens=1)
    both = like_with_like(requests, outcomes)
    assert both["reused"].to_list() == both["dynamo_reused"].to_list()
    assert both["start"].to_numpy() == pytest.approx(both["dynamo_start"].to_numpy(), abs=SAME)
    assert both["step"].to_numpy() == pytest.approx(both["dynamo_step"].to_numpy(), abs=SAME)
    linked = dataclasses.replace(cluster, bandwidth=50e9)
    requests = run_split_peer(trace, linked)
    outcomes = replay(tape, linked, pairs_of(requests), more_tokens=1)
    assert link_row(tape, linked, requests, outcomes)[-1] == "100.00"


@needs_dynamo
def test_dynamo_computes_anew_in_no_time_what_a_decoder_preempts(tmp_path: Path) -> None:
    rows = [(0, 400, 100, [0]), (10, 1000, 60, [1, 2]), (300, 1000, 60, [3, 4])]
    trace = write(tmp_path, rows)
    timing = FixedTiming(prefill=0.1, decode=0.01)
    cluster = SplitPeer(1, 1, num_gpu_blocks=5, timing=timing)
    theirs = run_split_peer(trace, cluster)
    tape = read(trace, cluster)
    ours = replay(tape, cluster, pairs_of(theirs), more_tokens=1)
    # The third is preempted for the second. When it is back, the first waits for its prefill here.
    assert [request.finished for request in theirs] == pytest.approx([1.1, 0.8, 1.35])
    assert ours["end"][:2] == pytest.approx([1.2, 0.8])
    assert ours["end"][2] > 1.35
    free = replay(tape, cluster, pairs_of(theirs), more_tokens=1, free_recompute=True)
    assert free["end"][:2] == pytest.approx([1.1, 0.8])
    assert free["end"][2] == pytest.approx(1.35, abs=0.011)


def test_only_constant_steps_compute_anew_for_nothing(tmp_path: Path) -> None:
    cluster = SplitPeer(1, 1)
    tape = read(write(tmp_path, [(0, 400, 1, [0])]), cluster)
    with pytest.raises(ValueError, match=r"found cluster\.timing None, must be constant times"):
        replay(tape, cluster, in_turns(1, cluster), free_recompute=True)


def test_an_interpreter_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    with pytest.raises(ValueError, match=f"pass python=…, or set {PYTHON_VARIABLE}"):
        run_split_peer(tmp_path / "none", SplitPeer())


@needs_dynamo
def test_dynamos_own_message_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"disaggregated replay of .*none failed: .*open trace"):
        run_split_peer(tmp_path / "none", SplitPeer())
