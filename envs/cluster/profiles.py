"""Named profiles: what a model on its GPUs costs a step and how many KV tokens it holds.

The coefficients are package data, `compact_coefficients.csv`: fits of the compact step-time model
(`step_time.py`) to kernel timings of NVIDIA AIConfigurator 0.12.0 (Apache-2.0; vLLM 0.24 kernels,
A100: vLLM 0.14), derived figures, none of its files. 32 rows are those of `simulators.md` §3. Eight
were fitted by `experiments/bench/fit_profiles.py`, whose refits of the others agree with them:
Llama-3.1-70B-FP8 on H100 TP8 and H200 TP1, 4, 8; gpt-oss-120b on H100 TP8 and H200 TP2, 4, 8. The
columns (times in ms):

- `name`, `model` (Hugging Face id), `gpu`, `tp`, `moe_ep` (expert parallelism, 0 for dense models);
- linear part of steps with prefill: `t0_ms`, `a_ms_per_tok`, `q`, `b_ms_per_tok`, `tE_ms`,
  `nu_tok`; `dec_*`: of decode-only steps, which differs for DeepSeek alone (MLA decodes with other
  kernels than it prefills with);
- `linear_table_ms`: AIConfigurator's own linear part at the 22 step sizes of
  `step_time.TABLE_TOKENS`, finer than the 12 knots of `simulators.md` §3, which miss how
  mixture-of-experts models bend below 64 tokens. Where a larger step was timed faster (noise, and
  switches of GEMM kernel) an isotonic regression of the logarithms evens it out, so that more
  work never takes less time: by 15 % at most, by less than 3 % in 34 of the 40 rows;
- attention: `p0_ms`, `p1_ms_per_tok`, `p2_ms_per_tok2`, `d0_ms`, `d1_ms_per_req`,
  `d2_ms_per_kvtok`;
- `err_*`: mean and 95th percentile of the closed formula's absolute error against
  AIConfigurator, in %; `tab_*`: mean errors with the table. Decode: states that fit in KV memory;
- `kv_capacity_tokens` at 90 % of GPU memory, `kv_bytes_per_token_per_gpu`, and
  `kv_bytes_per_token` of the whole model, each byte once (TP shards the heads; MLA's latent vector
  is replicated). FP8 checkpoints are sized with an FP8 KV cache.

DeepSeek-V3 on B200 is left out: its source timings fall as the batch grows.
"""

import csv
import difflib
import functools
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import numpy as np

from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.cluster.step_time import COMPACT, POLYNOMIAL, STEP_COST

Linear = Literal["table", "formula"]


@dataclass(frozen=True)
class HostOverhead:
    """Time of an engine step that is not in its kernels, in ms: `step_ms + sequence_ms · n_s`."""

    step_ms: float
    sequence_ms: float


HOST_OVERHEADS = {
    "none": HostOverhead(0.0, 0.0),  # kernels alone
    "vllm-0.12": HostOverhead(1.5, 0.04),  # Qwen3-32B on H100, 86 runs
    "vllm-2025-h100": HostOverhead(1.0, 0.05),  # Llama-3.1-70B-FP8, 29 runs, version not recorded
    "vllm-2025-h200": HostOverhead(1.0, 0.02),  # Llama-3.1-70B-FP8, 38 runs, version not recorded
    "vllm-0.18": HostOverhead(0.25, 0.02),  # gpt-oss-120b on H100 and H200, 63 runs
    "trtllm-1.0": HostOverhead(0.5, 0.01),  # Llama-3.1-8B on H100, 177 runs
}
"""Host terms by engine generation, each fitted to real serving runs (`simulators.md` §3)."""

DEFAULT_HOST = "vllm-0.18"


@dataclass(frozen=True)
class LinearPart:
    """L(n) = ((t0 + tE(1 − e^(−n/ν)))^q + (a·n)^q)^(1/q) + b·n, in ms for n tokens."""

    t0: float
    a: float
    q: float
    b: float
    t_experts: float
    nu: float


@dataclass(frozen=True)
class CompactModel:
    """The compact step-time model, in ms.

    Attributes:
        linear: L(n) of steps with prefill.
        decode_linear: L(n) of decode-only steps.
        linear_table: L(n) at `TABLE_TOKENS`; None uses the closed formulas. Decode-only steps use
            it only if they have no formula of their own, since it was sampled from prefill kernels
            (for DeepSeek it would be 30 % off, the formula is 2 to 3 %).
        prefill_attention: p0, p1 per token, p2 per token².
        decode_attention: d0, d1 per sequence, d2 per KV token.
    """

    linear: LinearPart
    decode_linear: LinearPart
    linear_table: tuple[float, ...] | None
    prefill_attention: tuple[float, float, float]
    decode_attention: tuple[float, float, float]

    def write_to(self, cost: np.void) -> None:
        """Fill the STEP_COST record `cost`."""
        cost["kind"] = COMPACT
        for i, part in enumerate((self.linear, self.decode_linear)):
            for field in LinearPart.__dataclass_fields__:
                cost[field][i] = getattr(part, field)
        if self.linear_table is not None:
            cost["tabulated"] = (1, self.decode_linear == self.linear)
            cost["table"] = self.linear_table
        cost["p0"], cost["p1"], cost["p2"] = self.prefill_attention
        cost["d0"], cost["d1"], cost["d2"] = self.decode_attention
        cost["decode_slope"] = round(self.decode_attention[2] * TICKS_PER_MS)


@dataclass(frozen=True)
class PolynomialModel:
    """The step-time model of Dynamo's mocker, in ms.

    Attributes:
        prefill: coefficients of P⁰, P¹, P² for P new tokens in the step.
        decode: coefficients of u⁰, u¹, u² for the share u of KV capacity in use.
    """

    prefill: tuple[float, float, float]
    decode: tuple[float, float, float]

    def write_to(self, cost: np.void) -> None:
        """Fill the STEP_COST record `cost`."""
        cost["kind"] = POLYNOMIAL
        cost["p0"], cost["p1"], cost["p2"] = self.prefill
        cost["d0"], cost["d1"], cost["d2"] = self.decode


@dataclass(frozen=True)
class FitErrors:
    """Mean absolute error against AIConfigurator's kernel timings, in %, without host terms."""

    prefill_mape: float
    decode_mape: float


@dataclass(frozen=True)
class Profile:
    """One engine: a model on its GPUs.

    Attributes:
        name: how `profile` finds it.
        model: Hugging Face id.
        gpu: a100, h100, h200, b200 or l40s.
        tp: GPUs of one instance (tensor parallelism).
        kv_bytes_per_token: KV bytes that a token takes in the whole model, each byte once.
        kv_capacity_tokens: KV tokens that an instance holds.
        step_model: time of the kernels in a step.
        host: time of the step beside its kernels.
        errors: how far `step_model` is from its source; None if it is not a fit.
    """

    name: str
    model: str
    gpu: str
    tp: int
    kv_bytes_per_token: int
    kv_capacity_tokens: int
    step_model: CompactModel | PolynomialModel
    host: HostOverhead
    errors: FitErrors | None

    def step_cost(self, kv_capacity_tokens: int | None = None) -> np.void:
        """What the kernels of `step_time` need: one STEP_COST record (a structured scalar).

        `costs[i] = profile.step_cost()` puts it into an array.

        Args:
            kv_capacity_tokens: tokens that the instance really holds, if not the profile's; only
                polynomial profiles depend on it.
        """
        cost: np.void = np.zeros(1, dtype=STEP_COST)[0]
        cost["h0"] = self.host.step_ms
        cost["h1"] = self.host.sequence_ms
        cost["kv_capacity"] = kv_capacity_tokens or self.kv_capacity_tokens
        self.step_model.write_to(cost)
        return cost


def constant_profile(
    prefill_ms: float, decode_ms: float, kv_capacity_tokens: int = 1_048_576
) -> Profile:
    """A profile whose steps take `prefill_ms` if they prefill plus `decode_ms` if they decode.

    The `fixed` timing of NVIDIA's aisimulate, for comparison with it and for arithmetic by hand.
    """
    nothing = LinearPart(t0=0.0, a=0.0, q=1.0, b=0.0, t_experts=0.0, nu=0.0)
    return Profile(
        name=f"constant({prefill_ms:g}, {decode_ms:g})",
        model="none",
        gpu="none",
        tp=1,
        kv_bytes_per_token=131_072,
        kv_capacity_tokens=kv_capacity_tokens,
        step_model=CompactModel(
            linear=nothing,
            decode_linear=nothing,
            linear_table=None,
            prefill_attention=(prefill_ms, 0.0, 0.0),
            decode_attention=(decode_ms, 0.0, 0.0),
        ),
        host=HOST_OVERHEADS["none"],
        errors=None,
    )


MOCKER = "dynamo-mocker/polynomial"


def _mocker_profile(host: HostOverhead) -> Profile:
    """Default timing of Dynamo's mocker and replay: one set of numbers for every model and GPU.

    Coefficients: ai-dynamo/dynamo, `lib/mocker/src/common/perf_model.rs`. Capacity: its 16,384
    blocks of 64 tokens. KV bytes: Llama-3.1-8B's, to which its times are closest.
    """
    return Profile(
        name=MOCKER,
        model="any",
        gpu="any",
        tp=1,
        kv_bytes_per_token=131_072,
        kv_capacity_tokens=16_384 * 64,
        step_model=PolynomialModel(
            prefill=(16.50142, 1.518344e-2, 4.209989e-7),
            decode=(5.74, 54.01, -25.74),
        ),
        host=host,
        errors=None,
    )


@functools.cache
def _rows() -> dict[str, dict[str, str]]:
    """The coefficient table by profile name."""
    source = resources.files("prefixgym.envs.cluster") / "compact_coefficients.csv"
    with source.open(encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


def profile_names() -> tuple[str, ...]:
    """All names that `profile` knows: `<model>/<gpu>/tp<N>`, with `/ep<M>` if rows differ in it."""
    return (*_rows(), MOCKER)


def profile(name: str, host: str | None = None, linear: Linear = "table") -> Profile:
    """The profile called `name`.

    Args:
        name: one of `profile_names()`.
        host: one of `HOST_OVERHEADS`. By default `vllm-0.18`: host time is software, it fell from
            1.5 to 0.25 ms between generations, and this is the newest one measured, next to the
            0.24 kernels of the coefficients; to imitate an older engine, name it. The mocker's
            polynomial stands for whole steps, its default is `none`. For domain randomisation,
            `dataclasses.replace(profile, host=HostOverhead(…))` with 0.25 to 2 and 0.01 to 0.05.
        linear: "table" interpolates the linear part's measured points (errors of 0.6 to 3.0 % on
            prefill and 0.7 to 3.1 % on decode; DeepSeek's prefill 4.5 %) with nothing but
            arithmetic that every machine rounds alike; "formula" is the closed form, smooth in the
            tokens (1.7 to 7.7 % and 1.4 to 6.7 %). `Profile.errors` has the profile's own. The
            mocker has no linear part.

    Raises:
        ValueError: for a name, host or linear that does not exist.
    """
    if name not in profile_names():
        close = difflib.get_close_matches(name, profile_names(), n=4, cutoff=0.5)
        raise ValueError(
            f"profile: found {name!r}, "
            + (f"close to {', '.join(close)}; " if close else "")
            + "prefixgym.envs.cluster.profiles.profile_names() lists all"
        )
    if host is not None and host not in HOST_OVERHEADS:
        raise ValueError(f"profile host: found {host!r}, allowed: {', '.join(HOST_OVERHEADS)}")
    if linear not in ("table", "formula"):
        raise ValueError(f"profile linear: found {linear!r}, allowed: table, formula")
    if name == MOCKER:
        return _mocker_profile(HOST_OVERHEADS[host or "none"])

    row = _rows()[name]

    def numbers(*columns: str) -> tuple[float, ...]:
        return tuple(float(row[column]) for column in columns)

    p0, p1, p2 = numbers("p0_ms", "p1_ms_per_tok", "p2_ms_per_tok2")
    d0, d1, d2 = numbers("d0_ms", "d1_ms_per_req", "d2_ms_per_kvtok")
    errors = "tab" if linear == "table" else "err"
    return Profile(
        name=name,
        model=row["model"],
        gpu=row["gpu"].removesuffix("_sxm"),
        tp=int(row["tp"]),
        kv_bytes_per_token=int(row["kv_bytes_per_token"]),
        kv_capacity_tokens=int(row["kv_capacity_tokens"]),
        step_model=CompactModel(
            linear=LinearPart(
                *numbers("t0_ms", "a_ms_per_tok", "q", "b_ms_per_tok", "tE_ms", "nu_tok")
            ),
            decode_linear=LinearPart(
                *numbers("dec_t0_ms", "dec_a", "dec_q", "dec_b", "dec_tE_ms", "dec_nu")
            ),
            linear_table=(
                tuple(map(float, row["linear_table_ms"].split())) if linear == "table" else None
            ),
            prefill_attention=(p0, p1, p2),
            decode_attention=(d0, d1, d2),
        ),
        host=HOST_OVERHEADS[host or DEFAULT_HOST],
        errors=FitErrors(*numbers(f"{errors}_prefill_mape", f"{errors}_decode_mape")),
    )
