"""How long one engine step takes: the compact cost model, compiled.

A step prefills chunks i of c_i new tokens on k_i tokens already in KV and decodes B sequences:

    P = Σ c_i       work = Σ c_i (k_i + c_i/2)       K = Σ KV tokens of the decoding sequences

    t = h0 + h1·n_s                                   host: scheduler, input preparation, sampling
      + L(P + B)                                      weights, GEMM, norms, all-reduce
      + [P>0] (p0 + p1·P + p2·work)                   prefill attention
      + [B>0] (d0 + d1·B + d2·K)                      decode attention                        [ms]

with n_s the scheduled sequences. Source: `simulators.md` §3, fitted on NVIDIA AIConfigurator's
kernel timings and checked on real serving runs. Kernels return ticks (`prefixgym.envs.clock`).

Time is linear in K, and `decode_slope` = d2 in whole ticks, so that K enters as an exact integer
term: decode-only steps form an arithmetic series that an engine leaps over (`decode_leap_ticks`).
The `POLYNOMIAL` kind (NVIDIA Dynamo's mocker) is quadratic in K and has a closed sum too.
"""

import math
from typing import Any

import numpy as np

from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.jit import cold_kernel, kernel

COMPACT = 0
POLYNOMIAL = 1

TABLE_TOKENS = np.array(
    [
        *(1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256),
        *(384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384),
    ],
    dtype=np.int64,
)
"""Tokens in a step at which the linear part is tabulated: AIConfigurator's own sampling points.
Half of them lie at or below 256 tokens, where mixture-of-experts models bend most."""

STEP_COST = np.dtype(
    [
        ("kind", np.int64),  # COMPACT or POLYNOMIAL
        ("h0", np.float64),  # ms a step
        ("h1", np.float64),  # ms a scheduled sequence
        # L(n); index 0: steps with prefill, 1: decode-only steps
        ("tabulated", np.int64, (2,)),  # 1: L(n) is interpolated in `table`, 0: closed formula
        ("t0", np.float64, (2,)),
        ("a", np.float64, (2,)),
        ("q", np.float64, (2,)),
        ("b", np.float64, (2,)),
        ("t_experts", np.float64, (2,)),
        ("nu", np.float64, (2,)),
        ("table", np.float64, (len(TABLE_TOKENS),)),  # ms at TABLE_TOKENS
        # attention; POLYNOMIAL: powers 0 to 2 of P, and of the share of KV in use
        ("p0", np.float64),
        ("p1", np.float64),
        ("p2", np.float64),
        ("d0", np.float64),
        ("d1", np.float64),
        ("d2", np.float64),
        ("decode_slope", np.int64),  # ticks per KV token; 0 for POLYNOMIAL
        ("kv_capacity", np.float64),  # tokens
    ],
    align=True,
)
"""Everything the kernels need of one instance; see `Profile.step_cost`."""

StepCost = Any
"""One record of a STEP_COST array."""


@kernel
def _interpolate(table: Any, tokens: int) -> float:
    """`table` at `tokens`, linear between TABLE_TOKENS and along the last segment beyond them."""
    low = 0
    high = len(TABLE_TOKENS) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if TABLE_TOKENS[middle] <= tokens:
            low = middle
        else:
            high = middle
    share = (tokens - TABLE_TOKENS[low]) / (TABLE_TOKENS[high] - TABLE_TOKENS[low])
    value: float = table[low] + share * (table[high] - table[low])
    return value


@kernel
def linear_ms(cost: StepCost, tokens: int, decode_only: bool) -> float:
    """Time of everything but attention for a step of `tokens` tokens, in ms.

    L(n) = (F(n)^q + (a·n)^q)^(1/q) + b·n  with  F(n) = t0 + tE·(1 − e^(−n/ν)),
    where tE is the time to read the experts that n tokens touch (0 for dense models);
    or the table, if the record has one for this sort of step.
    """
    part = 1 if decode_only else 0
    if cost.tabulated[part]:
        return _interpolate(cost.table, tokens)
    fixed = cost.t0[part]
    if cost.t_experts[part] > 0.0:
        fixed -= cost.t_experts[part] * math.expm1(-tokens / cost.nu[part])
    q = cost.q[part]
    value: float = (fixed**q + (cost.a[part] * tokens) ** q) ** (1.0 / q) + cost.b[part] * tokens
    return value


@kernel
def _compact_base_ticks(
    cost: StepCost,
    prefill_tokens: int,
    attention_work: float,
    decode_sequences: int,
    scheduled_sequences: int,
) -> int:
    """The step of the compact model without its term in K, rounded to a tick."""
    ms = (
        cost.h0
        + cost.h1 * scheduled_sequences
        + linear_ms(cost, prefill_tokens + decode_sequences, prefill_tokens == 0)
    )
    if prefill_tokens > 0:
        ms += cost.p0 + cost.p1 * prefill_tokens + cost.p2 * attention_work
    if decode_sequences > 0:
        ms += cost.d0 + cost.d1 * decode_sequences
    return int(np.rint(ms * TICKS_PER_MS))


@kernel
def _polynomial_ticks(
    cost: StepCost,
    prefill_tokens: int,
    decode_sequences: int,
    decode_context: int,
    scheduled_sequences: int,
) -> int:
    """The step of Dynamo's mocker: cached tokens are free, and the batch size does not matter.

    [P>0] (p0 + p1·P + p2·P²) + [B>0] max(1, d0 + d1·u + d2·u²), u = K / KV capacity in [0, 1].
    """
    ms = cost.h0 + cost.h1 * scheduled_sequences
    if prefill_tokens > 0:
        ms += cost.p0 + prefill_tokens * (cost.p1 + prefill_tokens * cost.p2)
    if decode_sequences > 0:
        # Sequences that share blocks can add up to more tokens than the cache holds.
        used = min(decode_context / cost.kv_capacity, 1.0)
        ms += max(1.0, cost.d0 + used * (cost.d1 + used * cost.d2))
    return int(np.rint(ms * TICKS_PER_MS))


@kernel
def step_ticks(
    cost: StepCost,
    prefill_tokens: int,
    attention_work: float,
    decode_sequences: int,
    decode_context: int,
    scheduled_sequences: int,
) -> int:
    """Duration of one engine step, in ticks.

    Args:
        cost: record of the instance.
        prefill_tokens: P = Σ c_i, prompt tokens computed in this step.
        attention_work: Σ c_i (k_i + c_i/2), k_i the tokens that chunk i finds in KV (token²).
        decode_sequences: B, sequences that decode one token each.
        decode_context: K, tokens in KV of those B sequences together; 0 if there are none.
        scheduled_sequences: n_s, sequences with a chunk or a token in this step.
    """
    if cost.kind == POLYNOMIAL:
        return _polynomial_ticks(
            cost, prefill_tokens, decode_sequences, decode_context, scheduled_sequences
        )
    base = _compact_base_ticks(
        cost, prefill_tokens, attention_work, decode_sequences, scheduled_sequences
    )
    ticks: int = base + cost.decode_slope * decode_context
    return ticks


@kernel
def decode_base_ticks(cost: StepCost, decode_sequences: int) -> int:
    """A decode-only step of `decode_sequences` sequences without its KV tokens, in ticks.

    Exactly `step_ticks(cost, 0, 0.0, B, K, B) - cost.decode_slope * K` at any K, for records that
    are linear in context; meaningless for others.
    """
    return _compact_base_ticks(cost, 0, 0.0, decode_sequences, decode_sequences)


@kernel
def longest_decode_leap(cost: StepCost, decode_sequences: int, decode_context: int) -> int:
    """Decode-only steps from here on that `decode_leap_ticks` can sum, at least 1.

    Only POLYNOMIAL has an end: its cost stops growing once K reaches the KV capacity.
    """
    if cost.kind == COMPACT:
        return np.iinfo(np.int64).max
    return max(1, int((cost.kv_capacity - decode_context) // decode_sequences))


@kernel
def decode_leap_ticks(
    cost: StepCost, base: int, decode_sequences: int, decode_context: int, steps: int
) -> int:
    """Duration of `steps` decode-only steps in a row of the same B sequences, in ticks.

    Every step adds B tokens to K, so step j (from 0) attends to K + B·j. With S1 = Σ (K + B·j) =
    m·K + B·m(m − 1)/2 over m steps, the compact model takes exactly m·base + decode_slope·S1: whole
    ticks, so that any way to cut a leap into pieces gives the same times. POLYNOMIAL also needs
    S2 = Σ (K + B·j)² = m·K² + K·B·m(m − 1) + B²·m(m − 1)(2m − 1)/6; its sum is rounded once a leap
    instead of once a step, so that cuts move times by at most half a tick (10⁻¹² s) each.

    Args:
        cost: record of the instance.
        base: `decode_base_ticks(cost, B)`; POLYNOMIAL does not use it.
        decode_sequences: B.
        decode_context: K of the first step.
        steps: m, at most `longest_decode_leap`.
    """
    pairs = steps * (steps - 1) // 2
    context_sum = steps * decode_context + decode_sequences * pairs
    if cost.kind == COMPACT:
        ticks: int = steps * base + cost.decode_slope * context_sum
        return ticks
    if steps == 1:
        return _polynomial_ticks(cost, 0, decode_sequences, decode_context, decode_sequences)
    context, sequences = float(decode_context), float(decode_sequences)
    squares = (
        steps * context * context
        + 2.0 * context * sequences * pairs
        + sequences * sequences * pairs * (2 * steps - 1) / 3.0
    )
    per_token = cost.d1 / cost.kv_capacity
    per_square = cost.d2 / (cost.kv_capacity * cost.kv_capacity)
    ms = steps * (cost.h0 + cost.h1 * sequences + cost.d0)
    return int(np.rint((ms + per_token * context_sum + per_square * squares) * TICKS_PER_MS))


@cold_kernel
def scale_cost(nominal: StepCost, factor: float, cost: StepCost) -> None:
    """Make `cost` that of an instance whose steps take `factor` times as long as nominally."""
    cost.h0 = nominal.h0 * factor
    cost.h1 = nominal.h1 * factor
    for part in range(2):
        cost.t0[part] = nominal.t0[part] * factor
        cost.a[part] = nominal.a[part] * factor
        cost.b[part] = nominal.b[part] * factor
        cost.t_experts[part] = nominal.t_experts[part] * factor
    for k in range(len(TABLE_TOKENS)):
        cost.table[k] = nominal.table[k] * factor
    cost.p0 = nominal.p0 * factor
    cost.p1 = nominal.p1 * factor
    cost.p2 = nominal.p2 * factor
    cost.d0 = nominal.d0 * factor
    cost.d1 = nominal.d1 * factor
    cost.d2 = nominal.d2 * factor
    cost.decode_slope = int(np.rint(nominal.decode_slope * factor))


@kernel
def prefill_ticks(
    cost: StepCost, new_tokens: int, cached_tokens: int, max_batched_tokens: int
) -> int:
    """Duration of one request's prefill, alone and in chunks of the token budget, in ticks.

    Args:
        cost: record of the instance.
        new_tokens: prompt tokens to compute.
        cached_tokens: prompt tokens before them that are in KV already.
        max_batched_tokens: token budget of a step, at least 1.
    """
    ticks = 0
    context = cached_tokens
    remaining = new_tokens
    while remaining > 0:
        chunk = min(remaining, max_batched_tokens)
        ticks += step_ticks(cost, chunk, chunk * (context + 0.5 * chunk), 0, 0, 1)
        context += chunk
        remaining -= chunk
    return ticks
