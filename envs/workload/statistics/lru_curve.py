"""Hits of one LRU cache at all capacities at once, by stack distance.

An LRU cache of C blocks holds the C blocks used last. So a block is found if fewer than C others
were used since it was: its stack distance, which does not depend on C (Mattson et al., IBM Systems
Journal 1970). A Fenwick tree over the times of last use counts those others in O(log n). The method
is that of `cluster/lru_replay.py`, which does the same one capacity at a time with the simulator's
cache; a test holds the two equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.workload.statistics.prompt_segments import PromptSegments
from prefixgym.envs.workload.statistics.timeline import Timeline

NEVER_USED = -1
CAPACITIES = (1_000, 3_000, 5_859, 10_000, 30_000, 50_000, 100_000, 300_000, 1_000_000)
"""Blocks at which `traces.md` §3.4 and §4 give the curves of public traces."""


@dataclass(frozen=True)
class LruCurve:
    """Hit rate of one shared cache by its capacity, cold start counted.

    Attributes:
        capacity: blocks, ascending; the last, the tape's different blocks, makes it infinite.
        block_hit: share of the prompts' blocks found, one for each capacity.
        token_hit_second_half: share of the prompt tokens found in the second half of the rows.
    """

    capacity: tuple[int, ...]
    block_hit: tuple[float, ...]
    token_hit_second_half: tuple[float, ...]


@kernel
def _add(tree: NDArray[np.int64], time: int, amount: int) -> None:
    while time < tree.size:
        tree[time] += amount
        time += time & -time


@kernel
def _sum_to(tree: NDArray[np.int64], time: int) -> int:
    total = 0
    while time > 0:
        total += tree[time]
        time -= time & -time
    return total


@kernel
def _stack_distances(
    first: NDArray[np.int64],
    segment: NDArray[np.int64],
    size: NDArray[np.int64],
    tree: NDArray[np.int64],
    used_at: NDArray[np.int64],
    distance: NDArray[np.int64],
) -> None:
    """Fill `distance` [P]: blocks used since the first block at each place was, or NEVER_USED.

    The other blocks of the place's segment follow at distance + 1, distance + 2, …
    `tree` [P + 1] and `used_at` [S] are zeros: times count from 1.
    """
    time = 0
    held = 0
    for row in range(first.size - 1):
        for place in range(first[row], first[row + 1]):
            since = used_at[segment[place]]
            distance[place] = held - _sum_to(tree, since) if since > 0 else NEVER_USED
        # The head is touched last, so that a prefix loses its tail first.
        for place in range(first[row + 1] - 1, first[row] - 1, -1):
            since = used_at[segment[place]]
            if since > 0:
                _add(tree, since, -size[place])
            else:
                held += size[place]
            time += 1
            used_at[segment[place]] = time
            _add(tree, time, size[place])


def lru_curve(
    line: Timeline, parts: PromptSegments, capacities: Sequence[int] = CAPACITIES
) -> LruCurve:
    """The curve at those of `capacities` that are smaller than infinite, and at infinity."""
    distance = np.empty(len(parts.segment), np.int64)
    _stack_distances(
        parts.first,
        parts.segment,
        parts.size,
        np.zeros(len(distance) + 1, np.int64),
        np.zeros(parts.num_segments, np.int64),
        distance,
    )
    requests, block_size = line.tape.requests, line.tape.block_size
    used = distance != NEVER_USED
    distance, size, row = distance[used], parts.size[used], parts.row[used]
    # Tokens that a partial last block lacks to a full one, at the last place of each prompt.
    prompt = requests["prompt_tokens"].astype(np.int64)
    lacking = np.zeros(len(parts.segment), np.int64)
    held = requests["num_blocks"] > 0
    lacking[parts.first[1:][held] - 1] = np.maximum(
        requests["num_blocks"].astype(np.int64) * block_size - prompt, 0
    )[held]
    lacking = lacking[used]

    infinite = int(parts.size[~used].sum())
    steps = (*(c for c in sorted(capacities) if c < infinite), infinite)
    half = len(requests) // 2
    late = row >= half
    blocks = max(1, int(requests["num_blocks"].sum(dtype=np.int64)))
    block_hit, token_hit = [], []
    for capacity in steps:
        found = np.clip(capacity - distance, 0, size)
        tokens = found * block_size - np.where(found == size, lacking, 0)
        block_hit.append(float(found.sum() / blocks))
        token_hit.append(float(tokens[late].sum() / prompt[half:].sum()))
    return LruCurve(steps, tuple(block_hit), tuple(token_hit))
