"""FlexLB, the router of Alibaba's RTP-LLM."""

from prefixgym.baselines.flexlb import cost_based, decode, shortest_ttft

__all__ = ["cost_based", "decode", "shortest_ttft"]
