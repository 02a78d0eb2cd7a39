"""Handcrafted routers, one file a family."""

if __name__ == "baselines":
    raise ImportError("import prefixgym.baselines, not baselines: the folder is part of the package prefixgym")
