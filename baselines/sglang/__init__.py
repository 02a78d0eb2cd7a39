"""SGLang: its model gateway (SMG) and the newer in-tree router."""

from prefixgym.baselines.sglang import cache_aware, prefix_hash

__all__ = ["cache_aware", "prefix_hash"]
