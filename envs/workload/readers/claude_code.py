"""Reader of Claude Code sessions (WEKA's corpora): agents that call tools and start sub-agents.

JSONL, one call a line (`traces.md` §2): `session`, `agent` ("main", or a sub-agent's name), `t` in
seconds from the session's start, `input_length` and `output_length` in tokens, `hash_runs`, the ids
of the prompt's full 64-token blocks as [start, count], `api_time` seconds that the call took and
`think_time` seconds between the end of the agent's call before and this one (either may be
missing). A row with `meta` closes a session and tells its `spawns`: each sub-agent's `marker`, `t`
and `duration_ms`. Other keys are ignored.

A spawn's `t`, from which the sub-agent's calls count, is when its result came back: `t` minus the
duration is 0.1 to 1.1 s after the end of a call of the main agent for all 57 sub-agents of the
published corpus that have a duration and a main call after them, and that main call comes after
their last. So a sub-agent is moved back by its duration. It follows the last main call that had
ended by then. If the next main call was not recorded before the sub-agent's end, that call waits
for it; otherwise the sub-agent ran in the background and none does. Stamps of main calls are whole
seconds, so ends are compared to within one. A sub-agent without a duration starts at its `t`.
"""

from dataclasses import dataclass, field
from pathlib import Path

from prefixgym.envs.clock import TICKS_PER_MS, TICKS_PER_SECOND
from prefixgym.envs.workload.fields import check_number
from prefixgym.envs.workload.readers.blocks import BLOCKS
from prefixgym.envs.workload.readers.calls import (
    Call,
    check_file_block_size,
    session_starts,
    to_tape,
)
from prefixgym.envs.workload.readers.rows import Row, parse_lines, shown, to_whole_ticks
from prefixgym.envs.workload.tape import Tape

_BLOCKS = BLOCKS["claude_code"]
_MAIN = "main"
_TOLERANCE = TICKS_PER_SECOND


@dataclass(slots=True)
class _Agent:
    """The calls of one agent, as indices, and what they took, in ticks."""

    calls: list[int] = field(default_factory=list)
    service: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Session:
    """One session: its agents by name, and the durations of sub-agents, in ticks."""

    agents: dict[str | int, _Agent] = field(default_factory=dict)
    durations: dict[str | int, int] = field(default_factory=dict)


def read_claude_code(
    path: str | Path,
    *,
    trace_block_size: int | None = None,
    block_size: int | None = None,
    session_rate: float | None = None,
    seed: int = 0,
    open_loop: bool = False,
    max_think: float | None = None,
) -> Tape:
    """Read Claude Code sessions as a tape.

    Sessions have no absolute times, so when they start is for the caller to say. A missing
    `think_time` is what the stamps leave, an output of 0 tokens counts as one. Rows are in the
    order of the recorded times.

    Args:
        path: a .jsonl file, or .jsonl.gz.
        trace_block_size: tokens in a block of the file; None: 64.
        block_size: tokens in a block of the tape, a divisor of the file's; None: the file's. Full
            finer blocks in the unnamed end of a prompt, of less than a block of the file, get ids
            of their own.
        session_rate: sessions start as a Poisson process of so many a second, drawn from `seed`;
            None: all at 0.
        seed: names the starts, ≥ 0.
        open_loop: all calls arrive at their recorded times after the start of their session,
            whether the one before has ended or not.
        max_think: no think time is longer, in seconds; None: as recorded, which may be hours. Does
            not change the recorded times of an open loop.

    Raises:
        ValueError: names file, line and key of the first malformed row, what was found and what is
            allowed; or the argument that does not fit.
        OSError: the file cannot be opened.
    """
    size = check_file_block_size(trace_block_size, _BLOCKS)
    if max_think is not None:
        check_number("max_think", max_think, 0)
    calls: list[Call] = []
    sessions: dict[str | int, _Session] = {}

    def parse(number: int, line: str) -> None:
        row = Row(line)
        session = sessions.setdefault(row.name("session"), _Session())
        if "meta" in row:
            session.durations.update(_durations(row))
            return
        agent = session.agents.setdefault(row.name("agent"), _Agent())
        call = Call(
            number,
            row.ticks("t", TICKS_PER_SECOND, "s"),
            row.whole("input_length", 1),
            max(1, row.whole("output_length", 0)),
            row.runs("hash_runs"),
        )
        _BLOCKS.check(call.prompt_tokens, sum(count for _, count in call.runs), size)
        service = row.ticks("api_time", TICKS_PER_SECOND, "s") if "api_time" in row else 0
        if agent.calls:
            call.parent = agent.calls[-1]
            before = calls[call.parent]
            if call.time < before.time:
                raise ValueError(
                    f"t: found {shown(row['t'])}, earlier than that of the agent's call before, on "
                    f"line {before.line}"
                )
            call.think = max(0, call.time - before.time - agent.service[-1])
        if "think_time" in row:
            recorded = row.ticks("think_time", TICKS_PER_SECOND, "s")
            # After a call without `api_time` it counts from an earlier call, by up to an hour.
            unknown_end = bool(agent.calls) and agent.service[-1] == 0
            call.think = min(recorded, call.think) if unknown_end else recorded
        agent.calls.append(len(calls))
        agent.service.append(service)
        calls.append(call)

    for _ in parse_lines(Path(path), parse):
        pass
    starts = session_starts(len(sessions), session_rate, seed).tolist()
    for number, (start, session) in enumerate(zip(starts, sessions.values(), strict=True)):
        _link(calls, session)
        for agent in session.agents.values():
            for index in agent.calls:
                calls[index].time += start
                calls[index].session = number
    if max_think is not None:
        for call in calls:
            call.think = min(call.think, round(max_think * TICKS_PER_SECOND))
    return to_tape(Path(path), calls, _BLOCKS, size, block_size, open_loop=open_loop)


def _durations(row: Row) -> dict[str | int, int]:
    """The sub-agents' durations in ticks, where a session's last row tells them."""
    spawns = row["spawns"]
    if not isinstance(spawns, list):
        raise ValueError(f"spawns: found {shown(spawns)}, must be a list")
    found: dict[str | int, int] = {}
    for place, spawn in enumerate(spawns):
        if not isinstance(spawn, dict):
            raise ValueError(f"spawns[{place}]: found {shown(spawn)}, must be an object")
        marker, duration = spawn.get("marker"), spawn.get("duration_ms")
        if not isinstance(marker, str):
            raise ValueError(f"spawns[{place}].marker: found {shown(marker)}, must be a string")
        if duration is not None:
            key = f"spawns[{place}].duration_ms"
            found[marker] = to_whole_ticks(key, duration, TICKS_PER_MS, "ms")
    return found


def _link(calls: list[Call], session: _Session) -> None:
    """Hang a session's sub-agents on its main agent, and let this wait for them."""
    main = session.agents.get(_MAIN, _Agent())
    end = [calls[i].time + took for i, took in zip(main.calls, main.service, strict=True)]
    ends: dict[int, list[int]] = {}  # of the sub-agents that a main call waits for
    for name, agent in session.agents.items():
        if name == _MAIN:
            continue
        for index in agent.calls:
            calls[index].time = max(0, calls[index].time - session.durations.get(name, 0))
        first, last = calls[agent.calls[0]], calls[agent.calls[-1]]
        over = last.time + agent.service[-1]
        ended = [k for k in range(len(end)) if end[k] <= first.time + _TOLERANCE]
        if not ended:
            continue
        spawner = calls[main.calls[ended[-1]]]
        first.parent = main.calls[ended[-1]]
        first.think = max(0, first.time - end[ended[-1]])
        _keep_order(calls, agent.calls, spawner.time)
        if ended[-1] + 1 < len(main.calls):
            following = main.calls[ended[-1] + 1]
            if calls[following].time >= over - _TOLERANCE:
                last.then = following
                ends.setdefault(following, []).append(over)
                calls[following].time = max(calls[following].time, last.time + 1)
    for place, index in enumerate(main.calls):
        if index in ends:
            # The recorded think time counts from the end of the main call before.
            resumed = end[place - 1] + calls[index].think
            calls[index].think = max(0, resumed - max(end[place - 1], *ends[index]))
    _keep_order(calls, main.calls, 0)


def _keep_order(calls: list[Call], chain: list[int], least: int) -> None:
    """No call of a chain is earlier than the one before, nor than `least`."""
    for index in chain:
        least = calls[index].time = max(calls[index].time, least)
