"""Routers known from papers, with public code or without."""

from prefixgym.baselines.papers import (
    cacheroute,
    dualmap,
    gorgo,
    lmetric,
    mooncake,
    preble,
    smetric,
)

__all__ = ["cacheroute", "dualmap", "gorgo", "lmetric", "mooncake", "preble", "smetric"]
