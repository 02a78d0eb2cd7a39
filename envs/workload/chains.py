"""Prompts of two parts: blocks shared with other requests, then blocks of their own.

Only the blocks wholly inside a shared system prompt are shared. The block that straddles its end
holds tokens of the request too, so it and all later ones belong to the request's own chain.
"""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.tape import RUN, Tape, root_requests


def ceil_div(tokens: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Blocks that `tokens` touch, the last one perhaps in part."""
    return (tokens + block_size - 1) // block_size


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
    """A tape of roots whose ids are head_start, …, then tail_start, …; all arrays have shape [R].

    `num_blocks` is the prompt's ceiling: the partial last block has the id of its place in the
    chain. A request with no head blocks has one run, the others two; the tail is never empty.
    """
    num_blocks = ceil_div(prompt_tokens, block_size)
    has_head = head_blocks > 0
    requests = root_requests(arrival, prompt_tokens, output_tokens, 1 + has_head)
    requests["num_blocks"] = num_blocks
    requests["cacheable_blocks"] = cacheable_blocks
    first_run = requests["first_run"]
    runs = np.empty(len(arrival) + int(has_head.sum()), RUN)
    runs["start"][first_run[has_head]] = head_start[has_head]
    runs["count"][first_run[has_head]] = head_blocks[has_head]
    tail = first_run + has_head
    runs["start"][tail] = tail_start
    runs["count"][tail] = np.maximum(num_blocks, cacheable_blocks) - head_blocks
    return Tape(requests, runs, block_size)
