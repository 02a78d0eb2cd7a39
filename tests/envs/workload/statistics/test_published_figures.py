"""The figures that `traces.md` §3 prints for the traces at hand, to the digits printed there."""

import functools
from pathlib import Path
from typing import Any

import pytest

from prefixgym.envs.workload.readers.registry import read_trace
from prefixgym.envs.workload.statistics.lru_curve import LruCurve
from prefixgym.envs.workload.statistics.summary import Statistics, statistics

CONVERSATION = "mooncake_conversation/conversation_trace.jsonl.gz"
SYNTHETIC = "mooncake_synthetic/synthetic_trace.jsonl.gz"
HEAD1000 = "mooncake_arxiv_toolagent_head1000/mooncake_trace_1000.jsonl.gz"
MOONCAKE = (CONVERSATION, SYNTHETIC, HEAD1000)
AZURE_CODE = "azure_llm_2023/AzureLLMInferenceTrace_code.csv.gz"
AZURE_CONVERSATION = "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz"
CLAUDE_CODE = "claude_code_v8_local/requests.jsonl.gz"


@functools.cache
def of(path: Path) -> Statistics:
    if not path.exists():
        pytest.skip(f"needs a real trace: {path} is not there")
    return statistics(read_trace(path))


def near(printed: str) -> Any:
    """A number as printed: half a unit of its last digit off at most."""
    text = printed.replace(",", "")
    digits = len(text.partition(".")[2])
    return pytest.approx(float(text), abs=0.5001 * 10.0**-digits)


def all_near(found: dict[str, float], printed: str) -> None:
    for (level, value), text in zip(found.items(), printed.split(" / "), strict=True):
        assert value == near(text), level


TRAFFIC = {  # §3.1: req/s, prompt tok/s, CV raw, CV spread, ties %, dispersion, peak
    CONVERSATION: ("3.40", "40900", "3.03", 1.01, "90", "7.9 / 2.1 / 2.9", "1.21"),
    SYNTHETIC: ("3.91", "59900", "1.01", 1.01, "0", "1.1 / 1.2 / 1.2", "1.17"),
    HEAD1000: ("5.65", "55300", "4.03", 1.01, "94", "12.5 / 4.4", None),
    AZURE_CODE: ("2.57", "5300", "13.2", 13.2, "0", "13 / 72 / 164", "4.18"),
    AZURE_CONVERSATION: ("5.53", "6400", "1.09", 1.09, "0", "1.4 / 3.9 / 16.1", "1.52"),
}


@pytest.mark.parametrize("name", TRAFFIC)
def test_arrivals(traces: Path, name: str) -> None:
    found = of(traces / name).traffic
    rate, tokens, cv, spread_cv, ties, dispersion, peak = TRAFFIC[name]
    assert found.rate == near(rate)
    assert found.prompt_token_rate == pytest.approx(float(tokens), abs=50)
    assert found.gap_cv == near(cv)
    assert found.gap_cv_spread == pytest.approx(spread_cv, abs=0.06)  # spread at random
    assert 100 * found.ties == near(ties)
    for value, text in zip(found.dispersion.values(), dispersion.split(" / "), strict=False):
        assert value == near(text)
    if peak is not None:
        assert found.peak == near(peak)


LENGTHS = {  # §3.2: mean / p10 / p50 / p90 / p99 of inputs, then of outputs
    CONVERSATION: ("12035 / 964 / 6909 / 27367 / 85400", "343 / 24 / 350 / 597 / 1119"),
    SYNTHETIC: ("15325 / 30 / 11587 / 38611 / 66456", "149 / 4 / 69 / 389 / 768"),
    HEAD1000: ("9792 / 2125 / 6558 / 19789 / 77828", "199 / 3 / 34 / 534 / 831"),
    CLAUDE_CODE: ("122379 / 42420 / 103659 / 233633 / 498519", "440 / 105 / 216 / 898 / 3686"),
    AZURE_CODE: ("2048 / 147 / 1469 / 5188 / 7436", "28 / 7 / 13 / 55 / 251"),
    AZURE_CONVERSATION: ("1155 / 207 / 1020 / 2735 / 4142", "211 / 54 / 129 / 424 / 601"),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths(traces: Path, name: str) -> None:
    found = of(traces / name)
    for lengths, printed in zip(
        (found.prompt_tokens, found.output_tokens), LENGTHS[name], strict=True
    ):
        for value, text in zip(lengths.values(), printed.split(" / "), strict=False):
            assert value == pytest.approx(float(text), abs=0.51)


LRU = {  # §3.4: blocks, block hit, and token hit of the 2nd half where printed
    CONVERSATION: (
        (1_000, "0.045", "0.047"),
        (3_000, "0.065", "0.067"),
        (5_859, "0.136", "0.137"),
        (10_000, "0.212", "0.220"),
        (30_000, "0.326", "0.344"),
        (50_000, "0.355", "0.377"),
        (100_000, "0.364", "0.392"),
        (182_790, "0.366", "0.398"),
    ),
    SYNTHETIC: (
        (1_000, "0.084", "0.130"),
        (3_000, "0.191", "0.288"),
        (5_859, "0.309", "0.453"),
        (10_000, "0.424", "0.604"),
        (30_000, "0.624", "0.838"),
        (43_924, "0.640", "0.863"),
    ),
    HEAD1000: (
        (1_000, "0.283", "0.293"),
        (3_000, "0.299", "0.320"),
        (5_859, "0.343", "0.392"),
        (10_000, "0.379", "0.465"),
        (12_207, "0.380", "0.467"),
    ),
}
LRU_4_DIGITS = {  # §7.2
    CONVERSATION: {1_000: 0.0445, 10_000: 0.2116, 30_000: 0.3257, 50_000: 0.3546, 100_000: 0.3637},
    SYNTHETIC: {1_000: 0.0841, 10_000: 0.4239, 30_000: 0.6242},
}


@pytest.mark.parametrize("name", MOONCAKE)
def test_lru_curve(traces: Path, name: str) -> None:
    found = of(traces / name).lru
    assert isinstance(found, LruCurve)
    rows = zip(found.capacity, found.block_hit, found.token_hit_second_half, strict=True)
    for (capacity, block, token), (blocks, block_hit, token_hit) in zip(
        rows, LRU[name], strict=True
    ):
        assert capacity == blocks
        assert block == near(block_hit)
        assert token == near(token_hit)
        expected = LRU_4_DIGITS.get(name, {}).get(capacity)
        assert expected is None or round(block, 4) == expected


SHARING = {  # §3.5: roots, top shares %, Zipf slope and R² of roots or blocks, where hits come from
    CONVERSATION: ("1", "100", None, ("0.45", "0.95"), "0.042 / 0.301 / 0.024"),
    SYNTHETIC: ("2211", "0.6", ("0.57", "0.80"), None, None),
    HEAD1000: ("3", "48.6 / 36.1 / 15.3", None, None, "0.283 / 0.078 / 0.020"),
}


@pytest.mark.parametrize("name", MOONCAKE)
def test_sharing(traces: Path, name: str) -> None:
    found = of(traces / name).sharing
    assert found is not None
    roots, top, root_zipf, block_zipf, hits = SHARING[name]
    assert found.roots == int(roots)
    for share, text in zip(found.top_roots, top.split(" / "), strict=False):
        assert 100 * share == near(text)
    for exponent, printed in ((found.root_zipf, root_zipf), (found.block_zipf, block_zipf)):
        if printed is not None:
            assert exponent[0] == pytest.approx(float(printed[0]), abs=0.0061)
            assert exponent[1] == near(printed[1])
    if hits is not None:
        parts = (found.hot_hit, found.continuation_hit, found.other_hit)
        for part, text in zip(parts, hits.split(" / "), strict=True):
            assert part == pytest.approx(float(text), abs=0.0006)


SESSIONS = {  # §3.6: sessions, multi-turn % of sessions / requests, turns, gaps, reuse gaps
    CONVERSATION: (
        "8066",
        "25 / 50",
        "1 / 2 / 7 / 43",
        "42 / 126 / 324 / 480 / 1462",
        "45 / 135 / 354 / 531 / 1710",
    ),
    SYNTHETIC: (
        "3071",
        "18 / 37",
        "1 / 2 / 5 / 8",
        "5 / 61 / 203 / 307 / 609",
        "5 / 59 / 187 / 282 / 583",
    ),
}


@pytest.mark.parametrize("name", SESSIONS)
def test_sessions(traces: Path, name: str) -> None:
    found = of(traces / name)
    sessions, multi_turn, turns, gaps, reuse_gaps = SESSIONS[name]
    assert found.sessions.derived
    assert found.sessions.sessions == int(sessions)
    shares = (found.sessions.multi_turn_sessions, found.sessions.multi_turn_requests)
    for share, text in zip(shares, multi_turn.split(" / "), strict=True):
        assert 100 * share == near(text)
    all_near(found.sessions.turns, turns)
    all_near(found.sessions.gap, gaps)
    all_near(found.reuse_gap, reuse_gaps)
    if name == CONVERSATION:
        all_near(found.sessions.growth, "75 / 475 / 4705")
        all_near(found.sessions.added, "-2 / 27 / 4369")


def test_claude_code(traces: Path) -> None:
    found = of(traces / CLAUDE_CODE)
    assert found.reuse is not None
    assert found.lru is not None
    assert found.reuse.blocks / 1e6 == near("94.31")  # §3.3
    assert found.reuse.unique_blocks / 1e6 == near("3.451")
    assert found.reuse.block_hit == near("0.963")
    assert found.reuse.token_hit == near("0.963")
    assert found.sessions.sessions == 710  # §3.6
    assert found.sessions.turns["p50"] == pytest.approx(46, abs=0.6)
    all_near({k: found.sessions.turns[k] for k in ("p90", "p99", "max")}, "157 / 341 / 561")
    # §3.4, all sessions from 0 on. There calls take the time recorded, here an assumed one.
    lru = dict(zip(found.lru.capacity, found.lru.block_hit, strict=True))
    printed = {1_000: 0.012, 10_000: 0.084, 50_000: 0.257, 100_000: 0.454, 300_000: 0.779}
    for capacity, hit in printed.items():
        assert lru[capacity] == pytest.approx(hit, abs=0.02)
