"""Counter-based random numbers: a pure function of (key, counter), the same in Python and in
kernels.

No generator state is shared, so a draw does not depend on how many environments run beside it, on
threads, or on what was drawn before. The mix is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixgym.envs.jit import kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def mix64(x: np.uint64) -> np.uint64:
    """SplitMix64's finalizer: a bijection in which every bit depends on every bit."""
    x = np.uint64(x)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def grouped_hash(number: int, size: int) -> np.int64:
    """A place among `size` (a power of two, at least 8) that keeps eight in a row together.

    Numbers that differ in their last three bits alone differ so in their places.
    """
    group = mix64(np.uint64(number) >> np.uint64(3)) << np.uint64(3)
    return np.int64((group | (np.uint64(number) & np.uint64(7))) & np.uint64(size - 1))


@kernel
def random_word(key: np.uint64, counter: int) -> np.uint64:
    """The `counter`-th 64-bit word of the stream named `key`."""
    return mix64(np.uint64(key) + np.uint64(counter + 1) * _GOLDEN)


@kernel
def uniform(key: np.uint64, counter: int) -> float:
    """The `counter`-th number of the stream named `key`, uniform in [0, 1), 53 bits."""
    return float(random_word(key, counter) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def _fill_uniforms(
    keys: NDArray[np.uint64], counters: NDArray[np.int64], out: NDArray[np.float64]
) -> None:
    for i in range(out.size):
        out[i] = uniform(keys[i], counters[i])


def uniforms(key: ArrayLike, counter: ArrayLike) -> NDArray[np.float64]:
    """`uniform`, broadcast over arrays of keys (uint64) and counters (int64)."""
    keys, counters = np.broadcast_arrays(np.asarray(key, np.uint64), np.asarray(counter, np.int64))
    out = np.empty(keys.size)
    _fill_uniforms(keys.ravel(), counters.ravel(), out)
    return out.reshape(keys.shape)


def stream_key(seed: int, stream: int = 0) -> np.uint64:
    """A key for stream number `stream` of `seed`; different streams of a seed are unrelated."""
    words = np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(1, np.uint64)
    return np.uint64(words[0])
