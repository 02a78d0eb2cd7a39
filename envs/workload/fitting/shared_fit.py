"""`SharedPrompts` fitted to a trace in which documents are asked about several times.

All requests with the same first block belong to one group. How many groups there are, how popular,
and how fast they make way for new ones cannot be read off a trace, in which most groups appear once
or twice. They are found by simulated moments: those for which the generator draws as many different
groups and comes back to them after as many requests.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.fitting.fit import Fit, fit_arrivals
from prefixgym.envs.workload.fitting.length_fit import fit_length
from prefixgym.envs.workload.generators.shared_prompts import SharedPrompts
from prefixgym.envs.workload.statistics.previous import previous
from prefixgym.envs.workload.statistics.summary import Study
from prefixgym.envs.workload.tape import NO_ROW

_SEEDS = range(3)
_MOST_ROWS = 8000
_STAYS = 100.0
"""Half-lives of so many episodes or more count as none: the groups stay."""
_STARTS = ((0.1, 0.5, 0.3), (1.0, 0.5, 10.0), (0.02, 1.0, 10.0))
"""Groups and half-life, as shares of the requests, and exponents to start from."""


def fit_shared_prompts(study: Study) -> Fit:
    """The shared prompts whose groups are like those of a trace.

    Raises:
        ValueError: no first block returns, so nothing is shared; or the trace has no rate.
    """
    requests, parts = study.line.tape.requests, study.parts
    block_size = study.line.tape.block_size
    prompt = requests["prompt_tokens"].astype(np.int64)
    group = _groups(study)
    size = np.bincount(group)
    if size.max() < 2:
        raise ValueError("groups: no first block returns, so no prompt is shared")
    rate, cv = fit_arrivals(study)

    # What a group shares: its blocks that at least two requests hold, the median over these.
    uses = np.bincount(parts.segment, minlength=parts.num_segments)
    shared = uses[parts.segment] > 1
    depth = np.bincount(parts.row[shared], parts.size[shared], len(prompt)).astype(np.int64)
    several = size[group] > 1
    question = np.maximum(1, prompt - np.minimum(depth * block_size, prompt - 1))[several]
    order = np.lexsort((depth, group))
    first = np.searchsorted(group[order], np.arange(len(size)))
    median_depth = depth[order][first + size // 2]
    longest = np.zeros(len(size), np.int64)
    np.maximum.at(longest, group, prompt)
    system = np.where(
        size > 1, median_depth * block_size, np.maximum(0, longest - int(np.median(question)))
    )

    lengths = {
        "system_tokens": fit_length(system, least=0),
        "question_tokens": fit_length(question),
        "output_tokens": fit_length(requests["output_tokens"]),
    }
    popularity = _fit_popularity(group, block_size)
    parameters = {
        **popularity,
        "prompts_per_group": None,
        **{key: fit.length for key, fit in lengths.items()},
    }
    notes = [
        f"{len(size)} groups in {len(prompt)} requests",
        *(f"{key}: {fit}" for key, fit in lengths.items()),
    ]
    return Fit(SharedPrompts, "shared-prompts", parameters, rate, cv, block_size, tuple(notes))


def _groups(study: Study) -> NDArray[np.int64]:
    """A number for each row's first block, from 0 on; rows without blocks have one of their own."""
    parts = study.parts
    held = np.diff(parts.first) > 0
    root = np.full(len(held), NO_ROW)
    root[held] = parts.segment[parts.first[:-1][held]]
    root[~held] = parts.num_segments + np.arange(np.count_nonzero(~held))
    numbers: NDArray[np.int64] = np.unique(root, return_inverse=True)[1]
    return numbers


def _moments(group: NDArray[np.int64]) -> NDArray[np.float64]:
    """What the popularity is fitted to: logarithms of the share of different groups and of the
    largest one, and of the requests between two of one group, at p25, p50 and p80."""
    before = previous(group)
    again = before != NO_ROW
    gaps = np.flatnonzero(again) - before[again]
    between = np.quantile(gaps, [0.25, 0.5, 0.8]) if len(gaps) > 0 else np.ones(3)
    shares = [np.mean(~again), np.bincount(group).max() / len(group)]
    return np.log([*shares, *np.maximum(between, 1.0)])


def _fit_popularity(group: NDArray[np.int64], block_size: int) -> dict[str, float | int]:
    """`num_groups`, `zipf` and `half_life`, by simulated moments with the same seeds throughout."""
    group = group[:_MOST_ROWS]
    count = len(group)
    wanted = _moments(group)

    def parameters(x: Sequence[float]) -> dict[str, float | int]:
        half_life = math.exp(min(x[2], 50.0))
        return {
            "num_groups": int(min(max(1.0, math.exp(min(x[0], 50.0))), 100.0 * count)),
            "zipf": float(f"{min(max(0.0, x[1]), 3.0):.3g}"),
            "half_life": math.inf if half_life > _STAYS * count else float(f"{half_life:.4g}"),
        }

    def loss(x: NDArray[np.float64]) -> float:
        generator = SharedPrompts(
            num_requests=count,
            arrivals=Poisson(1.0),
            block_size=block_size,
            prompts_per_group=None,
            system_tokens=block_size,
            question_tokens=1,
            output_tokens=1,
            **parameters(x.tolist()),  # type: ignore[arg-type]
        )
        found = []
        for seed in _SEEDS:
            tape = generator.tape(seed)
            root = tape.runs["start"][tape.requests["first_run"]]
            found.append(_moments(np.unique(root, return_inverse=True)[1]))
        return float(np.sum((np.mean(found, axis=0) - wanted) ** 2))

    def search(start: NDArray[np.float64], evaluations: int) -> Any:
        options = {"maxfev": evaluations, "xatol": 0.01, "fatol": 1e-4}
        return minimize(loss, start, method="Nelder-Mead", options=options)

    starts = [
        np.array([math.log(groups * count), zipf, math.log(half_life * count)])
        for groups, zipf, half_life in _STARTS
    ]
    first = min((search(start, 30) for start in starts), key=lambda found: float(found.fun))
    return parameters(search(first.x, 90).x.tolist())
