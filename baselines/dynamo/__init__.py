"""NVIDIA Dynamo's KV router."""

from prefixgym.baselines.dynamo import approximate, kv_router

__all__ = ["approximate", "kv_router"]
