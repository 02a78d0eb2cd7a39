"""Yardsticks: what greedy prediction, true knowledge and look-ahead achieve."""

from prefixgym.baselines.references import lookahead, min_ttft, oracle_greedy

__all__ = ["lookahead", "min_ttft", "oracle_greedy"]
