"""The sessions that `closed_loop` plays: the same calls once with links, once with fixed arrivals.

Generated: `Agentic` with its defaults, coding agents with contexts up to 32,768 tokens, on eight
instances; load rises with the rate at which sessions start. An episode starts in steady state, so
it is measured from its first quarter to its third.

Recorded: Claude Code sessions of `claude_code_v8_local` (WEKA) with prompts of up to 200,000 tokens
and at most an hour long; load rises as the same sessions, with the same starts, meet fewer and
fewer instances. Sessions start cold at a constant rate; the second half of the starts is measured.
Sessions with a call without `api_time` are left out: the call after it has a `think_time` that
counts from an earlier call, so that the links would say what the stamps do not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prefixgym.envs.clock import TICKS_PER_SECOND, to_seconds
from prefixgym.envs.cluster.profiles import profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.arrivals import Poisson
from prefixgym.envs.workload.generators.agentic import Agentic
from prefixgym.envs.workload.readers.claude_code import read_claude_code
from prefixgym.envs.workload.readers.rows import Row, parse_lines
from prefixgym.envs.workload.tape import Tape

SLO = Slo(ttft=5.0, tpot=0.1)
"""Agents on long contexts (`simulators.md` §4)."""

GENERATED_INSTANCES = 8
GENERATED_PROFILE = "llama-3.1-70b/h100/tp4"
GENERATED_BLOCK = 128
# What the cluster takes at 10 calls/s, where nothing waits: so both loops agree at low load.
NOMINAL_TTFT = 0.15
NOMINAL_TPOT = 0.02

RECORDED_PROFILE = "qwen3-235b-a22b-fp8/h200/tp4"
RECORDED_SESSION_RATE = 0.08
LONGEST_PROMPT = 200_000
LONGEST_SESSION = 3600.0


@dataclass(frozen=True)
class Tapes:
    """A workload of tapes that exist already, by seed."""

    by_seed: Mapping[int, Tape]

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return next(iter(self.by_seed.values())).block_size

    @property
    def num_sessions(self) -> int:
        """Upper bound of `session` + 1."""
        return 1 + max(int(tape.requests["session"].max()) for tape in self.by_seed.values())

    @property
    def max_blocks(self) -> int:
        """Most ids of a request."""
        return max(
            int(tape.requests[name].max())
            for tape in self.by_seed.values()
            for name in ("num_blocks", "cacheable_blocks")
        )

    def tape(self, seed: int) -> Tape:
        """The tape of `seed`, one of those given."""
        return self.by_seed[seed]


@dataclass(frozen=True)
class Load:
    """One step of a ladder.

    Attributes:
        name: of the step.
        cluster: where it is served.
        closed, opened: the same requests, row by row, with links and with fixed arrivals.
        windows: by seed, from when until when arrivals are measured, in s.
    """

    name: str
    cluster: ClusterSpec
    closed: Tapes
    opened: Tapes
    windows: Mapping[int, tuple[float, float]]

    def offered(self, seed: int) -> float:
        """Calls/s an instance that the fixed arrivals bring while it is measured."""
        since, until = self.windows[seed]
        arrival = to_seconds(self.opened.by_seed[seed].requests["arrival"])
        count = np.count_nonzero((arrival >= since) & (arrival < until))
        return float(count / (until - since) / len(self.cluster.instances))


def generated_ladder(rates: Sequence[float], seconds: float, seeds: Sequence[int]) -> list[Load]:
    """Agents' sessions at rising rates.

    Args:
        rates: calls/s, all instances together.
        seconds: how long calls arrive in an episode, on average.
        seeds: of the episodes.
    """
    cluster = _cluster(GENERATED_PROFILE, GENERATED_INSTANCES, GENERATED_BLOCK)
    ladder = []
    for rate in rates:
        closed, opened = (
            Agentic(
                max(1, round(rate * seconds)),
                Poisson(rate),
                GENERATED_BLOCK,
                closed_loop=loop,
                nominal_ttft=NOMINAL_TTFT,
                nominal_tpot=NOMINAL_TPOT,
            )
            for loop in (True, False)
        )
        ladder.append(
            Load(
                f"{rate:g} calls/s",
                cluster,
                Tapes({seed: closed.tape(seed) for seed in seeds}),
                Tapes({seed: opened.tape(seed) for seed in seeds}),
                dict.fromkeys(seeds, (seconds / 4, 3 * seconds / 4)),
            )
        )
    return ladder


def choose_sessions(trace: Path, chosen: Path) -> int:
    """Copy the sessions that are to be played to the file `chosen`; returns how many.

    Raises:
        ValueError: there is none.
        OSError: a file cannot be opened.
    """
    lines: dict[str | int, list[str]] = {}
    unfit: set[str | int] = set()

    def parse(_: int, line: str) -> None:
        row = Row(line)
        session = row.name("session")
        lines.setdefault(session, []).append(line)
        if "meta" not in row and (
            row.whole("input_length", 1) > LONGEST_PROMPT
            or row.ticks("t", TICKS_PER_SECOND, "s") > LONGEST_SESSION * TICKS_PER_SECOND
            or "api_time" not in row
        ):
            unfit.add(session)

    for _ in parse_lines(trace, parse):
        pass
    fit = [session for session in lines if session not in unfit]
    if not fit:
        raise ValueError(f"{trace}: found no session that fits, of {len(lines)}")
    chosen.write_text(
        "".join(f"{line.rstrip()}\n" for session in fit for line in lines[session]),
        encoding="utf-8",
    )
    return len(fit)


def recorded_ladder(
    sessions: Path, instances: Sequence[int], seeds: Sequence[int], session_rate: float
) -> list[Load]:
    """Recorded sessions on ever fewer instances.

    Args:
        sessions: a file of `choose_sessions`.
        instances: how many, a step each.
        seeds: of the sessions' starts.
        session_rate: starts/s.
    """
    closed, opened = (
        Tapes(
            {
                seed: read_claude_code(
                    sessions, session_rate=session_rate, seed=seed, open_loop=loop
                )
                for seed in seeds
            }
        )
        for loop in (False, True)
    )
    windows = {}
    for seed, tape in opened.by_seed.items():
        _, first = np.unique(tape.requests["session"], return_index=True)
        last = float(to_seconds(tape.requests["arrival"][first].max()))
        windows[seed] = (last / 2, last)
    return [
        Load(
            f"{count} instances",
            _cluster(RECORDED_PROFILE, count, closed.block_size),
            closed,
            opened,
            windows,
        )
        for count in instances
    ]


def _cluster(name: str, count: int, block_size: int) -> ClusterSpec:
    return ClusterSpec((InstanceSpec(profile(name)),) * count, block_size, frontend_latency=0.01)
