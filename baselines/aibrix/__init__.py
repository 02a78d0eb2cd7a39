"""AIBrix's gateway plug-ins."""

from prefixgym.baselines.aibrix import prefix_cache

__all__ = ["prefix_cache"]
