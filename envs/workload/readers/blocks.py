"""How each format names the blocks of a prompt, in one table, and the checks that follow.

An id stands for its block and everything before it, in all formats here. They differ in their
block size and in the last block: "ceil" formats give a partial one an id too, which can only match
an identical prompt; "floor" formats name full blocks alone.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

LastBlock = Literal["ceil", "floor"]


@dataclass(frozen=True)
class Blocks:
    """What a format says about the blocks of a prompt.

    Attributes:
        key: the field with the ids.
        tokens_key: the field with the prompt's length.
        last_block: "ceil" if a partial last block has an id, "floor" if not.
        size: tokens in a block; None where files differ.
        in_runs: the ids come as [start, count], not one by one.
    """

    key: str
    tokens_key: str
    last_block: LastBlock
    size: int | None
    in_runs: bool = False

    def count(self, tokens: int, size: int) -> int:
        """Ids of a prompt of `tokens` with blocks of `size`."""
        return -(-tokens // size) if self.last_block == "ceil" else tokens // size

    def check(self, tokens: int, found: int, size: int) -> None:
        """ValueError unless `found` ids are as many as `tokens` need."""
        if found != self.count(tokens, size):
            rest = "the last perhaps partial" if self.last_block == "ceil" else "full ones only"
            raise ValueError(
                f"{self.key}: found {found} ids for {self.tokens_key} {tokens}, must be "
                f"{self.count(tokens, size)} of {size} tokens each, {rest}"
            )


BLOCKS = {
    # `traces.md` §2 tells how each was checked.
    "mooncake": Blocks("hash_ids", "input_length", "ceil", None),
    "bailian": Blocks("hash_ids", "input_length", "ceil", 16),
    "claude_code": Blocks("hash_runs", "input_length", "floor", 64, in_runs=True),
    "lmcache_agent": Blocks("hash_runs", "input_length", "floor", 64, in_runs=True),
    "flexlb": Blocks("bh", "il", "floor", 1024),
    "dynamo_agent": Blocks("hash_ids", "input_tokens", "ceil", None),
}


def compress(ids: list[int]) -> list[tuple[int, int]]:
    """The ids as runs (start, count) of consecutive numbers."""
    if not ids:
        return []
    array = np.array(ids, np.int64)
    begin = np.flatnonzero(np.diff(array, prepend=array[0] - 2) != 1)
    counts = np.diff(begin, append=len(array))
    return list(zip(array[begin].tolist(), counts.tolist(), strict=True))


def split_blocks(
    runs: NDArray[np.void],
    num_runs: NDArray[np.int64],
    wanted: NDArray[np.int64],
    ratio: int,
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Every id of RUN records [U] as `ratio` ids, so that prompts share what they shared.

    A partial last block has fewer than `ratio` blocks. Where the file does not name it, its full
    blocks of the finer size get ids of their own, which nothing else has.

    Args:
        runs: the ids of all requests, one request after another.
        num_runs: runs of each request, [R].
        wanted: ids that each request needs in the end, [R].
        ratio: fine blocks in a coarse one.

    Returns:
        The new runs, and how many each request has.
    """
    runs = runs.copy()
    next_id = int((runs["start"] + runs["count"]).max(initial=0)) * ratio
    if next_id + len(num_runs) * ratio > 2**62:
        raise ValueError(f"block_size: cannot split ids up to {next_id // ratio} in {ratio} each")
    runs["start"] *= ratio
    runs["count"] *= ratio
    end = np.cumsum(num_runs)
    ids_before = np.concatenate([[0], np.cumsum(runs["count"])])
    surplus = ids_before[end] - ids_before[end - num_runs] - wanted
    long = surplus > 0
    runs["count"][end[long] - 1] -= surplus[long]
    short = surplus < 0
    tails = np.empty(int(short.sum()), runs.dtype)
    tails["count"] = -surplus[short]
    tails["start"] = next_id + np.cumsum(tails["count"]) - tails["count"]
    return np.insert(runs, end[short], tails), num_runs + short
