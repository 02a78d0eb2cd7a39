"""vLLM: the production stack's router and vllm-project/router."""

from prefixgym.baselines.vllm import kv_aware, session

__all__ = ["kv_aware", "session"]
