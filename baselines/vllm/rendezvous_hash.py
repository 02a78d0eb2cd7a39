"""vllm-router's rendezvous_hash: every session has a home, by highest random weight.

Source: `routers_sglang_vllm_aibrix_llmd.md` §2.10 (vllm-project/router#128); read in
vllm-project/router `src/policies/rendezvous_hash.rs` at 292889eb. (Only the Rust command line
offers it; the wheel's does not.)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import register
from prefixgym.baselines.scored import ScoredRouter
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import random_word, uniform
from prefixgym.envs.view.view import View


@register
@dataclass
class RendezvousHash(ScoredRouter):
    """The available instance with the highest hash of (session, instance).

    While an instance is away only its sessions move, and they spread over all others. The real hash
    is that of "session:url" (mcrouter's furc hash); ours is drawn from the environment's seed.
    """

    name = "rendezvous_hash"
    source = "vllm-project/router, rendezvous_hash (§2.10)"
    family = "vLLM"
    knows = ("ring",)

    def scores(self, view: View) -> NDArray[np.float64]:
        """Minus the weight of each instance, which is in [0, 1)."""
        scores = np.empty(view.instances.shape)
        _scores(view.requests, self._keys, scores)
        return scores


@kernel
def weight(key: np.uint64, session: int, instance: int) -> float:
    """The weight of `instance` for `session`, uniform in [0, 1), under an environment's `key`."""
    return uniform(random_word(key, session), instance)


@kernel
def _scores(
    requests: NDArray[np.void], keys: NDArray[np.uint64], scores: NDArray[np.float64]
) -> None:
    for e in range(scores.shape[0]):
        for i in range(scores.shape[1]):
            scores[e, i] = -weight(keys[e], requests[e]["session"], i)
