"""vLLM: the production stack's router and vllm-project/router."""

from prefixgym.baselines.vllm import (
    cache_aware,
    consistent_hash,
    kvaware,
    loadaware,
    prefixaware,
    rendezvous_hash,
    session,
    sticky_least_loaded,
)

__all__ = [
    "cache_aware",
    "consistent_hash",
    "kvaware",
    "loadaware",
    "prefixaware",
    "rendezvous_hash",
    "session",
    "sticky_least_loaded",
]
