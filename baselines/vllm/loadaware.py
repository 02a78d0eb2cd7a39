"""vLLM production stack's loadaware: cached share against relative load, by LMCache's index.

The index is `hit_tokens` of the view: leading prompt tokens that an instance reported as cached.

Source: `routers_sglang_vllm_aibrix_llmd.md` §2.8; the score read in production-stack
`routing_logic.py` of 2026-08.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.router import register
from prefixgym.baselines.vllm.fallback import TO_FALLBACK, IndexRouter
from prefixgym.envs.jit import Record, kernel
from prefixgym.envs.view.view import View


@register
@dataclass
class Loadaware(IndexRouter):
    """The best sum of cached share and relative load, over all instances.

        score_i = min(matched_i, L) / max(L, 1) - beta · (N_i - mean) / max(1, mean)

    N_i = this router's requests in flight on i, mean over the available instances. The load term is
    signed: an instance below the mean is rewarded. The first among equals (real: the smallest URL).
    Without any holder the fallback decides and load is not looked at.

    Attributes:
        beta: full cache hits that a load of 100 % above the mean costs.
    """

    name = "loadaware"
    source = "vLLM production stack, loadaware, PR #1035 of 2026-08 (§2.8)"
    family = "vLLM"
    knows = ("index", "ledger", "ring")

    load: ClassVar[Literal["requests", "prefill_tokens"]] = "requests"
    """The column of the ledger that is taken for load."""

    beta: float = 1.0

    def choose(self, view: View, chosen: NDArray[np.int64]) -> None:
        """The instance with the best score, if there is a holder."""
        _loadaware(view.requests, view.instances, view.instances[self.load], self.beta, chosen)


@register
@dataclass
class LoadawareTokens(Loadaware):
    """`loadaware` with the token backlog W_i in place of the request count N_i.

    W_i = uncached prompt tokens that this router sent to i and that have no first token yet. The
    mean is then in tokens, so the clamp at 1 matters only in an idle fleet.
    """

    name = "loadaware_tokens"
    source = "vLLM production stack, loadaware with W_i for N_i (§2.8)"
    load = "prefill_tokens"


@kernel
def _loadaware(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    loads: NDArray[np.int64],
    beta: float,
    chosen: NDArray[np.int64],
) -> None:
    for e in range(len(chosen)):
        chosen[e] = best_by_load(requests[e], instances[e], loads[e], beta)


@kernel
def best_by_load(
    request: Record, instances: NDArray[np.void], loads: NDArray[np.int64], beta: float
) -> int:
    """Where one environment's request goes, TO_FALLBACK if no available instance has a hit."""
    picks = np.empty(len(instances), np.int64)
    count = candidates(instances, picks)
    total, held = 0, False
    for k in range(count):
        total += loads[picks[k]]
        held = held or instances[picks[k]]["hit_tokens"] > 0
    best = TO_FALLBACK
    if held:
        mean = total / count
        prompt_tokens = request["prompt_tokens"]
        best_score = -np.inf
        for k in range(count):
            i = picks[k]
            benefit = min(instances[i]["hit_tokens"], prompt_tokens) / max(prompt_tokens, 1)
            score = benefit - beta * ((loads[i] - mean) / max(1.0, mean))
            if score > best_score:
                best_score = score
                best = i
    return int(best)
