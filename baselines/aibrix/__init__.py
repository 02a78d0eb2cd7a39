"""AIBrix's gateway plug-ins."""

from prefixgym.baselines.aibrix import preble, prefix_cache

__all__ = ["preble", "prefix_cache"]
