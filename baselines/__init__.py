"""Handcrafted routers, one file a family. Importing the package registers all of them."""

if __name__ == "baselines":
    raise ImportError(
        "import prefixgym.baselines, not baselines: the folder is part of the package prefixgym"
    )

from prefixgym.baselines import affinity, cache_aware, kv_aware, load_only, min_ttft

__all__ = ["affinity", "cache_aware", "kv_aware", "load_only", "min_ttft"]
