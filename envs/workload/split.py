"""A tape with smaller blocks: every id becomes several, so prompts share what they shared."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.chains import ceil_div
from prefixgym.envs.workload.fields import check_whole
from prefixgym.envs.workload.tape import Tape


def split_blocks(tape: Tape, block_size: int) -> Tape:
    """The same requests with blocks of `block_size` tokens, the runs row by row.

    A partial last block has fewer small blocks than a full one. Where the tape does not name it,
    its full small blocks get ids of their own, which nothing else has. Where two prompts really
    part inside a block of the tape, what they share of it stays lost: hits are a lower bound, by
    less than one of its blocks a request.

    Args:
        tape: the requests.
        block_size: tokens, a divisor of the tape's.

    Raises:
        ValueError: it is none, or the ids are so large that they cannot be split.
    """
    check_whole("block_size", block_size, 1, tape.block_size)
    if tape.block_size % block_size != 0:
        raise ValueError(
            f"block_size: found {block_size}, must divide the trace's {tape.block_size}"
        )
    if block_size == tape.block_size:
        return tape
    ratio = tape.block_size // block_size
    requests = tape.requests.copy()
    prompt = requests["prompt_tokens"].astype(np.int64)
    full = prompt // tape.block_size
    names_partial = requests["num_blocks"] > full
    requests["num_blocks"] = np.where(
        names_partial, ceil_div(prompt, block_size), prompt // block_size
    )
    # Those that end with the prompt still do; those that decoding fills are full.
    cacheable = requests["cacheable_blocks"].astype(np.int64)
    requests["cacheable_blocks"] = np.where(
        cacheable == full, prompt // block_size, cacheable * ratio
    )
    wanted = np.maximum(requests["num_blocks"], requests["cacheable_blocks"])
    place, num_runs = runs_of(requests)
    runs, num_runs = _split_runs(tape.runs[place], num_runs, wanted.astype(np.int64), ratio)
    requests["num_runs"] = num_runs
    requests["first_run"] = np.cumsum(num_runs) - num_runs
    return Tape(requests, runs, block_size)


def runs_of(requests: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the runs of all requests are, row by row, and how many each has."""
    num_runs = requests["num_runs"].astype(np.int64)
    begin = np.cumsum(num_runs) - num_runs
    place = np.repeat(requests["first_run"] - begin, num_runs) + np.arange(num_runs.sum())
    return place, num_runs


def _split_runs(
    runs: NDArray[np.void], num_runs: NDArray[np.int64], wanted: NDArray[np.int64], ratio: int
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The runs of all requests and how many each has, once each has `wanted` ids of the new size.

    `runs` is a copy of the caller's, to be changed.
    """
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
