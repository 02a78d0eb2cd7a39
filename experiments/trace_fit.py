"""How well a fitted generator describes a trace: the statistics of both, side by side.

Fitted to the first half of a trace and compared with the second, the table says how well the
generator foretells what it has not seen; the first half beside it shows how much of an error is the
trace's own change. Fitted to the whole trace it says how well the generator can imitate it.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from prefixgym.envs.workload.fitting.agent_fit import fit_agentic, has_clock
from prefixgym.envs.workload.fitting.chat_fit import fit_chat
from prefixgym.envs.workload.fitting.fit import Fit
from prefixgym.envs.workload.fitting.shared_fit import fit_shared_prompts
from prefixgym.envs.workload.fitting.unique_fit import fit_unique_prompts
from prefixgym.envs.workload.reuse import warmed_token_hit
from prefixgym.envs.workload.statistics.quantiles import Quantiles
from prefixgym.envs.workload.statistics.summary import Statistics, Study
from prefixgym.envs.workload.statistics.timeline import Timeline, timeline
from prefixgym.envs.workload.tape import Tape
from prefixgym.envs.workload.trace import TraceWorkload
from prefixgym.experiments.table import Table, number

FAMILIES: Mapping[str, Callable[[Study], Fit]] = {
    "chat": fit_chat,
    "agentic": fit_agentic,
    "shared-prompts": fit_shared_prompts,
    "unique-prompts": fit_unique_prompts,
}
SEEDS = range(5)
_GOOD, _FAIR = 0.10, 0.25
_LRU_CAPACITIES = (1_000, 3_000, 5_859, 10_000, 30_000, 50_000, 100_000)
_GIVEN = "requests/s"
_WARMED = "token hit, infinite cache, warmed, %"


@dataclass(frozen=True)
class Comparison:
    """One figure of a trace and of the generator fitted to it.

    Attributes:
        figure: its name; shares end in "%".
        fitted: of the part that was fitted to.
        wanted: of the part to compare with, the same unless the trace was split.
        generated: mean over seeds; nan if some seed has no such figure.
        spread: standard deviation over seeds.
    """

    figure: str
    fitted: float
    wanted: float
    generated: float
    spread: float

    @property
    def error(self) -> float:
        """generated / wanted − 1."""
        if math.isnan(self.generated):
            return math.inf
        if self.wanted == 0:
            return 0.0 if self.generated == 0 else math.inf
        return self.generated / self.wanted - 1

    @property
    def verdict(self) -> Literal["given", "good", "fair", "poor"]:
        """good: within 10 %; fair: within 25 %; given: not foretold but set."""
        if self.figure == _GIVEN:
            return "given"
        if abs(self.error) <= _GOOD:
            return "good"
        return "fair" if abs(self.error) <= _FAIR else "poor"


@dataclass(frozen=True)
class FitReport:
    """A fit and how well it does.

    Attributes:
        fit: the generator.
        halves: whether it was fitted to the first half and compared with the second.
        requests: of the part fitted to, and of the part compared with.
        comparisons: figure by figure.
    """

    fit: Fit
    halves: bool
    requests: tuple[int, int]
    comparisons: tuple[Comparison, ...]

    @property
    def mean_error(self) -> float:
        """Mean over the figures of the absolute error, each at most 1."""
        errors = [min(1.0, abs(c.error)) for c in self.comparisons if c.verdict != "given"]
        return float(np.mean(errors))

    @property
    def verdicts(self) -> dict[str, int]:
        """How many figures are good, fair and poor."""
        found = [c.verdict for c in self.comparisons]
        return {verdict: found.count(verdict) for verdict in ("good", "fair", "poor")}

    def json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "family": self.fit.family,
            "notes": self.fit.notes,
            "requests": self.requests,
            "mean_error": self.mean_error,
            "verdicts": self.verdicts,
            "figures": [
                {**dataclasses.asdict(c), "error": c.error, "verdict": c.verdict}
                for c in self.comparisons
            ],
        }

    def table(self) -> Table:
        """For people."""
        parts = ("first half", "second half") if self.halves else ("trace",)
        rows = []
        for c in self.comparisons:
            values = (c.fitted, c.wanted) if self.halves else (c.wanted,)
            shown = [_shown(c.figure, value) for value in (*values, c.generated, c.spread)]
            error = "" if c.verdict == "given" or math.isinf(c.error) else f"{100 * c.error:+.0f} %"
            rows.append((c.figure, *shown, error, c.verdict))
        headings = ("figure", *parts, "generated", "±", "error", "verdict")
        return Table(f"The trace and {self.fit.family} fitted to it", headings, rows)


def _shown(figure: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    if "%" in figure:
        return f"{100 * value:.1f}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else number(value)


def fit_trace(tape: Tape, first_half: bool = False, family: str | None = None) -> FitReport:
    """Fit a generator to a trace and compare the two.

    Args:
        tape: the trace. Stamps recorded in batches are spread, see `TraceWorkload`.
        first_half: fit to the first half of its time and compare with the second.
        family: a key of `FAMILIES`; None fits each and takes that which imitates better what it
            was fitted to.

    Raises:
        ValueError: no family fits, or a trace with follow-ups in a closed loop is to be halved.
    """
    line = timeline(TraceWorkload(tape).tape(0))
    if first_half:
        if line.closed_loop:
            raise ValueError(
                "first-half: found follow-ups without times of their own, cannot halve"
            )
        arrival = line.tape.requests["arrival"]
        cut = int(np.searchsorted(arrival, arrival[0] + (arrival[-1] - arrival[0]) / 2))
        if not 0 < cut < len(arrival):
            raise ValueError("first-half: all requests arrive at once, there are no halves")
        seen = Study.of(_part(line, tape, 0, cut))
        fit = _fit(seen, family)
        return _compare(fit, seen, Study.of(_part(line, tape, cut, None)), line)
    whole = Study.of(tape) if line.closed_loop else Study.of(_part(line, tape, 0, None))
    return _compare(_fit(whole, family), whole, whole, line)


def _part(line: Timeline, tape: Tape, start: int, stop: int | None) -> Tape:
    """Rows of an open loop in order of time, batches spread."""
    return Tape(line.tape.requests[start:stop], line.tape.runs, tape.block_size)


def _fit(study: Study, family: str | None) -> Fit:
    """The best of the families that can be fitted at all, by imitation of what is fitted to.

    Agents are those whose requests wait for each other: to a closed loop nothing else is fitted.
    """
    if family is not None:
        if family not in FAMILIES:
            raise ValueError(f"family: found {family!r}, allowed: {', '.join(FAMILIES)}")
        return FAMILIES[family](study)
    if study.line.closed_loop:
        return fit_agentic(study)
    reports, errors = [], []
    for name, fit in FAMILIES.items():
        try:
            reports.append(_compare(fit(study), study, study, study.line))
        except ValueError as error:
            errors.append(f"{name}: {error}")
    if not reports:
        raise ValueError("; ".join(errors))
    return min(reports, key=lambda report: report.mean_error).fit


def _compare(fit: Fit, seen: Study, wanted: Study, line: Timeline) -> FitReport:
    """Statistics of both, the generated ones at the wanted rate and of the wanted size."""
    fitted_rows, wanted_rows = (len(study.line.tape.requests) for study in (seen, wanted))
    halves = seen is not wanted
    rows = len(line.tape.requests)
    there = wanted.statistics()
    clock = has_clock(wanted)
    played = fit.at_rate(there.traffic.rate) if clock else fit
    derive = there.sessions.derived

    samples = []
    for seed in SEEDS:
        study = Study.of(played.workload(wanted_rows).tape(len(SEEDS) + seed), derive)
        figures = _figures(study.statistics(), clock)
        if halves:
            # The figure is that of the second half of an episode as long as the whole trace.
            whole = timeline(played.workload(rows).tape(seed)).tape
            figures[_WARMED] = warmed_token_hit(whole, fitted_rows)
        samples.append(figures)
    before, after = _figures(seen.statistics(), clock), _figures(there, clock)
    if halves:
        after[_WARMED] = warmed_token_hit(line.tape, fitted_rows)
    comparisons = []
    for figure, value in after.items():
        if math.isfinite(value):
            values = [sample.get(figure, math.nan) for sample in samples]
            mean, spread = float(np.mean(values)), float(np.std(values))
            comparisons.append(
                Comparison(figure, before.get(figure, math.nan), value, mean, spread)
            )
    return FitReport(fit, halves, (fitted_rows, wanted_rows), tuple(comparisons))


def _figures(found: Statistics, clock: bool) -> dict[str, float]:
    """The figures to compare by name, in the order of the tables.

    Those that depend on how many sessions overlap are left out for traces without a `clock`.
    """
    traffic, sessions = found.traffic, found.sessions
    figures = {}
    if clock:
        figures = {
            _GIVEN: traffic.rate,
            "prompt tokens/s": traffic.prompt_token_rate,
            "CV of the gaps": traffic.gap_cv,
            "variance/mean of counts in 10 s": traffic.dispersion["10s"],
            "variance/mean of counts in 60 s": traffic.dispersion["60s"],
        }

    def add(name: str, values: Quantiles, *levels: str) -> None:
        figures.update({f"{name} {level}": values[level] for level in levels if level in values})

    add("prompt tokens,", found.prompt_tokens, "mean", "p10", "p50", "p90", "p99")
    add("output tokens,", found.output_tokens, "mean", "p10", "p50", "p90", "p99")
    if found.reuse is not None and found.lru is not None and found.sharing is not None:
        figures["block hit, infinite cache, cold, %"] = found.reuse.block_hit
        figures["token hit, infinite cache, cold, %"] = found.reuse.token_hit
        figures[_WARMED] = found.reuse.token_hit_second_half
        figures["mean hit of a request, %"] = found.reuse.request_hit
        figures["requests without a hit, %"] = found.reuse.requests_without_hit
        for capacity, hit in zip(found.lru.capacity, found.lru.block_hit, strict=True):
            if capacity in _LRU_CAPACITIES and clock:
                figures[f"block hit, LRU of {capacity:,} blocks, %"] = hit
        figures["hits in hot blocks, %"] = found.sharing.hot_hit
        figures["hits of turns that continue, %"] = found.sharing.continuation_hit
        figures["other hits, %"] = found.sharing.other_hit
    figures["sessions with several turns, %"] = sessions.multi_turn_sessions
    figures["requests in those, %"] = sessions.multi_turn_requests
    figures["turns, mean"] = traffic.requests / sessions.sessions
    add("turns,", sessions.turns, "p99", "max")
    add("gap between turns, s,", sessions.gap, "p10", "p50", "p80", "p90", "p99")
    add("growth a turn, tokens,", sessions.growth, "p50", "p90")
    add("  without the answer before,", sessions.added, "p50", "p90")
    add("reuse gap, s,", found.reuse_gap, "p10", "p50", "p80", "p90", "p99")
    return figures


def describe(report: FitReport) -> list[str]:
    """What was fitted and how it went, a line each."""
    counts = report.verdicts
    rows = [f"{count:,}" for count in report.requests]
    what = (
        f"the first half of the trace ({rows[0]} requests) and compared with the second ({rows[1]})"
        if report.halves
        else f"the whole trace ({rows[0]} requests)"
    )
    return [
        f"{report.fit.family}, fitted to {what}:",
        *(f"  {note}" for note in report.fit.notes),
        f"{counts['good']} figures within {100 * _GOOD:.0f} %, {counts['fair']} within "
        f"{100 * _FAIR:.0f} %, {counts['poor']} further off; mean error "
        f"{100 * report.mean_error:.0f} %.",
    ]


def page(report: FitReport, command: str) -> str:
    """The page `docs/trace-fit.md`.

    Args:
        report: of a trace that was halved.
        command: what wrote the page.
    """
    return f"""# A generator fitted to a trace

Written by `{command}`.

`prefixgym trace fit FILE --out scenario.toml` fits a generator to a recorded trace, says how well
the two agree, and writes a scenario on which routers are trained and compared for endless days
like the recorded one. With `--first-half` the generator sees only the first half of the trace, and
is held against the second: where it misses, the first half beside it shows how much of that is the
trace's own change.

Generated figures are means over {len(SEEDS)} seeds, ± their standard deviation, with the rate and
the number of requests of the second half. Cold: the half alone, an empty cache at its start.
Warmed: the other half before it. Good is within {100 * _GOOD:.0f} % of the second half, fair within
{100 * _FAIR:.0f} %.

{report.table().markdown()}
```
{chr(10).join(describe(report))}
```

## How it is fitted

- Sessions are derived from prefixes as `prefixgym trace inspect` does. Requests of the generated
  tapes are treated alike: their own sessions are ignored and derived again.
- Sessions that began before the trace, and turns so near its end that their follow-up may come
  later, are left out where lengths are measured. Turns and gaps are fitted together by likelihood,
  with what the end of the trace cut off as censored (`envs/workload/fitting/turns_fit.py`).
- Lengths take the simplest form within 3 % of what was measured: a constant, a lognormal, two
  lognormals, or else the measured quantiles (`length_fit.py`).
- The lengths of first, middle, last and only turns are fitted apart: who pastes a document mostly
  ends the conversation with it, so that deep conversations are made of short lines.
- Of the open-loop families (chat, shared prompts, unique prompts) the one is taken whose own tapes
  come closest to what it was fitted to. To a trace in which requests wait for each other the
  generator `agentic` is fitted: calls, think times, growth, resets, sub-agents. If such a trace has
  no clock, because every session begins at 0, what depends on their overlap is not compared.

## What it cannot do

- The generator is in a steady state. Where lengths drift, the fit stays with those of the half that
  it saw; with the second half's rate that makes another number of tokens/s, on which the LRU curve
  at medium capacities depends.
- Hits of neither system prompts nor continued conversations (`other hits`) are not made: the same
  document sent by two users, edited or forked conversations.
- Lengths of one turn are independent of those before and of the session's length, apart from
  being a first, middle, last or only turn. Very long sessions, a handful in an hour, are rarer
  than in the trace.
- Prompts only grow. Where real ones shrink (an answer's reasoning left out, history cut) the
  generator adds one token.
"""
