"""Which handcrafted routers stand for all: the best few on validation episodes.

Fifty routers with two sets of parameters each are a hundred chances to be lucky. What is chosen on
validation seeds and reported on test seeds is not.
"""

from collections.abc import Mapping

import numpy as np
import polars as pl

from prefixgym.experiments.training.judge import tail_limit


def best_few(episodes: Mapping[str, pl.DataFrame], count: int) -> list[str]:
    """The labels of at most `count` routers, best first.

    By mean attainment; only those whose mean p99 TTFT is within `tail_limit`. Routers with the same
    outcomes as a better or earlier one are left out: several rules may come to the same decisions.

    Args:
        episodes: of each router, by label, on the same validation seeds.
        count: how many are wanted.
    """
    figures = {
        label: (_mean(found, "attainment"), _mean(found, "ttft_p99"))
        for label, found in episodes.items()
    }
    limit = tail_limit(figures)
    chosen: list[str] = []
    for label in sorted(figures, key=lambda label: -figures[label][0]):
        new = all(figures[label] != figures[other] for other in chosen)
        if figures[label][1] <= limit and new and len(chosen) < count:
            chosen.append(label)
    return chosen


def _mean(episodes: pl.DataFrame, metric: str) -> float:
    return float(np.mean(episodes[metric].to_numpy()))
