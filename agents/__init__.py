"""Learned routers and the glue to learning libraries."""

if __name__ == "agents":
    raise ImportError(
        "import prefixgym.agents, not agents: the folder is part of the package prefixgym"
    )
