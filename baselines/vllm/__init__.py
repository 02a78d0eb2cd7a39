"""vLLM: the production stack's router and vllm-project/router."""

from prefixgym.baselines.vllm import (
    consistent_hash,
    kvaware,
    loadaware,
    prefixaware,
    rendezvous_hash,
    session,
    sticky_least_loaded,
)

__all__ = [
    "consistent_hash",
    "kvaware",
    "loadaware",
    "prefixaware",
    "rendezvous_hash",
    "session",
    "sticky_least_loaded",
]
