"""llm-d's endpoint picker."""

from prefixgym.baselines.llmd import affinity, approximate, gie_tree, latency, weighted

__all__ = ["affinity", "approximate", "gie_tree", "latency", "weighted"]
