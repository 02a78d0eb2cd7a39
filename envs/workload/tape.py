"""The one internal form of a workload: a tape of requests.

Generators and trace readers write tapes; the simulator plays them. A tape fixes everything
exogenous (arrivals, lengths, identities) before the first routing decision, so that every router
sees the same requests: common random numbers by construction.

A request's prompt is a chain of blocks of `block_size` tokens. The id of a block stands for the
block *and everything before it*, so equal ids mean equal prefixes. Ids are stored as runs of
consecutive numbers, which is how both generators and traces number them and keeps a tape small.

Sessions: a root (`parent == -1`) arrives at a fixed time. A follow-up exists only once its parent
has ended (finished or was rejected), and arrives `arrival` ticks after that end (think time).
Follow-ups of one parent form a list through `next_sibling`. A follow-up may join several branches:
it then waits for every row whose `then` names it as well, and arrives its think time after the last
of these ends. So an agent's call goes on when all the sub-agents that it started have come back.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

NO_ROW = -1

REQUEST = np.dtype(
    [
        ("arrival", np.int64),  # ticks: absolute for a root, think time for a follow-up
        ("first_run", np.int64),  # index of the request's first run of block ids
        ("prompt_tokens", np.int32),  # >= 1
        ("output_tokens", np.int32),  # >= 1; the first one comes out of the prefill
        ("num_runs", np.int32),
        ("num_blocks", np.int32),  # ids known to routers, from block 0: ceil or floor of the prompt
        ("cacheable_blocks", np.int32),  # leading ids an engine may publish once the block is full
        ("session", np.int32),
        ("parent", np.int32),  # row of the request this one follows, NO_ROW for a root
        ("first_child", np.int32),  # row of the first follow-up, NO_ROW if none
        ("next_sibling", np.int32),  # row of the parent's next follow-up, NO_ROW if none
        ("then", np.int32),  # later row that waits for this one's end besides its parent's, NO_ROW
        ("waits_for", np.int32),  # ends it takes: 0 for a root, else 1 + rows whose `then` names it
        ("slo_class", np.int32),  # index into the scenario's table of objectives
    ],
    align=True,
)
"""One request. The runs hold max(num_blocks, cacheable_blocks) ids; ids past the prompt's full
blocks name the blocks that decoding fills, where the workload knows what the next turn will call
them."""

RUN = np.dtype([("start", np.int64), ("count", np.int64)], align=True)
"""Block ids start, start + 1, …, start + count - 1, all >= 0, of one meaning within a tape."""


def root_requests(
    arrival: NDArray[np.int64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    num_runs: NDArray[np.int64],
) -> NDArray[np.void]:
    """REQUEST records without links, each a session of its own; the runs follow row by row.

    `num_blocks`, `cacheable_blocks` and `slo_class` are left at 0.
    """
    requests = np.zeros(len(arrival), REQUEST)
    requests["arrival"] = arrival
    requests["prompt_tokens"] = prompt_tokens
    requests["output_tokens"] = output_tokens
    requests["num_runs"] = num_runs
    requests["first_run"] = np.cumsum(num_runs) - num_runs
    requests["session"] = np.arange(len(arrival))
    for link in ("parent", "first_child", "next_sibling", "then"):
        requests[link] = NO_ROW
    return requests


@dataclass(frozen=True)
class Tape:
    """One episode of requests: roots sorted by arrival, follow-ups anywhere after their parents.

    Attributes:
        requests: REQUEST records, shape [R].
        runs: RUN records, shape [U].
        block_size: tokens in a block.
    """

    requests: NDArray[np.void]
    runs: NDArray[np.void]
    block_size: int

    def block_ids(self, row: int) -> NDArray[np.int64]:
        """All known ids of request `row`, from block 0."""
        request = self.requests[row]
        first, count = int(request["first_run"]), int(request["num_runs"])
        return np.concatenate(
            [
                np.arange(r["start"], r["start"] + r["count"])
                for r in self.runs[first : first + count]
            ]
            or [np.empty(0, np.int64)]
        )


class Workload(Protocol):
    """A source of tapes: the same seed gives the same tape, bit for bit."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""

    @property
    def num_sessions(self) -> int:
        """Upper bound of `session` + 1 over all tapes."""

    @property
    def max_blocks(self) -> int:
        """Upper bound of max(num_blocks, cacheable_blocks) over all tapes."""

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names."""
