"""How each format names the blocks of a prompt, in one table, and the checks that follow.

An id stands for its block and everything before it, in all formats here. They differ in their
block size and in the last block: "ceil" formats give a partial one an id too, which can only match
an identical prompt; "floor" formats name full blocks alone.
"""

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", int, NDArray[np.int64])
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

    def count(self, tokens: T, size: int) -> T:
        """Ids of a prompt of `tokens` with blocks of `size`; or those of several prompts."""
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
