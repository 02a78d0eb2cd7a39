"""Handcrafted routers, one file a family. Importing the package registers all of them."""

if __name__ == "baselines":
    raise ImportError(
        "import prefixgym.baselines, not baselines: the folder is part of the package prefixgym"
    )

from prefixgym.baselines import (
    aibrix,
    dynamo,
    flexlb,
    llmd,
    load_only,
    papers,
    probabilistic,
    references,
    sglang,
    split,
    vllm,
)

__all__ = [
    "aibrix",
    "dynamo",
    "flexlb",
    "llmd",
    "load_only",
    "papers",
    "probabilistic",
    "references",
    "sglang",
    "split",
    "vllm",
]
