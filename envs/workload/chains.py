"""Prompts of two parts: blocks shared with other requests, then blocks of their own.

Only the blocks wholly inside what is shared, such as a system prompt, are shared. The block that
straddles its end holds tokens of the request too, so it and all later ones belong to the request's
own chain.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.tape import RUN, Tape, root_requests


def ceil_div(tokens: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Blocks that `tokens` touch, the last one perhaps in part."""
    return (tokens + block_size - 1) // block_size


def renumbered(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`numbers` without gaps, in the same order, and the old number of each new one."""
    found = np.zeros(int(numbers.max()) + 1, np.bool_)
    found[numbers] = True
    return (np.cumsum(found) - 1)[numbers], np.flatnonzero(found)


def exclusive_sum(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of consecutive stretches of `counts` elements begins."""
    return np.cumsum(counts) - counts


def two_part_tape(
    *,
    block_size: int,
    arrival: NDArray[np.int64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    cacheable_blocks: NDArray[np.int64],
    head_start: NDArray[np.int64],
    head_blocks: NDArray[np.int64],
    tail_start: NDArray[np.int64],
) -> Tape:
    """`chained_tape` with one head; all arrays have shape [R]."""
    return chained_tape(
        block_size=block_size,
        arrival=arrival,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cacheable_blocks=cacheable_blocks,
        heads=[(head_start, head_blocks)],
        tail_start=tail_start,
    )


def chained_tape(
    *,
    block_size: int,
    arrival: NDArray[np.int64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    cacheable_blocks: NDArray[np.int64],
    heads: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
    tail_start: NDArray[np.int64],
) -> Tape:
    """A tape of roots whose ids run through their heads one after another, then tail_start, ….

    A head is the start and the number of its blocks, which may be 0; all arrays have shape [R].
    `num_blocks` is the prompt's ceiling: the partial last block has the id of its place in the
    chain. A request has one run for each head with blocks and one for its tail, which is never
    empty.
    """
    num_blocks = ceil_div(prompt_tokens, block_size)
    start = np.stack([*(head for head, _ in heads), tail_start], axis=1)
    count = np.stack([*(blocks for _, blocks in heads), tail_start], axis=1)
    known_blocks = np.maximum(num_blocks, cacheable_blocks)
    count[:, -1] = known_blocks - count[:, :-1].sum(axis=1)
    used = count > 0
    requests = root_requests(arrival, prompt_tokens, output_tokens, used.sum(axis=1))
    requests["num_blocks"] = num_blocks
    requests["cacheable_blocks"] = cacheable_blocks
    runs = np.empty(int(np.count_nonzero(used)), RUN)
    runs["start"], runs["count"] = start[used], count[used]
    return Tape(requests, runs, block_size)
