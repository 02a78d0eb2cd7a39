"""vLLM production stack's kvaware: whoever holds the prompt's prefix, by LMCache's index.

The index is `hit_tokens` of the view: leading prompt tokens that an instance reported as cached.
Holders are the available instances with a hit.

Sources: `routers_sglang_vllm_aibrix_llmd.md` §2.3, §2.9; the lookup read in LMCache
`kv_controller.py` and `RegistryTree.find_kv`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.router import register
from prefixgym.baselines.vllm.fallback import TO_FALLBACK, IndexRouter
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.view import View


@register
@dataclass
class Kvaware(IndexRouter):
    """The first holder of the prompt's prefix, whatever its load and however many hold it.

        matched < max(L - kv_aware_threshold, 0)  →  fallback

    so prompts up to the threshold accept any match, and longer ones need all but that many tokens.

    "First" is the first key of the controller's answer, which names one holder for each chunk of
    the prompt, in order. LMCache's controller searches its instances in the order in which they
    registered, so the first key is the lowest-numbered holder of the first chunk, and its matched
    tokens are its own longest prefix: that is what happens here. (Before the registry tree it
    was the instance that admitted the first chunk earliest, which a view does not tell.)

    Attributes:
        kv_aware_threshold: tokens that may be missing.
    """

    name = "kvaware"
    source = "vLLM production stack, kvaware (§2.3)"
    family = "vLLM"
    knows = ("index", "ring")

    kv_aware_threshold: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("kv_aware_threshold", self.kv_aware_threshold >= 0, "at least 0")

    def choose(self, view: View, chosen: NDArray[np.int64]) -> None:
        """The first holder, if it holds enough."""
        _kvaware(view.requests, view.instances, self.kv_aware_threshold, chosen)


@kernel
def _kvaware(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    threshold: int,
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    for e in range(len(chosen)):
        chosen[e] = TO_FALLBACK
        for k in range(candidates(instances[e], picks)):
            matched = instances[e, picks[k]]["hit_tokens"]
            if matched > 0:
                if matched >= requests[e]["prompt_tokens"] - threshold:
                    chosen[e] = picks[k]
                break
