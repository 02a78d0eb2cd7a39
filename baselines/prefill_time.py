"""How long a prefill takes, by the fits that Preble and AIBrix ship.

For n new tokens on a context of `ctx` tokens (the new ones included), in ms:

    linear(n)          n ≥ 384: 0.10842571 n + 4.209777
                       192 ≤ n < 384: -118 + 1.25 n - 0.00256 n²
                       n < 192: 22
    attention(n, ctx)  ctx ≤ 1024: 0.32, else 1.86e-4 ctx + 0.159, halved if n ≤ 1024
    quadratic(n, ctx)  n · ctx > 1024²: 1.13e-3 n + 1.75e-3 ctx + 2.19e-6 n ctx

    A6000, Mistral-7B      (linear + attention + quadratic) / 0.9
    H100, Llama-3-70B TP2  28.9314 + 0.182233 n + 0.00400365 ctx + 2.5505e-6 n ctx

The parabola in the middle turns below its values for short prompts, and even negative from 361
tokens on, before the line jumps to 45.8 ms at 384. `prefill_ms` floors `linear` at its 22 ms: no
number of new tokens costs less than one. That changes 315 to 383 tokens only. AIBrix takes the raw
fit (`linear_ms`), so its router does here too.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §3.5, §3.6.
"""

from prefixgym.envs.jit import kernel

A6000_MISTRAL_7B, H100_LLAMA_70B_TP2 = range(2)
PREFILL_MODELS = {
    "a6000_mistral_7b": A6000_MISTRAL_7B,
    "h100_llama_3_70b_tp2": H100_LLAMA_70B_TP2,
}
"""Names of the fits of `prefill_ms`, for a router's parameter."""

_LEAST_LINEAR = 22.0
_UTILISATION = 0.9


@kernel
def linear_ms(new_tokens: int) -> float:
    """Dense layers on the A6000, ms: the raw fit, negative for 361 to 383 tokens."""
    if new_tokens >= 384:
        return 0.10842571 * new_tokens + 4.209777
    if new_tokens >= 192:
        return -118.0 + 1.25 * new_tokens - 0.00256 * new_tokens**2
    return _LEAST_LINEAR


@kernel
def attention_ms(new_tokens: int, context: int) -> float:
    """Attention on the A6000, ms, but for the part that grows with their product."""
    if context <= 1024:
        return 0.32
    time = 1.86e-4 * context + 0.159
    return time / 2 if new_tokens <= 1024 else time


@kernel
def prefill_ms(model: int, new_tokens: int, context: int) -> float:
    """Time to prefill `new_tokens` on a context of `context` tokens that ends with them, ms.

    0 without new tokens. `model` is one of `PREFILL_MODELS`.
    """
    if new_tokens <= 0:
        return 0.0
    if model == H100_LLAMA_70B_TP2:
        product = float(new_tokens) * context
        return 28.9314 + 0.182233 * new_tokens + 0.00400365 * context + 2.5505e-6 * product
    time = max(_LEAST_LINEAR, linear_ms(new_tokens)) + attention_ms(new_tokens, context)
    product = float(new_tokens) * context
    if product > 1024 * 1024:
        time += 1.13e-3 * new_tokens + 1.75e-3 * context + 2.19e-6 * product
    return time / _UTILISATION
