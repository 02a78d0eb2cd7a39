"""AIBrix's gateway plug-ins."""

from prefixgym.baselines.aibrix import pd, preble, prefix_cache

__all__ = ["pd", "preble", "prefix_cache"]
