"""Yardsticks: what greedy prediction, true knowledge and look-ahead achieve."""

from prefixgym.baselines.references import min_ttft

__all__ = ["min_ttft"]
