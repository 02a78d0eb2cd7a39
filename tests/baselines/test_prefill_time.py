"""Preble's prefill times: every figure derived in the reference, and the curve's defect."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixgym.baselines.prefill_time import (
    A6000_MISTRAL_7B,
    H100_LLAMA_70B_TP2,
    linear_ms,
    prefill_ms,
)


@pytest.mark.parametrize(
    ("new_tokens", "context", "milliseconds"),
    [
        (100, 100, 24.80),
        (256, 256, 38.386),
        (1000, 1000, 125.506),
        (4096, 4096, 553.090),
        (4096, 8192, 602.725),
        (9400, 9400, 1384.333),
    ],
)
def test_the_derived_figures(new_tokens: int, context: int, milliseconds: float) -> None:
    found = prefill_ms(A6000_MISTRAL_7B, new_tokens, context)
    assert found == pytest.approx(milliseconds, abs=6e-4)


def test_h100_llama_70b() -> None:
    # 28.9314 + 182.233 + 8.0073 + 5.101
    assert prefill_ms(H100_LLAMA_70B_TP2, 1000, 2000) == pytest.approx(224.2727)


def test_the_raw_fit_is_negative_from_361_to_383_tokens() -> None:
    assert [n for n in range(1, 1000) if linear_ms(n) < 0] == list(range(361, 384))
    assert linear_ms(361) == pytest.approx(-0.37, abs=5e-3)
    assert linear_ms(383) == pytest.approx(-14.8, abs=0.03)
    assert linear_ms(384) == pytest.approx(45.8, abs=0.05)


@given(st.integers(0, 20_000), st.integers(0, 20_000), st.sampled_from([0, 1]))
def test_no_prefill_is_negative(new: int, more: int, model: int) -> None:
    found = prefill_ms(model, new, new + more)
    assert found == 0 if new == 0 else found > 22 / 0.9
