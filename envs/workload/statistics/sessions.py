"""Conversations: which request continues which, how many turns there are, how they grow.

Where a tape does not state sessions they are derived, as in `traces.md` §3.6: a request continues
the latest earlier one whose full blocks are all at the head of its prompt, if they go beyond the
hot blocks and its prompt is no shorter. Of several such ends within a prompt the deepest counts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import to_seconds
from prefixgym.envs.jit import kernel
from prefixgym.envs.workload.statistics.prompt_segments import NO_PLACE, PromptSegments
from prefixgym.envs.workload.statistics.quantiles import (
    GAP_LEVELS,
    LENGTH_LEVELS,
    Quantiles,
    quantiles,
)
from prefixgym.envs.workload.statistics.timeline import Timeline
from prefixgym.envs.workload.tape import NO_ROW

HOT_SHARE = 0.05


@dataclass(frozen=True)
class Lineage:
    """Which requests continue which.

    Attributes:
        hot: segments that are part of everybody's prompts: held by at least 5 % of the sessions if
            the tape states them (and by two), else by 5 % of the requests, [S].
        parent: row that each request continues, NO_ROW for a session's first, [R].
        session: number of each request's session, from 0 on, [R].
        derived: whether sessions were derived and not stated.
    """

    hot: NDArray[np.bool_]
    parent: NDArray[np.int64]
    session: NDArray[np.int64]
    derived: bool


@dataclass(frozen=True)
class Sessions:
    """Figures of `traces.md` §3.6; gaps and growth are those of requests that continue another.

    Attributes:
        derived: see `Lineage`.
        closed_loop: whether gaps hold an assumed service time (see `timeline.py`).
        sessions: how many.
        multi_turn_sessions: share of the sessions that have more than one request.
        multi_turn_requests: share of the requests that are part of such sessions.
        turns: requests of a session.
        gap: s from the arrival of the request continued to that of the next.
        growth: tokens by which a prompt is longer than the one that it continues.
        added: `growth` without the output of the request continued: what was typed or pasted.
    """

    derived: bool
    closed_loop: bool
    sessions: int
    multi_turn_sessions: float
    multi_turn_requests: float
    turns: Quantiles
    gap: Quantiles
    growth: Quantiles
    added: Quantiles


@kernel
def _derive(
    first: NDArray[np.int64],
    segment: NDArray[np.int64],
    full_end: NDArray[np.int64],
    prompt_tokens: NDArray[np.int32],
    hot: NDArray[np.bool_],
    ends: NDArray[np.int64],
    parent: NDArray[np.int64],
) -> None:
    """Fill `parent` [R]. `ends` [S]: last row whose full blocks end with a segment, all NO_ROW."""
    for row in range(parent.size):
        parent[row] = NO_ROW
        for place in range(first[row + 1] - 1, first[row] - 1, -1):
            if hot[segment[place]]:
                break
            earlier = ends[segment[place]]
            if earlier != NO_ROW:
                if prompt_tokens[row] >= prompt_tokens[earlier]:
                    parent[row] = earlier
                break
        if full_end[row] != NO_PLACE and not hot[segment[full_end[row]]]:
            ends[segment[full_end[row]]] = row


@kernel
def _number_sessions(parent: NDArray[np.int64], session: NDArray[np.int64]) -> None:
    """Fill `session` [R]; parents come before those who continue them."""
    count = 0
    for row in range(parent.size):
        if parent[row] == NO_ROW:
            session[row] = count
            count += 1
        else:
            session[row] = session[parent[row]]


def lineage(line: Timeline, parts: PromptSegments, derive: bool = False) -> Lineage:
    """Which request of a timeline continues which.

    Args:
        line: the requests.
        parts: their prompts.
        derive: do without the sessions that the tape states, to compare it with one that states
            none.
    """
    num_rows = len(line.tape.requests)
    if derive or not line.states_sessions:
        users = np.bincount(parts.segment, minlength=parts.num_segments)
        hot = users >= HOT_SHARE * num_rows
        parent = np.empty(num_rows, np.int64)
        _derive(
            parts.first,
            parts.segment,
            parts.full_end,
            line.tape.requests["prompt_tokens"],
            hot,
            np.full(parts.num_segments, NO_ROW),
            parent,
        )
        session = np.empty(num_rows, np.int64)
        _number_sessions(parent, session)
        return Lineage(hot, parent, session, derived=True)
    session = np.unique(line.tape.requests["session"], return_inverse=True)[1]
    num_sessions = int(session.max()) + 1
    pairs = np.unique(parts.segment * num_sessions + session[parts.row])
    users = np.bincount(pairs // num_sessions, minlength=parts.num_segments)
    hot = users >= max(2, HOT_SHARE * num_sessions)
    return Lineage(hot, line.parent, session, derived=False)


def sessions(line: Timeline, found: Lineage) -> Sessions:
    """The figures of a timeline's sessions."""
    requests = line.tape.requests
    turns = np.bincount(found.session)
    later = np.flatnonzero(found.parent != NO_ROW)
    earlier = found.parent[later]
    gap = to_seconds(requests["arrival"][later] - requests["arrival"][earlier])
    growth = requests["prompt_tokens"][later] - requests["prompt_tokens"][earlier].astype(np.int64)
    several = turns > 1
    levels = LENGTH_LEVELS[:3]
    return Sessions(
        derived=found.derived,
        closed_loop=line.closed_loop,
        sessions=len(turns),
        multi_turn_sessions=float(several.mean()),
        multi_turn_requests=float(turns[several].sum() / len(requests)),
        turns=quantiles(turns, LENGTH_LEVELS[1:]),
        gap=quantiles(gap, GAP_LEVELS),
        growth=quantiles(growth, levels),
        added=quantiles(growth - requests["output_tokens"][earlier], levels),
    )
