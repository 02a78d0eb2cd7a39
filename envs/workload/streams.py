"""One random generator for each aspect of a workload.

Aspects that draw from generators of their own stay the same when another one changes: with twice
the arrival rate a seed still names the same prompts.
"""

import numpy as np


def streams(seed: int, count: int) -> list[np.random.Generator]:
    """`count` unrelated generators, each a function of `seed` (≥ 0) and its position alone."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]
