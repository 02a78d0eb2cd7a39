"""What people run: leaderboard, replay, evaluation, benchmarks, the command line."""

if __name__ == "experiments":
    raise ImportError(
        "import prefixgym.experiments, not experiments: the folder is part of the package prefixgym"
    )
