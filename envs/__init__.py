"""What happens to requests: cluster, workload, view, and the Gymnasium surface."""

if __name__ == "envs":
    raise ImportError("import prefixgym.envs, not envs: the folder is part of the package prefixgym")
