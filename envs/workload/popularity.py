"""Which of several alternatives a request picks: Zipf popularity and draws by weight."""

import numpy as np
from numpy.typing import NDArray


def zipf_weights(count: int, exponent: float) -> NDArray[np.float64]:
    """Weights k^−exponent of ranks k = 1 … count; exponent 0 is uniform.

    Real traces show exponents of 0.4 to 1.2 over their prompts' first blocks (`traces.md` §3.5).
    """
    return np.arange(1, count + 1, dtype=np.float64) ** -exponent


def choose(
    weights: NDArray[np.float64], generator: np.random.Generator, size: int
) -> NDArray[np.int64]:
    """`size` independent indices, each drawn in proportion to its weight (≥ 0, some > 0)."""
    shares = np.cumsum(weights)
    shares /= shares[-1]
    return np.searchsorted(shares, generator.random(size), side="right").astype(np.int64)
