"""`Agentic` fitted to recorded sessions of agents, in which each call waits for those before."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import to_seconds
from prefixgym.envs.workload.durations import Duration
from prefixgym.envs.workload.fitting.fit import Fit
from prefixgym.envs.workload.fitting.length_fit import fit_length
from prefixgym.envs.workload.fitting.turns_fit import fit_gap
from prefixgym.envs.workload.generators.agentic import Agentic
from prefixgym.envs.workload.lengths import distribution
from prefixgym.envs.workload.statistics.summary import Study
from prefixgym.envs.workload.statistics.timeline import FIRST_TOKEN, PER_TOKEN
from prefixgym.envs.workload.tape import NO_ROW

_RESET = 0.8
"""A prompt below this share of the one before is the beginning of a new context."""

_LIVE_SESSIONS = 16.0


def fit_agentic(study: Study) -> Fit:
    """The agents whose sessions are like those of a trace.

    A trace of this kind often has no clock: every session begins at 0. Then the rate is that of 16
    sessions under way at a time, each as long as recorded.

    Raises:
        ValueError: the trace is no closed loop.
    """
    line = study.line
    if not line.closed_loop:
        raise ValueError("agentic: no request waits for another, there are no agents to fit")
    requests = line.tape.requests
    prompt = requests["prompt_tokens"].astype(np.int64)
    output = requests["output_tokens"].astype(np.int64)
    parent = line.parent
    main = ~line.side
    follows = parent != NO_ROW
    # A branch's first call is the child of a call of the main agent, and does not continue it.
    begins = line.side & follows & main[parent]
    later = np.flatnonzero(follows & ~begins)
    added = prompt[later] - prompt[parent[later]] - output[parent[later]]
    reset = prompt[later] < _RESET * prompt[parent[later]]
    on_main = main[later]

    hot = study.lineage.hot[study.parts.segment]
    depth = np.bincount(study.parts.row[hot], study.parts.size[hot], len(prompt))
    block_size = line.tape.block_size
    system = round(float(depth[main].mean())) * block_size
    first = prompt[main & ~follows] - system
    new = added[on_main & ~reset]
    usual = int(np.median(new)) if len(new) > 0 else 1

    fits: dict[str, NDArray[np.int64]] = {
        "calls": np.bincount(study.lineage.session[main]),
        "file_tokens": np.maximum(0, first - usual),
        "new_tokens": new,
        "output_tokens": output,
    }
    parameters: dict[str, Any] = {
        "system_tokens": system,
        "repository_tokens": 0,
        "summary_tokens": 0,
        "sub_agent_system_tokens": 0,
        "sub_agent_task_tokens": 1,
        "sub_agent_new_tokens": 1,
    }
    resets = prompt[later[reset & on_main]]
    if len(resets) > 0:
        fits["summary_tokens"] = np.maximum(0, resets - system - usual)
    spawns, agents = _branches(parent, begins)
    going_on = int(np.count_nonzero(on_main))
    parameters["spawn_probability"] = float(f"{len(spawns) / max(1, going_on):.3g}")
    if len(spawns) > 0:
        fits["sub_agents"] = agents
        fits["sub_agent_calls"] = _branch_calls(parent, begins, line.side)
        fits["sub_agent_task_tokens"] = prompt[begins]
        if np.any(~on_main & ~reset):
            fits["sub_agent_new_tokens"] = added[~on_main & ~reset]

    notes = []
    zero = {"file_tokens", "summary_tokens"}
    for key, values in fits.items():
        fit = fit_length(values, least=0 if key in zero else 1)
        parameters[key] = fit.length
        notes.append(f"{key}: {fit}")
    for key, rows in (
        ("think_time", later[on_main]),
        ("sub_agent_think_time", later[~on_main]),
    ):
        if len(rows) > 1:
            parameters[key], family = _times(line.think_time[rows])
            notes.append(f"{key}: {family}")
    most = max(int(prompt.max()), _longest_start(parameters))
    # Resets come in proportion to the length that the prompt would have had.
    would_be = float((prompt + output)[parent[later[on_main]]].sum() + usual * len(new)) / most
    parameters["max_prompt_tokens"] = most
    parameters["reset_probability"] = float(f"{min(1.0, len(resets) / max(1.0, would_be)):.3g}")
    parameters |= {"nominal_ttft": FIRST_TOKEN, "nominal_tpot": PER_TOKEN}
    notes += [
        f"resets: {len(resets)} in {going_on} calls",
        f"sub-agents: {int(np.count_nonzero(begins))}, begun by {len(spawns)} calls",
    ]
    rate, clock = _rate(study)
    notes.append("rate: the trace's" if clock else "rate: no clock, 16 sessions at a time")
    return Fit(Agentic, "agentic", parameters, rate, 1.0, block_size, tuple(notes))


def has_clock(study: Study) -> bool:
    """Whether the sessions of a trace begin at different times."""
    roots = study.line.tape.requests["arrival"][study.line.parent == NO_ROW]
    return bool(roots.max() > roots.min())


def _rate(study: Study) -> tuple[float, bool]:
    """Calls per second, and whether they are the trace's own."""
    arrival = to_seconds(study.line.tape.requests["arrival"])
    if has_clock(study):
        return len(arrival) / float(arrival[-1] - arrival[0]), True
    session = study.lineage.session
    begin, end = np.full(session.max() + 1, np.inf), np.zeros(session.max() + 1)
    np.minimum.at(begin, session, arrival)
    np.maximum.at(end, session, arrival + FIRST_TOKEN)
    return float(f"{_LIVE_SESSIONS * len(arrival) / float((end - begin).sum()):.3g}"), False


def _times(seconds: NDArray[np.float64]) -> tuple[Duration, str]:
    ascending = np.sort(seconds)
    share = np.arange(1, len(ascending) + 1) / len(ascending)
    time, family, distance = fit_gap(ascending, share)
    return time, f"{family}, lognormal's distance {100 * distance:.1f} %"


def _branches(
    parent: NDArray[np.int64], begins: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Calls that start branches, and how many each starts."""
    spawns, agents = np.unique(parent[begins], return_counts=True)
    return spawns, agents


def _branch_calls(
    parent: NDArray[np.int64], begins: NDArray[np.bool_], side: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Calls of each branch."""
    branch = np.full(len(parent), NO_ROW)
    branch[begins] = np.arange(np.count_nonzero(begins))
    for row in np.flatnonzero(side & ~begins).tolist():
        branch[row] = branch[parent[row]]
    return np.bincount(branch[side])


def _longest_start(parameters: dict[str, Any]) -> int:
    """Tokens that the generator must allow a first prompt, or the first after a reset."""

    def high(key: str) -> int:
        return distribution(key, parameters[key], 0).high

    main = (
        high("system_tokens")
        + max(high("file_tokens"), high("summary_tokens"))
        + high("new_tokens")
    )
    side = max(high("sub_agent_task_tokens"), high("summary_tokens") + high("sub_agent_new_tokens"))
    return max(main, side)
