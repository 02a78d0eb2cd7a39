"""How much of a tape's prompts an infinite prefix cache would hold: the ceiling for any router."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.workload.segments import cut_runs
from prefixgym.envs.workload.tape import Tape


@dataclass(frozen=True)
class Reuse:
    """Figures of a tape as in `traces.md` §3.2 and §3.3, cold start counted.

    Attributes:
        requests: rows.
        prompt_tokens: mean length of a prompt.
        output_tokens: mean length of an output.
        blocks: block ids of all prompts, repetitions counted.
        unique_blocks: different ids of the tape; with those that only decoding fills, if known.
        block_hit: share of `blocks` that an earlier request (in row order) has left in the cache.
        token_hit: the same by tokens.
        token_hit_second_half: token_hit of the second half of the rows, the first half only warms.
        request_hit: mean over requests of the share of a prompt's tokens that hit.
        requests_without_hit: share of requests of which no block hits.
        hit_depth: blocks of a request that hit, at p50, p90 and p99.
        blocks_used_once: share of `unique_blocks` that only one request names.
    """

    requests: int
    prompt_tokens: float
    output_tokens: float
    blocks: int
    unique_blocks: int
    block_hit: float
    token_hit: float
    token_hit_second_half: float
    request_hit: float
    requests_without_hit: float
    hit_depth: tuple[float, float, float]
    blocks_used_once: float


@kernel
def _count_hits(
    requests: NDArray[np.void],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    sizes: NDArray[np.int64],
    hits: NDArray[np.int64],
    uses: NDArray[np.int64],
) -> None:
    """Fill `hits` [R] with each prompt's blocks seen before, and `uses` [S] of each segment.

    `uses` comes in as zeros.
    """
    for row in range(requests.size):
        hits[row] = 0
        left = requests[row].num_blocks
        first_run = requests[row].first_run
        for run in range(first_run, first_run + requests[row].num_runs):
            for segment in range(first[run], last[run]):
                # Ids are chained, so what was seen before comes before what is new.
                if uses[segment] > 0:
                    hits[row] += min(sizes[segment], left)
                uses[segment] += 1
                left -= min(sizes[segment], left)


def _hits(tape: Tape) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Blocks that hit in each row, [R]; ids and uses of each segment, [S]."""
    sizes, first, last = cut_runs(tape.runs)
    hits = np.empty(len(tape.requests), np.int64)
    uses = np.zeros(len(sizes), np.int64)
    _count_hits(tape.requests, first, last, sizes, hits, uses)
    return hits, sizes, uses


def warmed_token_hit(tape: Tape, start: int) -> float:
    """Share of the prompt tokens from row `start` on that an infinite cache finds, all rows in it.

    The method is that of `reuse`.
    """
    prompt = tape.requests["prompt_tokens"].astype(np.int64)
    found = np.minimum(_hits(tape)[0] * tape.block_size, prompt)
    return float(found[start:].sum() / prompt[start:].sum())


def reuse(tape: Tape) -> Reuse:
    """Statistics of `tape` with an infinite cache and rows in order.

    The cache keeps all ids that the tape names: those of prompts, a partial last block's too, and
    those of blocks that decoding fills.
    """
    requests = tape.requests
    hits, sizes, uses = _hits(tape)
    unique = int(sizes[uses > 0].sum())
    prompt = requests["prompt_tokens"].astype(np.int64)
    blocks = requests["num_blocks"].astype(np.int64)
    hit_tokens = np.minimum(hits * tape.block_size, prompt)
    half = len(requests) // 2
    p50, p90, p99 = np.percentile(hits, [50, 90, 99]).tolist()
    return Reuse(
        requests=len(requests),
        prompt_tokens=float(prompt.mean()),
        output_tokens=float(requests["output_tokens"].mean()),
        blocks=int(blocks.sum()),
        unique_blocks=unique,
        block_hit=float(hits.sum() / max(1, blocks.sum())),
        token_hit=float(hit_tokens.sum() / prompt.sum()),
        token_hit_second_half=float(hit_tokens[half:].sum() / prompt[half:].sum()),
        request_hit=float(np.mean(hit_tokens / prompt)),
        requests_without_hit=float(np.mean(hits == 0)),
        hit_depth=(p50, p90, p99),
        blocks_used_once=float(sizes[uses == 1].sum() / max(1, unique)),
    )
