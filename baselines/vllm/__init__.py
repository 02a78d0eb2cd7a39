"""vLLM: the production stack's router and vllm-project/router."""

from prefixgym.baselines.vllm import (
    cache_aware,
    consistent_hash,
    kv_aware,
    kvaware,
    loadaware,
    prefixaware,
    rendezvous_hash,
    session,
    sticky_least_loaded,
    ttft,
)

__all__ = [
    "cache_aware",
    "consistent_hash",
    "kv_aware",
    "kvaware",
    "loadaware",
    "prefixaware",
    "rendezvous_hash",
    "session",
    "sticky_least_loaded",
    "ttft",
]
