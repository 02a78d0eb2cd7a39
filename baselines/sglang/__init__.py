"""SGLang: its model gateway (SMG) and the newer in-tree router."""

from prefixgym.baselines.sglang import (
    bucket,
    cache_aware,
    cache_aware_zmq,
    manual,
    prefix_hash,
    sgl_router,
    smg_cache_aware,
    smg_cache_aware_hash,
)

__all__ = [
    "bucket",
    "cache_aware",
    "cache_aware_zmq",
    "manual",
    "prefix_hash",
    "sgl_router",
    "smg_cache_aware",
    "smg_cache_aware_hash",
]
