"""Routers known from papers, with public code or without."""

from prefixgym.baselines.papers import (
    cacheroute,
    dualmap,
    gorgo,
    lmetric,
    lodestar,
    mooncake,
    preble,
    smetric,
)

__all__ = ["cacheroute", "dualmap", "gorgo", "lmetric", "lodestar", "mooncake", "preble", "smetric"]
