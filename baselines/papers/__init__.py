"""Routers known from papers, with public code or without."""

from prefixgym.baselines.papers import cacheroute, dualmap, lmetric, mooncake, preble, smetric

__all__ = ["cacheroute", "dualmap", "lmetric", "mooncake", "preble", "smetric"]
