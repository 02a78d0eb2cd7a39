"""Dynamo's offline replay, called from here."""

import json
import os
import sys
from pathlib import Path

import pytest

from prefixgym.experiments.bench.dynamo_peer import (
    PYTHON_VARIABLE,
    VERSION,
    FixedTiming,
    PeerCluster,
    run_peer,
)

needs_dynamo = pytest.mark.skipif(
    not os.environ.get(PYTHON_VARIABLE), reason=f"needs Dynamo: {PYTHON_VARIABLE} is not set"
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """1,000 tokens of prompt and 3 of answer; alone on their instance."""
    row = {"timestamp": 0, "input_length": 1000, "output_length": 3, "hash_ids": [0, 1]}
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return path


def test_an_interpreter_must_be_named(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    with pytest.raises(ValueError, match=f"pass python=…, or set {PYTHON_VARIABLE}"):
        run_peer(trace)


def test_an_interpreter_without_dynamo_is_explained(trace: Path) -> None:
    with pytest.raises(RuntimeError, match=r"trace\.jsonl failed: .*No module named 'dynamo'"):
        run_peer(trace, python=Path(sys.base_prefix) / "bin" / "python3")


def test_an_interpreter_that_is_not_there_is_named(trace: Path) -> None:
    with pytest.raises(RuntimeError, match=r"failed: there is no /nowhere/python"):
        run_peer(trace, python=Path("/nowhere/python"))


@needs_dynamo
def test_polynomial_steps_take_what_the_docstring_says(trace: Path) -> None:
    result = run_peer(trace, PeerCluster(instances=1), per_request=True)
    assert result.version == VERSION
    (request,) = result.outcomes
    assert (request.prompt_tokens, request.output_tokens, request.reused_tokens) == (1000, 3, 0)
    prefill = 4.209989e-7 * 1000**2 + 1.518344e-2 * 1000 + 16.50142
    shares = [context / (5859 * 512) for context in (1001, 1002)]
    decode = sum(5.74 + 54.01 * u - 25.74 * u**2 for u in shares)
    assert request.first_token == pytest.approx(prefill / 1e3, abs=1e-9)
    assert request.finished == pytest.approx((prefill + decode) / 1e3, abs=2e-9)
    assert result.tpot_mean == pytest.approx(decode / 2e3, abs=2e-9)


@needs_dynamo
def test_fixed_steps_take_what_they_are_told(trace: Path) -> None:
    result = run_peer(trace, PeerCluster(timing=FixedTiming(prefill=0.1, decode=0.01)))
    assert result.outcomes == ()
    assert (result.requests, result.completed) == (1, 1)
    assert result.ttft_mean == pytest.approx(0.1)
    assert result.makespan == pytest.approx(0.12)
