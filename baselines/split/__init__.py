"""Routers of clusters with roles: one half of a request here, the other there."""

from prefixgym.baselines.split import halves

__all__ = ["halves"]
