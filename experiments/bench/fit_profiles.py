"""Fit a row of `compact_coefficients.csv`: a new model, GPU or tensor parallelism.

Samples the kernel timings of NVIDIA AIConfigurator (Apache-2.0) and fits the compact step-time
model of `prefixgym.envs.cluster.step_time` to them:

- linear part, t0 … ν and `linear_table_ms`: the non-attention kernels of a step of n tokens, at
  `TABLE_TOKENS`. The table is made monotone; the formula minimises a robust error of log L(n), in
  which steps of at most 256 tokens count double: those are the steps that only decode;
- prefill attention, p0 … p2: one request of 16 to 16,384 new tokens on 0 to 65,536 cached ones;
- decode attention, d0 … d2: 1 to 256 sequences of 128 to 65,536 tokens, where they fit in memory.

Both attentions are non-negative least squares weighted by 1/√(attention · step). Errors relative to
the attention alone would spend the fit on states in which attention hardly counts, errors relative
to the step on long contexts alone.

AIConfigurator is no dependency: `pip install aiconfigurator-core==0.12.0` (114 MB, Linux). Then

    python -m prefixgym.experiments.bench.fit_profiles openai/gpt-oss-120b h200_sxm 4 --moe-ep 1
"""

import argparse
import csv
import importlib
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, least_squares, nnls

from prefixgym.envs.cluster.step_time import TABLE_TOKENS

Floats = NDArray[np.float64]

PACKAGE = "aiconfigurator-core==0.12.0"
BACKEND, BACKEND_VERSION = "vllm", "0.24.0"
NEW_TOKENS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CACHED_TOKENS = (0, 512, 2048, 8192, 32768, 65536)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
MOST_CONTEXT = 1 << 22
"""Most KV tokens in a sampled batch."""


@dataclass(frozen=True)
class Samples:
    """Kernel timings of one model on its GPUs, in ms.

    Attributes:
        linear: all but attention, float [22] at `TABLE_TOKENS`.
        prefill: columns new tokens (all in `TABLE_TOKENS`), cached tokens, attention; [P, 3].
        decode: columns sequences, KV tokens of each, linear part, attention; [D, 4].
        kv_bytes_per_token_per_gpu: KV bytes that a token takes on each GPU.
        kv_bytes_per_token: those of the whole model, each byte once.
        kv_capacity_tokens: tokens that 90 % of GPU memory hold beside the model.
    """

    linear: Floats
    prefill: Floats
    decode: Floats
    kv_bytes_per_token_per_gpu: int
    kv_bytes_per_token: int
    kv_capacity_tokens: int


def sample(model: str, gpu: str, tp: int, moe_ep: int = 0) -> Samples:
    """Ask AIConfigurator.

    Args:
        model: Hugging Face id that AIConfigurator knows.
        gpu: its name there, such as "h200_sxm".
        tp: GPUs of one instance.
        moe_ep: expert parallelism; the rest of `tp` splits each expert. 0 for dense models.

    Raises:
        ImportError: AIConfigurator is not installed.
        ValueError: AIConfigurator cannot price the combination, or the model decodes with other
            linear kernels than it prefills with (MLA), which this fit does not cover.
    """
    try:
        engine = importlib.import_module("aiconfigurator_core.sdk.engine")
        memory = importlib.import_module("aiconfigurator_core.sdk.memory")
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; pip install {PACKAGE}") from None

    def kv_cache(tp: int, experts: int, **options: Any) -> dict[str, Any]:
        estimate: dict[str, Any] = memory.estimate_kv_cache(
            model,
            gpu,
            BACKEND,
            BACKEND_VERSION,
            max_num_tokens=8192,
            max_batch_size=256,
            memory_fraction_kind="of_total",
            memory_fraction_value=0.9,
            **_parallelism(tp, experts),
            **options,
        )
        return estimate

    try:
        handle = engine.EngineHandle.compile(
            model, gpu, BACKEND, backend_version=BACKEND_VERSION, **_parallelism(tp, moe_ep)
        )
    except Exception as error:  # of many kinds, assertions among them
        raise ValueError(f"AIConfigurator on {model}, {gpu}, tp {tp}: {error}") from error
    samples = Samples(
        linear=np.array(
            [handle.mixed_step_breakdown(int(n), 0, int(n), 2)[1] for n in TABLE_TOKENS]
        ),
        prefill=np.array(
            [
                (new, cached, _prefill_attention(handle, new, cached))
                for new in NEW_TOKENS
                for cached in CACHED_TOKENS
            ]
        ),
        decode=np.array(
            [
                (batch, context, *_split(handle.decode_step_per_op(batch, context, 2)))
                for batch in BATCHES
                for context in CONTEXTS
                if batch * context <= MOST_CONTEXT
            ]
        ),
        kv_bytes_per_token_per_gpu=kv_cache(tp, moe_ep)["kv_size_per_token_bytes"],
        kv_bytes_per_token=kv_cache(1, min(moe_ep, 1), gpu_memory_capacity_bytes_override=1 << 44)[
            "kv_size_per_token_bytes"
        ],
        kv_capacity_tokens=kv_cache(tp, moe_ep)["total_kv_size_tokens"],
    )
    apart = np.abs(
        samples.decode[:, 2] / np.interp(samples.decode[:, 0], TABLE_TOKENS, samples.linear) - 1
    ).max()
    if apart > 0.1:
        raise ValueError(
            f"{model}: the linear kernels of decode and prefill differ by {apart:.0%}, allowed: 10%"
        )
    return samples


def _parallelism(tp: int, moe_ep: int) -> dict[str, int]:
    experts = {"moe_tp_size": tp // moe_ep, "moe_ep_size": moe_ep} if moe_ep else {}
    return {"tp_size": tp, **experts}


def _split(operations: list[tuple[str, float, float, str]]) -> tuple[float, float]:
    """Time of the linear part and of attention."""
    attention = sum(op[1] for op in operations if op[0].endswith("_attention"))
    return sum(op[1] for op in operations) - attention, attention


def _prefill_attention(handle: Any, new: int, cached: int) -> float:
    operations, _ = handle.run_static_per_op(
        batch_size=1, isl=new + cached, osl=2, prefix=cached, mode="static_ctx"
    )
    return _split(operations)[1]


# --- the fit ------------------------------------------------------------------------------------


def monotone(linear: Floats) -> Floats:
    """`linear` without falls, by isotonic regression of its logarithm: more work takes no less."""
    smooth: Floats = np.exp(isotonic_regression(np.log(linear)).x)
    return smooth


def linear_formula(x: Floats, tokens: Floats) -> Floats:
    """L(n) of `step_time` for x = (t0, a, q, b, tE, ν)."""
    t0, a, q, b, t_experts, nu = x
    fixed = t0 + (t_experts * -np.expm1(-tokens / nu) if nu > 0 else 0.0)
    value: Floats = (fixed**q + (a * tokens) ** q) ** (1 / q) + b * tokens
    return value


def fit_linear(linear: Floats, moe: bool) -> Floats:
    """(t0, a, q, b, tE, ν) of the closed formula, the last two 0 unless `moe`."""
    tokens = TABLE_TOKENS.astype(float)
    slope = linear[-1] / tokens[-1]
    # t0, a, b, tE, ν are positive: their logarithms are fitted; q stays within [1, 12].
    free = np.array([True, True, True, True, moe, moe])

    def parameters(z: Floats) -> Floats:
        x = np.zeros(6)
        x[free] = np.exp(z)
        return x

    weight = np.where(tokens <= 256, 2.0, 1.0)

    def log_error(z: Floats) -> Floats:
        error: Floats = weight * np.log(linear_formula(parameters(z), tokens) / linear)
        return error

    low, high = np.full(6, -25.0), np.full(6, 8.0)
    low[2], high[2] = 0.0, np.log(12.0)
    fits = [
        least_squares(
            log_error,
            np.log([linear[0], share * slope, q, (1 - share) * slope, linear[6], 30.0])[free],
            bounds=(low[free], high[free]),
            loss="soft_l1",
            f_scale=0.02,
        )
        for share in (0.1, 0.5, 0.9)
        for q in (1.3, 3.0, 8.0)
    ]
    return parameters(min(fits, key=lambda fit: float(fit.cost)).x)


def fit_attention(terms: Floats, attention: Floats, step: Floats) -> Floats:
    """Non-negative coefficients c of attention ≈ terms · c, float [3]."""
    weight = 1 / np.sqrt(attention * step)
    scale = terms.max(axis=0)
    coefficients: Floats = nnls(terms / scale * weight[:, None], attention * weight)[0] / scale
    return coefficients


def fit(samples: Samples, moe: bool) -> dict[str, str]:
    """The columns of a row that come from the samples, formatted."""
    new, cached, prefill_attention = samples.prefill.T
    prefill_linear = samples.linear[np.searchsorted(TABLE_TOKENS, new)]
    prefill_terms = np.stack([np.ones_like(new), new, new * (cached + new / 2)], axis=1)
    prefill_step = prefill_linear + prefill_attention
    p = fit_attention(prefill_terms, prefill_attention, prefill_step)

    in_memory = samples.decode[:, 0] * samples.decode[:, 1] <= samples.kv_capacity_tokens
    batch, context, decode_linear, decode_attention = samples.decode[in_memory].T
    decode_terms = np.stack([np.ones_like(batch), batch, batch * context], axis=1)
    decode_step = decode_linear + decode_attention
    d = fit_attention(decode_terms, decode_attention, decode_step)

    formula = fit_linear(samples.linear, moe)
    table = monotone(samples.linear)

    def errors(linear: Floats, terms: Floats, c: Floats, step: Floats) -> Floats:
        percent: Floats = 100 * np.abs((linear + terms @ c) / step - 1)
        return percent

    err_prefill = errors(linear_formula(formula, new), prefill_terms, p, prefill_step)
    err_decode = errors(linear_formula(formula, batch), decode_terms, d, decode_step)
    tab_prefill = errors(np.interp(new, TABLE_TOKENS, table), prefill_terms, p, prefill_step)
    tab_decode = errors(np.interp(batch, TABLE_TOKENS, table), decode_terms, d, decode_step)
    err_linear = 100 * np.abs(
        linear_formula(formula, TABLE_TOKENS.astype(float)) / samples.linear - 1
    )
    linear_columns = ("t0_ms", "a_ms_per_tok", "q", "b_ms_per_tok", "tE_ms", "nu_tok")
    decode_columns = ("dec_t0_ms", "dec_a", "dec_q", "dec_b", "dec_tE_ms", "dec_nu")
    coefficients = {
        **dict(zip(decode_columns, formula, strict=True)),
        **dict(zip(linear_columns, formula, strict=True)),
        **dict(zip(("p0_ms", "p1_ms_per_tok", "p2_ms_per_tok2"), p, strict=True)),
        **dict(zip(("d0_ms", "d1_ms_per_req", "d2_ms_per_kvtok"), d, strict=True)),
    }
    percentages = {
        "err_prefill_mape": err_prefill.mean(),
        "err_prefill_p95": np.percentile(err_prefill, 95),
        "err_decode_mape": err_decode.mean(),
        "err_decode_p95": np.percentile(err_decode, 95),
        "err_linear_mape": err_linear.mean(),
        "tab_prefill_mape": tab_prefill.mean(),
        "tab_decode_mape": tab_decode.mean(),
    }
    return {
        **{column: f"{value:.6g}" for column, value in coefficients.items()},
        **{column: f"{value:.1f}" for column, value in percentages.items()},
        "kv_bytes_per_token_per_gpu": str(samples.kv_bytes_per_token_per_gpu),
        "kv_capacity_tokens": str(samples.kv_capacity_tokens),
        "kv_bytes_per_token": str(samples.kv_bytes_per_token),
        "linear_table_ms": " ".join(f"{value:.6g}" for value in table),
    }


def main() -> None:
    """Print a header and the row of one model on its GPUs, as CSV."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", help="Hugging Face id")
    parser.add_argument("gpu", help="AIConfigurator's name, such as h200_sxm")
    parser.add_argument("tp", type=int, help="GPUs of one instance")
    parser.add_argument("--moe-ep", type=int, default=0, help="expert parallelism (0: dense)")
    parser.add_argument("--name", help="of the model in the profile's name")
    options = parser.parse_args()
    try:
        samples = sample(options.model, options.gpu, options.tp, options.moe_ep)
    except (ImportError, ValueError) as error:
        sys.exit(f"error: {error}")
    name = options.name or options.model.split("/")[-1].lower()
    row = {
        "name": f"{name}/{options.gpu.removesuffix('_sxm')}/tp{options.tp}",
        "model": options.model,
        "gpu": options.gpu,
        "tp": str(options.tp),
        "moe_ep": str(options.moe_ep),
        **fit(samples, moe=options.moe_ep > 0),
    }
    writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
    writer.writeheader()
    writer.writerow(row)


if __name__ == "__main__":
    main()
