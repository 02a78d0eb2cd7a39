"""`MultiTurnChat` fitted to a trace of conversations."""

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import to_seconds
from prefixgym.envs.workload.durations import Duration
from prefixgym.envs.workload.fitting.fit import Fit, fit_arrivals
from prefixgym.envs.workload.fitting.length_fit import empirical, fit_length
from prefixgym.envs.workload.fitting.turns_fit import fit_gap, fit_turns
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.lengths import Length, distribution
from prefixgym.envs.workload.statistics.prompt_segments import NO_PLACE
from prefixgym.envs.workload.statistics.sessions import HOT_SHARE
from prefixgym.envs.workload.statistics.sharing import zipf_exponent
from prefixgym.envs.workload.statistics.summary import Study
from prefixgym.envs.workload.tape import NO_ROW

_FEWEST = 20


def fit_chat(study: Study) -> Fit:
    """The chat whose sessions are like those of a trace.

    Raises:
        ValueError: the trace has too few follow-ups, or no rate.
    """
    requests = study.line.tape.requests
    prompt = requests["prompt_tokens"].astype(np.int64)
    output = requests["output_tokens"].astype(np.int64)
    parent = study.lineage.parent
    later = np.flatnonzero(parent != NO_ROW)
    prompts, notes = _system_prompts(study)
    view = _Sessions(study)
    rate, cv = fit_arrivals(study, view.fresh & (parent == NO_ROW))  # sessions start by the process
    turns, gap, how = view.turns_and_gaps()
    notes.append(how)

    added = prompt - prompts["system_tokens"]
    added[later] = prompt[later] - prompt[parent[later]] - output[parent[later]]
    lengths: dict[str, Length] = {}
    for key, rows in view.places().items():
        # Too few to tell them from the others: those of any later turn, or the generator's default.
        values = added[rows if np.count_nonzero(rows) >= _FEWEST else later]
        if len(values) > 0:
            fit = fit_length(values)
            lengths[key] = fit.length
            notes.append(f"{key}: {fit}")
    answer = fit_length(output)
    notes.append(f"output_tokens: {answer}")

    longest = max(distribution(key, length).high for key, length in lengths.items())
    parameters = {
        "turns": turns,
        "think_time": gap,
        **prompts,
        **lengths,
        "output_tokens": answer.length,
        "max_prompt_tokens": max(int(prompt.max()), prompts["system_tokens"] + longest),
        "closed_loop": study.line.closed_loop,
    }
    block_size = study.line.tape.block_size
    return Fit(MultiTurnChat, "chat", parameters, rate, cv, block_size, tuple(notes))


def _system_prompts(study: Study) -> tuple[dict[str, float | int], list[str]]:
    """Hot prefixes as system prompts, each one that 5 % of the requests share, and a note.

    The generator draws their lengths, so they get one: the mean, weighted by use.
    """
    parts, lineage = study.parts, study.lineage
    num_rows = len(parts.full_end)
    hot = lineage.hot[parts.segment]
    depth = np.bincount(parts.row[hot], parts.size[hot], num_rows)
    ends = np.full(num_rows, NO_PLACE)  # the segment with which a row's hot prefix ends names it
    ends[parts.row[hot]] = parts.segment[hot]
    uses = np.sort(np.unique(ends[ends != NO_PLACE], return_counts=True)[1])[::-1]
    uses = uses[uses >= HOT_SHARE * num_rows]
    zipf = 0.0
    if len(uses) > 1:
        zipf = zipf_exponent(np.arange(1, len(uses) + 1), uses.astype(np.float64))[0]
    tokens = round(float(depth.mean())) * study.line.tape.block_size if len(uses) > 0 else 0
    found = {
        "num_system_prompts": max(1, len(uses)),
        "zipf": float(f"{zipf:.3g}"),
        "system_tokens": tokens,
    }
    return found, [f"system prompts: {len(uses)}, of {tokens} tokens on average"]


class _Sessions:
    """Turns of a trace, as far as it shows them whole.

    Sessions that began before the trace look as if they began with their first request in it, and
    the last turns in it may go on after it. So only sessions first seen later than most gaps are
    long are used, and a turn counts as a session's last only so long before the end. A closed loop
    is a collection of whole sessions; there nothing is left out.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self.parent = study.lineage.parent
        self.later = np.flatnonzero(self.parent != NO_ROW)
        arrival = to_seconds(study.line.tape.requests["arrival"])
        self.gap = np.full(len(arrival), np.nan)  # to the first follow-up
        earlier = self.parent[self.later]
        # Of several follow-ups the first is written last.
        self.gap[earlier[::-1]] = (arrival[self.later] - arrival[earlier])[::-1]
        self.left = arrival[-1] - arrival
        self.fresh = np.ones(len(arrival), np.bool_)
        self.long_gap = 0.0
        if not study.line.closed_loop and len(self.later) > 0:
            span = float(self.left[0])
            self.long_gap = min(float(np.nanquantile(self.gap, 0.9)), span / 3)
            begin = np.full(int(study.lineage.session.max()) + 1, np.inf)
            np.minimum.at(begin, study.lineage.session, arrival - arrival[0])
            self.fresh = begin[study.lineage.session] >= self.long_gap

    def places(self) -> dict[str, NDArray[np.bool_]]:
        """Rows by the parameter of the generator that says what their turn adds."""
        goes_on = ~np.isnan(self.gap)
        ends = ~goes_on & (self.left >= self.long_gap)
        first = self.parent == NO_ROW
        return {
            "opening_tokens": self.fresh & first & goes_on,
            "user_tokens": self.fresh & ~first & goes_on,
            "closing_tokens": self.fresh & ~first & ends,
            "lone_tokens": self.fresh & first & ends,
        }

    def turns_and_gaps(self) -> tuple[Length, Duration, str]:
        """Turns of a session, the gap before a follow-up, and a note on both."""
        turns = np.bincount(self.study.lineage.session)
        if self.study.line.closed_loop:
            think = np.sort(self.study.line.think_time[self.later])
            share = np.arange(1, len(think) + 1) / len(think)
            gap, family, distance = fit_gap(think, share)
            return (
                empirical(turns),
                gap,
                f"turns: as in {len(turns)} whole sessions; think_time: {family}, distance "
                f"{100 * distance:.1f} %",
            )
        turn = np.ones(len(self.parent), np.int64)
        for row in self.later.tolist():
            turn[row] = turn[self.parent[row]] + 1
        used = self.fresh
        fit = fit_turns(turn[used], self.gap[used], self.left[used], int(turns.max()))
        return (
            fit.turns,
            fit.gap,
            f"turns: beta-geometric, alpha {fit.alpha:.2f}, beta {fit.beta:.2f}; think_time: "
            f"{fit.gap_family}, lognormal's distance {100 * fit.gap_distance:.1f} %",
        )
