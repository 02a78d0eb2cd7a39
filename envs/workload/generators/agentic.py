"""Agents that call tools: a session is a loop of calls, each of which adds to one long prompt.

A main agent's call k + 1 has prompt_{k+1} = prompt_k + output_k + new_{k+1} tokens, new being a
tool's result or a person's words, and comes a think time after call k has ended: a closed loop. The
prompt starts with what others share: the tools and the system prompt (all sessions), a repository's
description and rules (sessions on that repository); then come the session's own files. Before a
call the context may be reset (compacted): the prompt falls back to the shared head, a summary and
what is new. That happens with a probability in proportion to the prompt's length, and always where
the prompt would pass `max_prompt_tokens`. A call may start sub-agents, which work in parallel, each
a loop of its own behind a head that all sub-agents share; the main agent's next call comes a think
time after the last of them is done. Blocks that decoding fills are the next call's prefix, and have
its ids. (After the coding agents of `traces.md` §3 and §5: Claude Code, AIPerf's agentic-code.)

The rate. Sessions start at λ = rate / E[calls of a session, sub-agents' included], whatever the
cluster does. So `rate` is what a cluster that keeps up serves per second in the long run; a slower
one lets more sessions pile up, of which each asks less often. Hence a ladder of rates means the
same for a closed loop as for an open one: above capacity, waiting grows without end.

The start. As in `chat.py`, an episode is cut out of a steady state, here of a cluster that serves
every call in the nominal time `nominal_ttft` + `nominal_tpot` · output tokens: sessions are under
way at time 0, with the contexts they have by then and caches cold, and the rate holds from the
first second on; if calls take longer than nominal, it falls short until sessions have piled up.
A session under way is seen first at a follow-up of its main agent that comes at t and whose
interval since the call before (service, sub-agents, think time) is longer than t; any of its
follow-ups is equally likely to be the one. Exact, for sessions that start as a Poisson process: how
many sessions are under way, how many calls they have left, their intervals, and their sub-agents at
work. Near enough: their contexts are picked from a fixed sample of about 200,000 calls; of the one
sub-agent in a thousand that works longest some are left out. An episode sees few of the think times
that are longer than itself; so its median is below that of `think_time`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER, to_seconds, to_ticks
from prefixgym.envs.workload.arrivals import Arrivals, check_reach
from prefixgym.envs.workload.chains import ceil_div, chained_tape, exclusive_sum, renumbered
from prefixgym.envs.workload.distributions import Empirical, Geometric, LogNormal, Mixture
from prefixgym.envs.workload.durations import duration, sample_ticks
from prefixgym.envs.workload.fields import check_flag, check_whole
from prefixgym.envs.workload.generators.agent_behaviour import AgentBehaviour
from prefixgym.envs.workload.generators.agent_draws import CHAINS, Draws
from prefixgym.envs.workload.generators.agent_sessions import SESSION, advance, lead_in
from prefixgym.envs.workload.links import link_rows
from prefixgym.envs.workload.popularity import choose, zipf_weights
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.tape import NO_ROW, Tape

# As measured in v8: calls, what a call adds to the prompt and the output before it, outputs,
# prompts after a reset, and first prompts, of which a quarter are old conversations resumed (there
# up to 700,000 tokens). Think times lie between those of v6 (median 1 s) and v8 (10 s).
_CLAUDE_CODE: dict[str, Any] = {
    "calls": Empirical((1, 7, 18, 45, 94, 155, 340, 561), (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1)),
    "think_time": Mixture((0.7, 0.3), (LogNormal(4, 1), LogNormal(75, 1.3))),
    "system_tokens": 0,
    "num_repositories": 11,
    "zipf": 1.5,
    "repository_tokens": 15000,
    "file_tokens": Empirical(
        (0, 500, 3500, 9500, 89_000, 100_000, 112_000), (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)
    ),
    "new_tokens": Empirical(
        (1, 1, 46, 275, 952, 2827, 5509, 16_043, 40_000),
        (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1),
    ),
    "output_tokens": Empirical(
        (1, 105, 137, 216, 426, 898, 1554, 3686, 8000),
        (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1),
    ),
    "reset_probability": 0.002,
    "summary_tokens": LogNormal(18000, 1, high=90_000),
    "max_prompt_tokens": 167_000,
    "spawn_probability": 0.0008,
    "sub_agents": Geometric(mean=1.6, high=4),
    "sub_agent_calls": (5, 17),
    "sub_agent_think_time": LogNormal(4, 0.9),
    "sub_agent_system_tokens": 9000,
    "sub_agent_task_tokens": LogNormal(1300, 0.7, high=10_000),
    "sub_agent_new_tokens": LogNormal(2259, 1.4, high=60_000),
}

_AIPERF: dict[str, Any] = {
    "calls": _CLAUDE_CODE["calls"],
    "think_time": Mixture((0.7, 0.3), (LogNormal(2, 0.67), LogNormal(25, 0.97))),
    "system_tokens": 32_000,
    "num_repositories": 50,
    "zipf": 1.2,
    "repository_tokens": Mixture((0.7, 0.3), (20_000, 0)),
    "file_tokens": LogNormal(5000, 1.48, high=30_000),
    "new_tokens": LogNormal(4500, 0.75, high=10_000),
    "output_tokens": LogNormal(600, 1.0, high=10_000),
    "reset_probability": 0.01,
    "summary_tokens": LogNormal(5000, 1.0, high=30_000),
    "max_prompt_tokens": 167_000,
    "spawn_probability": 0.0,
}


@dataclass(frozen=True)
class Agentic(AgentBehaviour):
    """Sessions of tool-calling agents in steady state; the first `num_requests` calls after time 0.

    What the agents do are the fields of `AgentBehaviour`, given by name.

    Attributes:
        num_requests: rows of a tape.
        arrivals: the process by which sessions start. Its rate is that of calls per second, see
            the file's head.
        block_size: tokens in a block.
        closed_loop: True: a call comes one think time after the end of those it waits for, through
            the tape's links. False: the same calls with fixed arrivals, as if served in nominal
            time, whether those before have finished or not: what a replay of a recording does.
    """

    num_requests: int
    arrivals: Arrivals
    block_size: int
    closed_loop: bool = True

    def __post_init__(self) -> None:
        check_whole("num_requests", self.num_requests, 1, 2**31 - 1)
        check_whole("block_size", self.block_size, 1, 2**31 - 1)
        check_flag("closed_loop", self.closed_loop)
        super().__post_init__()

    @classmethod
    def claude_code(
        cls, num_requests: int, arrivals: Arrivals, block_size: int, **changes: Any
    ) -> "Agentic":
        """Sessions of Claude Code, after its traces v6 and v8 of kv-cache-tester (WEKA).

        Calls, outputs, growth, resets and sub-agents as measured in v8's 710 sessions; the cap of
        v6's 200,000-token models; the eleven tool sets with their popularity take the part of
        repositories (`traces.md` §3.2, §3.5, §3.6). `changes` replace fields.
        """
        return cls(num_requests, arrivals, block_size, **(_CLAUDE_CODE | changes))

    @classmethod
    def aiperf(
        cls, num_requests: int, arrivals: Arrivals, block_size: int, **changes: Any
    ) -> "Agentic":
        """AIPerf's agentic-code generator with its shipped figures (`traces.md` §5).

        Of its layers, L1 is `system_tokens`, L1.5 `repository_tokens` (its schema's 20,000 tokens
        in 50 groups, there for 70 % of the sessions), L2 `file_tokens`. Its sessions have no
        length, only resets: here that is the number of calls of Claude Code's. No sub-agents.
        """
        return cls(num_requests, arrivals, block_size, **(_AIPERF | changes))

    @property
    def num_sessions(self) -> int:
        """Sessions are numbered without gaps, so there are at most as many as requests."""
        return self.num_requests

    @property
    def max_blocks(self) -> int:
        """Ids of the longest possible prompt with its output."""
        longest = self.max_prompt_tokens + self.lengths["output_tokens"].high
        return max(-(-self.max_prompt_tokens // self.block_size), longest // self.block_size)

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names."""
        heads, *sources = streams(seed, 5 + len(Draws._fields))
        (system_tokens,) = self.lengths["system_tokens"].sample(heads, 1)
        (sub_head_tokens,) = self.lengths["sub_agent_system_tokens"].sample(heads, 1)
        repository_tokens = self.lengths["repository_tokens"].sample(heads, self.num_repositories)
        head_tokens = system_tokens + repository_tokens
        calls, repository = self._steady_state(head_tokens, int(sub_head_tokens), sources)

        # Sessions, and chains of blocks of their own, that the episode has, numbered without gaps.
        session, sessions = renumbered(calls["session"])
        chain, chains = renumbered(calls["chain"])
        repository = repository[sessions][session]

        # Ids: the system prompt's blocks, the repositories', the sub-agents', then the chains'.
        # The block in which a head ends belongs to what follows.
        prompt, output = calls["prompt_tokens"], calls["output_tokens"]
        is_sub_agent = calls["is_sub_agent"] == 1
        system_blocks = system_tokens // self.block_size
        repository_blocks = head_tokens // self.block_size - system_blocks
        sub_head_start = system_blocks + repository_blocks.sum()
        sub_head_blocks = sub_head_tokens // self.block_size
        repository_start = system_blocks + exclusive_sum(repository_blocks)
        first_blocks = np.where(is_sub_agent, sub_head_blocks, system_blocks)
        second_blocks = np.where(is_sub_agent, 0, repository_blocks[repository])
        cacheable_blocks = (prompt + output) // self.block_size
        # Rows are in order of time and a chain only grows: what stays is each chain's last row.
        chain_blocks = np.empty(len(chains), np.int64)
        chain_blocks[chain] = np.maximum(ceil_div(prompt, self.block_size), cacheable_blocks)
        chain_blocks[chain] -= first_blocks + second_blocks
        chain_start = sub_head_start + sub_head_blocks + exclusive_sum(chain_blocks)

        tape = chained_tape(
            block_size=self.block_size,
            arrival=calls["time"],
            prompt_tokens=prompt,
            output_tokens=output,
            cacheable_blocks=cacheable_blocks,
            heads=[
                (np.where(is_sub_agent, sub_head_start, 0), first_blocks),
                (repository_start[repository], second_blocks),
            ],
            tail_start=chain_start[chain],
        )
        tape.requests["session"] = session
        if self.closed_loop:
            waits = calls["parent"] != NO_ROW
            tape.requests["arrival"][waits] = self._waits(calls)[waits]
            tape.requests["parent"] = calls["parent"]
            tape.requests["then"] = calls["then"]
            link_rows(tape.requests, np.arange(len(calls)))
        return tape

    def _waits(self, calls: NDArray[np.void]) -> NDArray[np.int64]:
        """Ticks from the last end that a call waits for, among the calls of the tape, to the call.

        Its think time, but for what waits longest for a sub-agent's call from before time 0.
        """
        ttft, tpot = int(to_ticks(self.nominal_ttft)), int(to_ticks(self.nominal_tpot))
        end = calls["time"] + ttft + tpot * calls["output_tokens"]
        last = calls["time"] - calls["wait"]
        seen = np.zeros(len(calls), np.int64)
        follows, joins = calls["parent"] != NO_ROW, calls["then"] != NO_ROW
        np.maximum.at(seen, np.flatnonzero(follows), end[calls["parent"][follows]])
        np.maximum.at(seen, calls["then"][joins], end[joins])
        return calls["wait"] + np.maximum(last - seen, 0)

    def _steady_state(
        self,
        head_tokens: NDArray[np.int64],
        sub_head_tokens: int,
        sources: list[np.random.Generator],
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """The first `num_requests` calls after time 0, sorted, and all sessions' repositories.

        Sessions are drawn and played up to a horizon; before it nothing is missing.
        """
        starts, carried, firsts, repositories, *buffers = sources
        rules = self.rules(sub_head_tokens)
        supply = self.supply(buffers)
        popularity = zipf_weights(self.num_repositories, self.zipf)
        sessions = np.empty(0, SESSION)
        repository = np.empty(0, np.int64)
        horizon = seen = 0
        while seen < self.num_requests:
            # Somewhat more than is missing, so that a second round is rare.
            wanted = int(1.1 * (self.num_requests - seen)) + 32
            since, horizon = horizon, horizon + self._span(wanted)
            under_way, start = self._under_way(carried, since, horizon)
            new = np.concatenate([under_way, self._started(starts, firsts, since, horizon)])
            group = choose(popularity, repositories, len(new))
            new["head_tokens"] = head_tokens[group]
            new["prompt_tokens"] += head_tokens[group]
            np.minimum(new["prompt_tokens"], self.max_prompt_tokens, out=new["prompt_tokens"])
            new["chain"] = supply.used[CHAINS] + np.arange(len(new))
            supply.used[CHAINS] += len(new)

            supply.refill(wanted)
            number, leads, latest = len(sessions), len(start), -self.sub_agents_reach
            at = 0
            while (at := lead_in(new, start, latest, at, number, rules, *supply.state)) < leads:
                supply.refill(wanted // 4)
            sessions = np.concatenate([sessions, new])
            repository = np.concatenate([repository, group])
            at = 0
            while (at := advance(sessions, at, horizon, rules, *supply.state)) < len(sessions):
                supply.refill(wanted // 4)
            seen = int(np.count_nonzero(supply.calls["time"] <= horizon))

        order = np.argsort(supply.calls["time"], kind="stable")[: self.num_requests]
        calls = supply.calls[order]
        row = np.full(len(supply.calls) + 1, NO_ROW)  # the last one answers NO_ROW
        row[order] = np.arange(self.num_requests)
        for link in ("parent", "then"):
            calls[link] = row[np.maximum(calls[link], NO_ROW)]
        return calls, repository

    def _under_way(
        self, generator: np.random.Generator, since: int, horizon: int
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """Sessions from before time 0 that are first seen between these ticks (see file's head).

        `prompt_tokens` are without the head. First come those whose sub-agents may be at work at
        time 0; for these, the ticks of their start, or NEVER, as `lead_in` takes them.
        """
        intervals = self.arrivals.rate / self.mean_calls * (self.mean_main_calls - 1.0)
        # Intervals by their end; those with sub-agents that have started lately are not among them.
        end = since + self._points(generator, intervals, horizon - since)
        service, wait = self._intervals(generator, len(end))
        spawned = generator.random(len(end)) < self.spawn_probability
        plain = ~spawned & (service + wait > end)
        # These by their start.
        first = -self.sub_agents_reach if since == 0 else since
        start = first + self._points(generator, intervals * self.spawn_probability, horizon - first)
        start_service, start_wait = self._intervals(generator, len(start))
        late = start < start_service  # the call that starts them comes before time 0

        wait = np.concatenate([start_wait[late], wait[spawned], wait[plain]])
        sessions = np.zeros(len(wait), SESSION)
        sessions["wait"] = wait
        sessions["time"][np.count_nonzero(late) :] = np.concatenate([end[spawned], end[plain]])
        sessions["last_call"] = NO_ROW
        own_tokens, calls_left = self.contexts
        if len(sessions) > 0:
            context = generator.integers(len(own_tokens), size=len(sessions))
            sessions["prompt_tokens"] = own_tokens[context]
            sessions["calls_left"] = calls_left[context]
        starts = np.concatenate([start[late], np.full(np.count_nonzero(spawned), NEVER)])
        return sessions, starts

    def _points(self, generator: np.random.Generator, rate: float, span: int) -> NDArray[np.int64]:
        """Ticks of a Poisson process between 0 and `span`."""
        count = generator.poisson(max(0.0, rate * float(to_seconds(span))))
        return (generator.random(count) * span).astype(np.int64)

    def _intervals(
        self, generator: np.random.Generator, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Nominal service and think times in ticks, from one call of a main agent to the next."""
        output = self.lengths["output_tokens"].sample(generator, count)
        service = to_ticks(self.nominal_ttft + self.nominal_tpot * output)
        return service, sample_ticks(duration("think_time", self.think_time), generator, count)

    def _started(
        self,
        starts: np.random.Generator,
        generator: np.random.Generator,
        since: int,
        horizon: int,
    ) -> NDArray[np.void]:
        """Sessions that start between these ticks; `prompt_tokens` are without the head."""
        arrivals = self.arrivals.at_rate(self.arrivals.rate / self.mean_calls)
        count = int(arrivals.rate * float(to_seconds(horizon - since))) + 8
        time = arrivals.ticks(starts, count, since)
        while time[-1] <= horizon:
            time = np.concatenate([time, arrivals.ticks(starts, count, int(time[-1]))])
        time = time[time <= horizon]
        sessions = np.zeros(len(time), SESSION)
        sessions["time"] = time
        sessions["last_call"] = NO_ROW
        sessions["calls_left"] = self.lengths["calls"].sample(generator, len(time))
        for part in ("file_tokens", "new_tokens"):
            sessions["prompt_tokens"] += self.lengths[part].sample(generator, len(time))
        return sessions

    def _span(self, requests: int) -> int:
        """Ticks in which so many requests come on average."""
        seconds = requests / self.arrivals.rate
        check_reach(seconds, self.arrivals.rate, requests)
        return int(to_ticks(seconds))
