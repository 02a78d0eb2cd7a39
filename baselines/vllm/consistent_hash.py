"""vllm-router's consistent_hash: every session has a home on a ring of hashes.

Source: `routers_sglang_vllm_aibrix_llmd.md` §2.10; read in vllm-project/router
`src/policies/consistent_hash.rs` at 080589a0 and held against vllm-router 0.1.17.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.choosing import candidates
from prefixgym.baselines.router import register
from prefixgym.baselines.vllm.session import SessionAffinity
from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import random_word
from prefixgym.envs.view.hash_ring import ring_owner
from prefixgym.envs.view.view import View


@register
@dataclass
class ConsistentHash(SessionAffinity):
    """The home of the request's session; while that is away, as `failover` says.

    The policy's own rule for a home that is away is the first available instance, so that all
    sessions of an instance that fails go to one other. In the wheel that rule is dead: the router
    shows the policy only the available workers, and the ring is laid anew without the others.

    The key is the first there is of: header x-session-id (or -user-, -tenant-, -correlation-,
    -request-, -trace-id), session_id or user in the body, the whole body. Here it is the session.

    Attributes:
        failover: `ring` goes on along the ring, as vllm-router 0.1.17 does; `first` takes the first
            available instance, as its policy does by itself. (Not an option of the real router.)
    """

    name = "consistent_hash"
    source = "vllm-project/router, consistent_hash, vllm-router 0.1.17 (§2.10)"

    failover: str = "ring"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("failover", self.failover in ("ring", "first"), "ring, first")

    def route(self, view: View) -> NDArray[np.int64]:
        """The session's home, or its stand-in."""
        if self.failover == "ring":
            return super().route(view)
        chosen = np.empty(view.num_envs, np.int64)
        _to_home_or_first(
            view.requests,
            view.instances,
            self._ring.positions,
            self._ring.owners,
            self._keys,
            chosen,
        )
        return chosen


@kernel
def _to_home_or_first(
    requests: NDArray[np.void],
    instances: NDArray[np.void],
    positions: NDArray[np.uint64],
    owners: NDArray[np.int64],
    keys: NDArray[np.uint64],
    chosen: NDArray[np.int64],
) -> None:
    picks = np.empty(instances.shape[1], np.int64)
    all_open = np.ones(instances.shape[1], np.bool_)
    for e in range(len(chosen)):
        count = candidates(instances[e], picks)
        key = random_word(keys[e], requests[e]["session"])
        owner = ring_owner(positions, owners, key, all_open)
        chosen[e] = picks[0]
        for k in range(count):
            if picks[k] == owner:
                chosen[e] = owner
