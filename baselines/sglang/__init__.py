"""SGLang: its model gateway (SMG) and the newer in-tree router."""

from prefixgym.baselines.sglang import bucket, cache_aware, prefix_hash

__all__ = ["bucket", "cache_aware", "prefix_hash"]
