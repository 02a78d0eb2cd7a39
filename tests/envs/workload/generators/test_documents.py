"""Long documents: LooGLE's lengths, and how often a document is asked about."""

import math

import numpy as np
import pytest

from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.generators.documents import LongDocuments
from prefixgym.envs.workload.generators.unique_prompts import UniquePrompts
from prefixgym.envs.workload.reuse import reuse


def test_lengths_are_loogles() -> None:
    # 23,474 ± 6,105 tokens, of which 91 % are shared (`traces.md` §5).
    tape = LongDocuments(20_000, Poisson(1.0), 16, num_documents=5000).tape(0)
    prompt = tape.requests["prompt_tokens"]
    assert prompt.mean() == pytest.approx(23_474, rel=0.03)
    assert prompt.std() == pytest.approx(6105, rel=0.05)
    head = tape.runs["count"][tape.requests["first_run"]] * 16
    assert np.sum(head) / prompt.sum() == pytest.approx(0.91, abs=0.005)


def test_documents_are_asked_about_several_times_and_then_no_more() -> None:
    workload = LongDocuments(30_000, Poisson(1.0), 512)
    tape = workload.tape(0)
    document = tape.runs["start"][tape.requests["first_run"]]
    _, asked = np.unique(document, return_counts=True)
    assert 4 < asked.mean() < 8
    # 0.91 of each prompt but a document's first.
    assert reuse(tape).token_hit == pytest.approx(0.91 * (1 - 1 / asked.mean()), abs=0.02)
    # All but a few are gone after ten half-lives.
    assert len(np.intersect1d(document[:10_000], document[20_000:])) < 3

    stays = LongDocuments(30_000, Poisson(1.0), 512, half_life=math.inf).tape(0)
    assert len(np.unique(stays.runs["start"][stays.requests["first_run"]])) == 300


def test_unique_prompts_have_azures_lengths_and_no_reuse() -> None:
    tape = UniquePrompts(50_000, Poisson(1.0), 16).tape(0)
    found = reuse(tape)
    assert found.token_hit == 0.0
    # Azure's conversation trace: 1,155 in, 211 out, p10 / p50 / p90 / p99 of `traces.md` §3.2.
    assert found.prompt_tokens == pytest.approx(1155, rel=0.05)
    assert found.output_tokens == pytest.approx(211, rel=0.05)
    for column, published in (
        ("prompt_tokens", (207, 1020, 2735, 4142)),
        ("output_tokens", (54, 129, 424, 601)),
    ):
        quantiles = np.quantile(tape.requests[column], (0.1, 0.5, 0.9, 0.99))
        np.testing.assert_allclose(quantiles, published, rtol=0.06)
