"""What every tape must satisfy, checked: for writers of new generators and trace readers."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER
from prefixgym.envs.jit import kernel
from prefixgym.envs.workload.segments import cut_runs
from prefixgym.envs.workload.tape import NO_ROW, REQUEST, RUN, Tape


def _require(column: str, good: NDArray[np.bool_], values: NDArray[np.int64], rule: str) -> None:
    """Raise ValueError for the first record of `column` that is not good."""
    if not good.all():
        row = int(np.argmin(good))
        table, field = column.split(".")
        raise ValueError(f"{table}[{row}].{field}: found {values[row]}, {rule}")


@kernel
def _find_bad_link(requests: NDArray[np.void]) -> int:
    """Row of a follow-up that its parent's list does not name exactly once, or NO_ROW."""
    reached = np.zeros(requests.size, np.int64)
    for row in range(requests.size):
        child: int = requests[row].first_child
        while child != NO_ROW:
            if child < 0 or child >= requests.size or requests[child].parent != row:
                return row
            reached[child] += 1
            if reached[child] > 1:
                return child
            child = requests[child].next_sibling
    for row in range(requests.size):
        if reached[row] != (requests[row].parent != NO_ROW):
            return row
        if requests[row].parent == NO_ROW and requests[row].next_sibling != NO_ROW:
            return row
    return NO_ROW


@kernel
def find_bad_chain(
    requests: NDArray[np.void],
    runs: NDArray[np.void],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Row with a block id that has another predecessor than before, or NO_ROW.

    `sizes`, `first` and `last` are those of `cut_runs`. After the row come the id, its predecessor
    there, and the one it had before (-1 for none).
    """
    depth_of = np.full(sizes.size, -1)
    predecessor_of = np.empty(sizes.size, np.int64)
    for row in range(requests.size):
        depth = 0
        predecessor = -1
        first_run = requests[row].first_run
        for run in range(first_run, first_run + requests[row].num_runs):
            block = runs[run].start
            for segment in range(first[run], last[run]):
                if depth_of[segment] == -1:
                    depth_of[segment] = depth
                    predecessor_of[segment] = predecessor
                elif depth_of[segment] != depth or predecessor_of[segment] != predecessor:
                    return row, block, predecessor, predecessor_of[segment]
                depth += sizes[segment]
                block += sizes[segment]
                predecessor = block - 1
    return NO_ROW, 0, 0, 0


def validate(tape: Tape) -> None:
    """Check `tape` against the contract of `tape.py`.

    Raises:
        ValueError: names the first record and field that break it, what was found and the rule.
    """
    if tape.block_size < 1:
        raise ValueError(f"block_size: found {tape.block_size}, must be at least 1")
    for name, array, dtype in (("requests", tape.requests, REQUEST), ("runs", tape.runs, RUN)):
        if array.dtype != dtype or array.ndim != 1:
            raise ValueError(f"{name}: found {array.dtype} {array.shape}, must be a row of {dtype}")
    columns = {name: tape.requests[name].astype(np.int64) for name in REQUEST.names or ()}

    def require(field: str, good: NDArray[np.bool_], rule: str) -> None:
        _require(f"requests.{field}", good, columns[field], rule)

    for field in ("prompt_tokens", "output_tokens"):
        require(field, columns[field] >= 1, "must be at least 1")
    for field in ("session", "slo_class"):
        require(field, columns[field] >= 0, "must be at least 0")

    arrival = columns["arrival"]
    require("arrival", (arrival >= 0) & (arrival <= NEVER), f"must be between 0 and {NEVER} ticks")
    parent = columns["parent"]
    rows = np.arange(len(parent))
    require("parent", (parent >= NO_ROW) & (parent < rows), "must be an earlier row or -1")
    root = np.flatnonzero(parent == NO_ROW)
    late = np.ones(len(parent), np.bool_)
    late[root[1:]] = np.diff(arrival[root]) >= 0
    require("arrival", late, "roots must be sorted by arrival")
    bad = _find_bad_link(tape.requests)
    if bad != NO_ROW:
        raise ValueError(
            f"requests[{bad}]: found parent {parent[bad]}, first_child "
            f"{columns['first_child'][bad]}, next_sibling {columns['next_sibling'][bad]}; the list "
            "from a parent's first_child must name each of its follow-ups once, and nothing else"
        )

    then = columns["then"]
    inside = (then == NO_ROW) | ((then > rows) & (then < len(rows)))
    require("then", inside, "must be a later row or -1")
    joined = then[then != NO_ROW]
    rule = "names a root: only a follow-up can wait for it"
    require("then", (then == NO_ROW) | (parent[then] != NO_ROW), rule)
    waits_for = (parent != NO_ROW) + np.bincount(joined, minlength=len(rows))
    rule = "must be 0 for a root, else 1 + the rows whose `then` names it"
    require("waits_for", columns["waits_for"] == waits_for, rule)

    start, count = tape.runs["start"], tape.runs["count"]
    _require("runs.start", start >= 0, start, "must be at least 0")
    _require("runs.count", count >= 1, count, "must be at least 1")
    first_run, num_runs = columns["first_run"], columns["num_runs"]
    require("num_runs", num_runs >= 0, "must be at least 0")
    require(
        "first_run",
        (first_run >= 0) & (first_run + num_runs <= len(tape.runs)),
        f"its runs must lie within the tape's {len(tape.runs)}",
    )
    prompt, full = columns["prompt_tokens"], columns["prompt_tokens"] // tape.block_size
    num_blocks, cacheable = columns["num_blocks"], columns["cacheable_blocks"]
    require(
        "num_blocks",
        (num_blocks == full) | (num_blocks == -(-prompt // tape.block_size)),
        f"must be the floor or the ceiling of prompt_tokens / {tape.block_size}",
    )
    require(
        "cacheable_blocks",
        (cacheable >= 0) & (cacheable <= (prompt + columns["output_tokens"]) // tape.block_size),
        f"must be at most the floor of (prompt_tokens + output_tokens) / {tape.block_size}",
    )
    ids_before = np.concatenate([[0], np.cumsum(count)])
    ids = ids_before[first_run + num_runs] - ids_before[first_run]
    _require(
        "requests.num_runs",
        ids == np.maximum(num_blocks, cacheable),
        ids,
        "ids in its runs, must be the larger of num_blocks and cacheable_blocks",
    )
    sizes, first, last = cut_runs(tape.runs)
    bad = find_bad_chain(tape.requests, tape.runs, first, last, sizes)[0]
    if bad != NO_ROW:
        raise ValueError(
            f"requests[{bad}]: a block id follows another id, or comes at another depth, than in "
            "an earlier request; an id must name the block and everything before it"
        )
