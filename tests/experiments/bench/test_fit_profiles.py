"""Fitting profiles: refits of the reference's kernel timings against the rows that are shipped."""

import csv
import importlib
from pathlib import Path

import numpy as np
import pytest

from prefixgym.envs.cluster import profiles
from prefixgym.envs.cluster.profiles import profile
from prefixgym.envs.cluster.step_time import TABLE_TOKENS, linear_ms
from prefixgym.experiments.bench import fit_profiles
from prefixgym.experiments.bench.fit_profiles import Samples, fit, linear_formula

REFERENCE = Path(__file__).parents[3].parent / "shared/reference/calibration"

needs_reference = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason=f"calibration tables are not at {REFERENCE}"
)


def reference(file: str, row: dict[str, str], *columns: str) -> np.ndarray:
    """Columns of the reference table `file` for the model, GPU and parallelism of `row`."""
    with (REFERENCE / file).open(encoding="utf-8", newline="") as stream:
        return np.array(
            [
                [float(line[column]) for column in columns]
                for line in csv.DictReader(stream)
                if (line["model"], line["gpu"], line["tp"], line["moe_ep"] or "0")
                == (row["model"], row["gpu"], row["tp"], row["moe_ep"])
            ]
        )


def reference_samples(row: dict[str, str]) -> Samples:
    return Samples(
        linear=reference("aic_linear_vllm.csv", row, "linear_ms").ravel(),
        prefill=reference("aic_prefill_vllm.csv", row, "new_tokens", "cached_tokens", "attn_ms"),
        decode=reference(
            "aic_decode_vllm.csv", row, "batch", "context_tokens", "linear_ms", "attn_ms"
        ),
        kv_bytes_per_token_per_gpu=int(row["kv_bytes_per_token_per_gpu"]),
        kv_bytes_per_token=int(row["kv_bytes_per_token"]),
        kv_capacity_tokens=int(row["kv_capacity_tokens"]),
    )


@needs_reference
@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b/h200/tp1",
        "qwen3-32b/h100/tp2",
        "llama-3.1-70b-fp8/h100/tp4",
        "llama-3.1-70b-fp8/h200/tp2",
        "gpt-oss-120b/h100/tp4",
        "qwen3-235b-a22b-fp8/h200/tp4",
    ],
)
def test_refits_agree_with_the_shipped_rows(name: str) -> None:
    row = profiles._rows()[name]
    refit = fit(reference_samples(row), moe=row["moe_ep"] != "0")
    assert refit.keys() == row.keys() - {"name", "model", "gpu", "tp", "moe_ep"}
    np.testing.assert_allclose(
        np.array(refit["linear_table_ms"].split(), float),
        np.array(row["linear_table_ms"].split(), float),
        rtol=1e-5,
    )
    # The terms that carry the time agree; the small ones trade off against each other.
    for column in ("t0_ms", "p0_ms", "p2_ms_per_tok2", "d0_ms", "d2_ms_per_kvtok"):
        assert float(refit[column]) == pytest.approx(float(row[column]), rel=0.07), column
    # Mean errors in %, whose last digit is 0.1: no worse than those of the shipped fit.
    for column in ("err_prefill_mape", "err_decode_mape", "tab_prefill_mape", "tab_decode_mape"):
        assert float(refit[column]) <= float(row[column]) + 0.15, column


def test_known_coefficients_are_found_again() -> None:
    rng = np.random.default_rng(0)
    formula = np.array([12.0, 0.03, 2.0, 0.02, 9.0, 30.0])
    linear = linear_formula(formula, TABLE_TOKENS.astype(float))
    new = rng.choice(TABLE_TOKENS[4:], 60).astype(float)
    cached, batch, context = (rng.integers(1, high, 60) for high in (60_000, 256, 9_000))
    samples = Samples(
        linear=linear,
        prefill=np.stack([new, cached, 1.4 + 2e-3 * new + 1e-6 * new * (cached + new / 2)], 1),
        decode=np.stack(
            [
                batch,
                context,
                linear_formula(formula, batch.astype(float)),
                1.2 + 3e-3 * batch + 2e-5 * batch * context,
            ],
            1,
        ),
        kv_bytes_per_token_per_gpu=1,
        kv_bytes_per_token=1,
        kv_capacity_tokens=1_000_000,
    )
    row = {column: float(value) for column, value in fit(samples, True).items() if " " not in value}
    found = [row[c] for c in ("t0_ms", "a_ms_per_tok", "q", "b_ms_per_tok", "tE_ms", "nu_tok")]
    np.testing.assert_allclose(found, formula, rtol=1e-3)
    found = [row[c] for c in ("p0_ms", "p1_ms_per_tok", "p2_ms_per_tok2")]
    np.testing.assert_allclose(found, [1.4, 2e-3, 1e-6], rtol=1e-4)
    found = [row[c] for c in ("d0_ms", "d1_ms_per_req", "d2_ms_per_kvtok")]
    np.testing.assert_allclose(found, [1.2, 3e-3, 2e-5], rtol=1e-4)
    assert row["err_prefill_mape"] == row["err_decode_mape"] == 0.0


def test_the_formula_is_the_simulators() -> None:
    name = "gpt-oss-120b/h100/tp2"
    columns = ("t0_ms", "a_ms_per_tok", "q", "b_ms_per_tok", "tE_ms", "nu_tok")
    x = np.array([float(profiles._rows()[name][column]) for column in columns])
    cost = profile(name, linear="formula").step_cost()
    for tokens in (1, 50, 4096):
        assert linear_formula(x, np.array([tokens])) == pytest.approx(
            linear_ms(cost, tokens, False)
        )


def test_a_missing_aiconfigurator_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"pip install aiconfigurator-core==0\.12\.0"):
        fit_profiles.sample("openai/gpt-oss-120b", "h200_sxm", 4, 1)
