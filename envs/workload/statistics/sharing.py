"""Who shares what: popular prefixes, and where the hits of an infinite cache come from."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.statistics.prompt_segments import PromptSegments
from prefixgym.envs.workload.statistics.sessions import Lineage
from prefixgym.envs.workload.tape import NO_ROW

_RANKS = 10_000
_TOP_ROOTS = 5


@dataclass(frozen=True)
class Sharing:
    """Popularity of first blocks and of all blocks (`traces.md` §3.5).

    A Zipf exponent is minus the slope of ln(uses) over ln(rank), by least squares; nan where there
    is but one rank. Hits are shares of all blocks and sum to the block hit of an infinite cache.

    Attributes:
        roots: different first blocks.
        top_roots: share of all requests that begin with the most popular ones, five at most.
        root_zipf: exponent over all roots, and its R².
        block_zipf: exponent over the 10,000 most used blocks, and its R².
        hot_blocks: see `Lineage`.
        hot_hit: hits in hot blocks.
        continuation_hit: hits beyond them by requests that continue a session.
        other_hit: hits beyond them by requests that begin one.
    """

    roots: int
    top_roots: tuple[float, ...]
    root_zipf: tuple[float, float]
    block_zipf: tuple[float, float]
    hot_blocks: int
    hot_hit: float
    continuation_hit: float
    other_hit: float


def popularity(
    uses: NDArray[np.int64], blocks: NDArray[np.int64], most: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ranks 1, 2, … (`most` at most) and the uses of the block at each rank.

    Args:
        uses: how often each segment is used, [S]; those of 0 are left out.
        blocks: blocks of each segment, [S].
        most: ranks wanted.
    """
    order = np.argsort(-uses, kind="stable")
    order = order[: np.count_nonzero(uses)]
    enough = int(np.searchsorted(np.cumsum(blocks[order]), most)) + 1
    order = order[:enough]
    counts = np.repeat(uses[order], np.minimum(blocks[order], most))[:most]
    return np.arange(1, len(counts) + 1), counts.astype(np.float64)


def zipf_exponent(rank: NDArray[np.int64], uses: NDArray[np.float64]) -> tuple[float, float]:
    """Minus the slope of ln(uses), which descend, over ln(rank), and the R² of that line."""
    if len(rank) < 2:
        return math.nan, math.nan
    if uses[0] == uses[-1]:
        return 0.0, 1.0
    x, y = np.log(rank), np.log(uses)
    return -float(np.polyfit(x, y, 1)[0]), float(np.corrcoef(x, y)[0, 1] ** 2)


def sharing(parts: PromptSegments, lineage: Lineage) -> Sharing:
    """The figures of prompts whose sessions are known."""
    num_rows = len(parts.first) - 1
    uses = np.bincount(parts.segment, minlength=parts.num_segments)
    blocks = np.zeros(parts.num_segments, np.int64)
    blocks[parts.segment] = parts.size

    begins = parts.segment[parts.first[:-1][np.diff(parts.first) > 0]]
    root_uses = np.bincount(begins, minlength=parts.num_segments)
    rank, top = popularity(root_uses, np.ones(parts.num_segments, np.int64), num_rows)

    total = max(1, int(parts.size.sum()))
    hit = np.where(parts.hit, parts.size, 0)
    hot = lineage.hot[parts.segment]
    continues = (lineage.parent != NO_ROW)[parts.row]
    return Sharing(
        roots=len(top),
        top_roots=tuple((top[:_TOP_ROOTS] / num_rows).tolist()),
        root_zipf=zipf_exponent(rank, top),
        block_zipf=zipf_exponent(*popularity(uses, blocks, _RANKS)),
        hot_blocks=int(blocks[lineage.hot].sum()),
        hot_hit=float(hit[hot].sum() / total),
        continuation_hit=float(hit[~hot & continues].sum() / total),
        other_hit=float(hit[~hot & ~continues].sum() / total),
    )
