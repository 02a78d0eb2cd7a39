"""How agent sessions go on, call by call: the compiled part of `agentic.py`.

A session is a record with its main agent's next call. `advance` plays sessions up to a time and
leaves them ready to go on, so that nothing is drawn that an episode does not see. What is left to
chance comes from buffers of draws, each in its own order, which Python refills.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER
from prefixgym.envs.jit import kernel
from prefixgym.envs.workload.generators.agent_draws import (
    CALLS,
    CHAINS,
    NEW,
    OUTPUT,
    RESET,
    SPAWN,
    SUB_CALLS,
    SUB_NEW,
    SUB_OUTPUT,
    SUB_RESET,
    SUB_SUMMARY,
    SUB_TASK,
    SUB_THINK,
    SUBS,
    SUMMARY,
    THINK,
    Draws,
)
from prefixgym.envs.workload.tape import NO_ROW

_TO_JOIN = -2
"""`then` of a sub-agent's last call until the main agent's next call is written."""

SESSION = np.dtype(
    [
        ("time", np.int64),  # ticks at which the next call of the main agent comes
        ("wait", np.int64),  # of it, ticks since the last end that it waits for
        ("prompt_tokens", np.int64),  # of the next call
        ("head_tokens", np.int64),  # of them, those that a reset leaves: tools, repository
        ("calls_left", np.int64),  # of the main agent, the next one included
        ("chain", np.int64),  # of the next call, see CALL
        ("last_call", np.int64),  # of the main agent, an index into the calls, or NO_ROW
        ("first_sub_call", np.int64),  # calls of the sub-agents that the next call waits for …
        ("end_sub_calls", np.int64),  # … end before this one
    ],
    align=True,
)
"""A session in the middle: all that it has not played depends on this and on what is drawn."""


class Rules(NamedTuple):
    """Constants of a workload.

    Attributes:
        max_prompt_tokens: a prompt that would pass this is reset.
        reset_probability: of a reset at a prompt of `max_prompt_tokens`; lower in proportion.
        spawn_probability: that a call starts sub-agents.
        sub_head_tokens: of a prompt, what all sub-agents share.
        most_sub_agents: greatest number of sub-agents that a call starts …
        most_sub_calls: … and of the calls that these make.
        ticks_per_call: nominal service time of a call is this …
        ticks_per_token: … and this for each output token.
    """

    max_prompt_tokens: int
    reset_probability: float
    spawn_probability: float
    sub_head_tokens: int
    most_sub_agents: int
    most_sub_calls: int
    ticks_per_call: int
    ticks_per_token: int


@kernel
def _take(values: NDArray[Any], used: NDArray[np.int64], place: int) -> Any:
    used[place] += 1
    return values[used[place] - 1]


@kernel
def lack_draws(
    rules: Rules, draws: Draws, used: NDArray[np.int64], calls: NDArray[np.void]
) -> bool:
    """Whether buffers or room may not suffice for a call and the sub-agents that it may start."""
    sub_calls = rules.most_sub_calls
    return (
        used[SPAWN] >= draws.spawn_chance.size
        or used[RESET] >= draws.reset_chance.size
        or used[THINK] >= draws.think_time.size
        or used[NEW] >= draws.new_tokens.size
        or used[OUTPUT] >= draws.output_tokens.size
        or used[SUMMARY] >= draws.summary_tokens.size
        or used[SUBS] >= draws.sub_agents.size
        or used[SUB_CALLS] + rules.most_sub_agents > draws.sub_agent_calls.size
        or used[SUB_TASK] + rules.most_sub_agents > draws.sub_agent_task_tokens.size
        or used[SUB_RESET] + sub_calls > draws.sub_agent_reset_chance.size
        or used[SUB_THINK] + sub_calls > draws.sub_agent_think_time.size
        or used[SUB_NEW] + sub_calls > draws.sub_agent_new_tokens.size
        or used[SUB_OUTPUT] + sub_calls > draws.sub_agent_output_tokens.size
        or used[SUB_SUMMARY] + sub_calls > draws.sub_agent_summary_tokens.size
        or used[CALLS] + 1 + sub_calls > calls.size
    )


@kernel
def next_prompt(grown: int, new: int, head: int, summary: int, chance: float, rules: Rules) -> int:
    """`grown` tokens, or fewer if the context is reset before: head + summary + new."""
    share = grown / rules.max_prompt_tokens
    if share > 1.0 or chance < rules.reset_probability * share:
        return min(grown, head + summary + new)
    return grown


@kernel
def _service(output: int, rules: Rules) -> int:
    """Nominal service time in ticks."""
    return rules.ticks_per_call + rules.ticks_per_token * output


@kernel
def _write(
    calls: NDArray[np.void],
    used: NDArray[np.int64],
    time: int,
    wait: int,
    session: int,
    chain: int,
    parent: int,
    prompt: int,
    output: int,
) -> int:
    """Append a call of a main agent; return its index."""
    index = used[CALLS]
    used[CALLS] += 1
    calls[index].time = time
    calls[index].wait = wait
    calls[index].session = session
    calls[index].chain = chain
    calls[index].parent = parent
    calls[index].then = NO_ROW
    calls[index].is_sub_agent = 0
    calls[index].prompt_tokens = prompt
    calls[index].output_tokens = output
    return index


@kernel
def _play_sub_agents(
    session: int,
    start: int,
    spawning: int,
    rules: Rules,
    draws: Draws,
    used: NDArray[np.int64],
    calls: NDArray[np.void],
) -> int:
    """Write all calls of the sub-agents that call `spawning` starts; return their last end."""
    last_end = start
    for _ in range(_take(draws.sub_agents, used, SUBS)):
        time = start
        wait = 0
        end = start
        index = spawning
        chain = used[CHAINS]
        used[CHAINS] += 1
        prompt = rules.sub_head_tokens + _take(draws.sub_agent_task_tokens, used, SUB_TASK)
        for _ in range(_take(draws.sub_agent_calls, used, SUB_CALLS)):
            output = _take(draws.sub_agent_output_tokens, used, SUB_OUTPUT)
            index = _write(calls, used, time, wait, session, chain, index, prompt, output)
            calls[index].is_sub_agent = 1
            # No episode is so long that the limit counts; it keeps sums within the clock's range.
            end = min(time + _service(output, rules), NEVER)
            wait = _take(draws.sub_agent_think_time, used, SUB_THINK)
            time = min(end + wait, NEVER)
            new = _take(draws.sub_agent_new_tokens, used, SUB_NEW)
            summary = _take(draws.sub_agent_summary_tokens, used, SUB_SUMMARY)
            chance = _take(draws.sub_agent_reset_chance, used, SUB_RESET)
            grown = prompt + output + new
            prompt = next_prompt(grown, new, rules.sub_head_tokens, summary, chance, rules)
            if prompt < grown:
                chain = used[CHAINS]
                used[CHAINS] += 1
        calls[index].then = _TO_JOIN
        last_end = max(last_end, end)
    return last_end


@kernel
def advance(
    sessions: NDArray[np.void],
    first_session: int,
    until: int,
    rules: Rules,
    draws: Draws,
    used: NDArray[np.int64],
    calls: NDArray[np.void],
) -> int:
    """Write all calls of main agents that come up to `until`, with what their sub-agents do.

    Returns the session at which draws or room ran out, to be called again with more; or the number
    of sessions.
    """
    for number in range(first_session, sessions.size):
        session = sessions[number]
        while session.calls_left > 0 and session.time <= until:
            if lack_draws(rules, draws, used, calls):
                return number
            output = _take(draws.output_tokens, used, OUTPUT)
            index = _write(
                calls,
                used,
                session.time,
                session.wait,
                number,
                session.chain,
                session.last_call,
                session.prompt_tokens,
                output,
            )
            # After an interval that began before time 0, the first sub-agent's end is the parent.
            for sub_call in range(session.first_sub_call, session.end_sub_calls):
                if calls[sub_call].then == _TO_JOIN:
                    if calls[index].parent == NO_ROW:
                        calls[index].parent = sub_call
                        calls[sub_call].then = NO_ROW
                    else:
                        calls[sub_call].then = index
            session.last_call = index
            session.calls_left -= 1
            if session.calls_left == 0:
                break
            end = min(session.time + _service(output, rules), NEVER)
            session.first_sub_call = used[CALLS]
            if _take(draws.spawn_chance, used, SPAWN) < rules.spawn_probability:
                end = _play_sub_agents(number, end, index, rules, draws, used, calls)
            session.end_sub_calls = used[CALLS]
            session.wait = _take(draws.think_time, used, THINK)
            session.time = end + session.wait
            new = _take(draws.new_tokens, used, NEW)
            summary = _take(draws.summary_tokens, used, SUMMARY)
            chance = _take(draws.reset_chance, used, RESET)
            grown = session.prompt_tokens + output + new
            session.prompt_tokens = next_prompt(
                grown, new, session.head_tokens, summary, chance, rules
            )
            if session.prompt_tokens < grown:
                session.chain = used[CHAINS]
                used[CHAINS] += 1
    return sessions.size


@kernel
def lead_in(
    sessions: NDArray[np.void],
    start: NDArray[np.int64],
    latest: int,
    first_session: int,
    number: int,
    rules: Rules,
    draws: Draws,
    used: NDArray[np.int64],
    calls: NDArray[np.void],
) -> int:
    """Play the sub-agents that the first of the sessions under way wait for at time 0.

    They start at `start` [≤ S] ticks, which gives the `time` of the main agent's next call; or,
    where that is NEVER, they have started so that this call comes at its `time`. Their calls after
    time 0 are written. `calls_left` = 0 marks the sessions that are not to be: whose next call
    comes before time 0, or whose start was looked for and is after `latest`. Session numbers begin
    at `number`.

    Returns the session at which draws or room ran out, or the size of `start`.
    """
    for s in range(first_session, start.size):
        if lack_draws(rules, draws, used, calls):
            return s
        session = sessions[s]
        first = used[CALLS]
        span = _play_sub_agents(number + s, 0, NO_ROW, rules, draws, used, calls)
        began = start[s]
        if began == NEVER:
            began = session.time - session.wait - span
            wanted = began <= latest
        else:
            session.time = began + min(span + session.wait, NEVER)
            wanted = session.time > 0
        if not wanted:
            session.calls_left = 0
            used[CALLS] = first
            continue
        session.first_sub_call = first
        kept = first
        seen = False  # whether the call before, of the same sub-agent, is kept
        for index in range(first, used[CALLS]):
            call = calls[index]
            seen = seen and call.parent != NO_ROW
            if call.time + began > 0:
                calls[kept] = call
                calls[kept].time = call.time + began
                calls[kept].parent = kept - 1 if seen else NO_ROW
                kept += 1
                seen = True
        used[CALLS] = kept
        session.end_sub_calls = kept
    return start.size


@kernel
def play_contexts(
    num_calls: NDArray[np.int64],
    prompt: NDArray[np.int64],
    head: NDArray[np.int64],
    output: NDArray[np.int64],
    new: NDArray[np.int64],
    summary: NDArray[np.int64],
    chance: NDArray[np.float64],
    rules: Rules,
    own_tokens: NDArray[np.int64],
    calls_left: NDArray[np.int64],
) -> None:
    """Sessions of `num_calls` [S] from a first `prompt` [S] on, without times and sub-agents.

    Writes for each follow-up the tokens beyond the head, and the calls left, it included. The other
    arrays have one draw for each follow-up.
    """
    row = 0
    for s in range(num_calls.size):
        tokens = prompt[s]
        for left in range(num_calls[s] - 1, 0, -1):
            grown = tokens + output[row] + new[row]
            tokens = next_prompt(grown, new[row], head[s], summary[row], chance[row], rules)
            own_tokens[row] = tokens - head[s]
            calls_left[row] = left
            row += 1
