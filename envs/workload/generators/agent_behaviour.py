"""What agents do, apart from how many there are: the parameters of `agentic.py`'s sessions."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER, to_seconds, to_ticks
from prefixgym.envs.workload.distributions import Empirical, Geometric, LogNormal, Mixture
from prefixgym.envs.workload.durations import Duration, duration, sample_ticks
from prefixgym.envs.workload.fields import check_number, check_probability, check_whole
from prefixgym.envs.workload.generators.agent_draws import Draws, Supply
from prefixgym.envs.workload.generators.agent_sessions import Rules, play_contexts
from prefixgym.envs.workload.lengths import MAX_LENGTH, Distribution, Length, distribution, mean
from prefixgym.envs.workload.streams import streams

_CONTEXT_SAMPLE = 200_000

# Least values of the fields that are lengths.
_LENGTHS = {
    "calls": 1,
    "system_tokens": 0,
    "repository_tokens": 0,
    "file_tokens": 0,
    "new_tokens": 1,
    "output_tokens": 1,
    "summary_tokens": 0,
    "sub_agents": 1,
    "sub_agent_calls": 1,
    "sub_agent_system_tokens": 0,
    "sub_agent_task_tokens": 1,
    "sub_agent_new_tokens": 1,
}

# Defaults: the shape of Claude Code's sessions at about a fifth of their length, with more
# sub-agents than in the trace of `traces.md` §3, where 1.4 % of the calls are theirs.
_CALLS = LogNormal(median=20, sigma=0.8, high=200)
_THINK_TIME = Mixture((0.7, 0.3), (LogNormal(4, 1), LogNormal(40, 1)))
_FILE_TOKENS = LogNormal(median=1500, sigma=1, high=8000)
_NEW_TOKENS = Empirical(
    (1, 20, 80, 250, 700, 1400, 4000, 12000), (0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)
)
_OUTPUT_TOKENS = LogNormal(median=120, sigma=0.9, high=4000)
_SUMMARY_TOKENS = LogNormal(median=3000, sigma=0.6, high=8000)
_SUB_AGENTS = Geometric(mean=1.6, high=4)
_SUB_AGENT_THINK_TIME = LogNormal(median=4, sigma=0.8)
_SUB_AGENT_TASK_TOKENS = LogNormal(median=300, sigma=0.7, high=2000)
_SUB_AGENT_NEW_TOKENS = LogNormal(median=450, sigma=1.2, high=8000)


@dataclass(frozen=True, kw_only=True)
class AgentBehaviour:
    """A session's main agent and the sub-agents that it starts.

    The defaults are coding agents with contexts up to 32,768 tokens, small enough to learn on.

    Attributes:
        calls: calls of a session's main agent.
        think_time: seconds from the end that a main agent's call waits for until it comes: a
            tool runs, or a person reads and types.
        system_tokens: tools and system prompt that all main agents share; 0 means there are none.
        num_repositories: groups of sessions that share what follows next in their prompts.
        zipf: exponent of the repositories' popularity; 0 is uniform.
        repository_tokens: length of a repository's part; 0 means there is none.
        file_tokens: what only the session's own prompts begin with, after the shared head.
        new_tokens: what a call adds to what was said, a tool's result say.
        output_tokens: length of a call's output, a sub-agent's too.
        reset_probability: of a reset before a call whose prompt would have `max_prompt_tokens`,
            lower in proportion for a shorter one.
        summary_tokens: what a reset puts in place of the context.
        max_prompt_tokens: no prompt is longer.
        spawn_probability: that a main agent's call, unless its last, starts sub-agents.
        sub_agents: how many work in parallel then.
        sub_agent_calls: calls of a sub-agent.
        sub_agent_think_time: seconds from the end of a sub-agent's call to its next one. Its first
            call comes when the one that starts it has ended.
        sub_agent_system_tokens: tools and system prompt that all sub-agents share.
        sub_agent_task_tokens: what a sub-agent is told to do; its prompt's own part.
        sub_agent_new_tokens: what a sub-agent's call adds.
        nominal_ttft: seconds to the first token for which the start of an episode is in steady
            state, and with which open loops are laid out.
        nominal_tpot: the same for each output token, in seconds.
    """

    calls: Length = _CALLS
    think_time: Duration = _THINK_TIME
    system_tokens: Length = 4000
    num_repositories: int = 20
    zipf: float = 1.2
    repository_tokens: Length = 2000
    file_tokens: Length = _FILE_TOKENS
    new_tokens: Length = _NEW_TOKENS
    output_tokens: Length = _OUTPUT_TOKENS
    reset_probability: float = 0.01
    summary_tokens: Length = _SUMMARY_TOKENS
    max_prompt_tokens: int = 32768
    spawn_probability: float = 0.02
    sub_agents: Length = _SUB_AGENTS
    sub_agent_calls: Length = (4, 16)
    sub_agent_think_time: Duration = _SUB_AGENT_THINK_TIME
    sub_agent_system_tokens: Length = 2000
    sub_agent_task_tokens: Length = _SUB_AGENT_TASK_TOKENS
    sub_agent_new_tokens: Length = _SUB_AGENT_NEW_TOKENS
    nominal_ttft: float = 1.0
    nominal_tpot: float = 0.02

    def __post_init__(self) -> None:
        check_whole("num_repositories", self.num_repositories, 1, 2**31 - 1)
        check_number("zipf", self.zipf, 0)
        check_probability("reset_probability", self.reset_probability)
        check_probability("spawn_probability", self.spawn_probability)
        check_number("nominal_ttft", self.nominal_ttft, 0)
        check_number("nominal_tpot", self.nominal_tpot, 0)
        duration("think_time", self.think_time)
        duration("sub_agent_think_time", self.sub_agent_think_time)
        check_whole("max_prompt_tokens", self.max_prompt_tokens, 1, MAX_LENGTH)
        high = {name: self.lengths[name].high for name in _LENGTHS}
        first = (
            high["system_tokens"]
            + high["repository_tokens"]
            + max(high["file_tokens"], high["summary_tokens"])
            + high["new_tokens"]
        )
        first_of_sub_agent = high["sub_agent_system_tokens"] + max(
            high["sub_agent_task_tokens"], high["summary_tokens"] + high["sub_agent_new_tokens"]
        )
        if self.max_prompt_tokens < first:
            raise ValueError(
                f"max_prompt_tokens: found {self.max_prompt_tokens}, must be at least the longest "
                f"prompt at a start or after a reset, {first} (system_tokens + repository_tokens + "
                "the longer of file_tokens and summary_tokens + new_tokens)"
            )
        if self.max_prompt_tokens < first_of_sub_agent:
            raise ValueError(
                f"max_prompt_tokens: found {self.max_prompt_tokens}, must be at least a "
                f"sub-agent's longest prompt at its start or after a reset, {first_of_sub_agent} "
                "(sub_agent_system_tokens + the longer of sub_agent_task_tokens and "
                "summary_tokens + sub_agent_new_tokens)"
            )

    @functools.cached_property
    def lengths(self) -> dict[str, Distribution]:
        """The distributions of all fields that are lengths."""
        return {name: distribution(name, getattr(self, name), _LENGTHS[name]) for name in _LENGTHS}

    @functools.cached_property
    def mean_main_calls(self) -> float:
        """E[N], the mean number of a main agent's calls."""
        return mean(self.lengths["calls"])

    @functools.cached_property
    def mean_calls(self) -> float:
        """Mean number of calls of a session, those of its sub-agents included.

        E[N] + (E[N] − 1) · P(spawn) · E[sub-agents] · E[calls of one].
        """
        return self.mean_main_calls + (self.mean_main_calls - 1.0) * self._sub_calls_per_call

    @functools.cached_property
    def _sub_agents_per_call(self) -> float:
        return self.spawn_probability * mean(self.lengths["sub_agents"])

    @functools.cached_property
    def _sub_calls_per_call(self) -> float:
        return self._sub_agents_per_call * mean(self.lengths["sub_agent_calls"])

    def rules(self, sub_head_tokens: int) -> Rules:
        """The constants that kernels need, for a head of sub-agents of this length."""
        most_sub_agents = self.lengths["sub_agents"].high
        return Rules(
            max_prompt_tokens=self.max_prompt_tokens,
            reset_probability=float(self.reset_probability),
            spawn_probability=float(self.spawn_probability),
            sub_head_tokens=sub_head_tokens,
            most_sub_agents=most_sub_agents,
            most_sub_calls=most_sub_agents * self.lengths["sub_agent_calls"].high,
            ticks_per_call=int(to_ticks(self.nominal_ttft)),
            ticks_per_token=int(to_ticks(self.nominal_tpot)),
        )

    def supply(self, generators: list[np.random.Generator]) -> Supply:
        """Buffers for all that calls leave to chance, with a generator for each."""
        most_agents = self.lengths["sub_agents"].high
        most_calls = most_agents * self.lengths["sub_agent_calls"].high
        supply = Supply(self._sub_calls_per_call, most_calls)
        for field, generator in zip(Draws._fields, generators, strict=True):
            sampler: Callable[[int], NDArray[Any]]
            if field.endswith("_chance"):
                sampler = generator.random
            elif field.endswith("_time"):
                times = duration(field, getattr(self, field))
                sampler = functools.partial(sample_ticks, times, generator)
            else:
                # Sub-agents have their own draws of what is distributed as for main agents.
                name = field if field in _LENGTHS else field.removeprefix("sub_agent_")
                sampler = functools.partial(self.lengths[name].sample, generator)
            # Sub-agents that have been at work before an episode take as many draws as those in it.
            if field == "sub_agents":
                supply.add(sampler, 2.0 * self.spawn_probability, 1)
            elif field in ("sub_agent_calls", "sub_agent_task_tokens"):
                supply.add(sampler, 2.0 * self._sub_agents_per_call, most_agents)
            elif field.startswith("sub_agent_"):
                supply.add(sampler, 2.0 * self._sub_calls_per_call, most_calls)
            else:
                supply.add(sampler, 1.0, 1)
        return supply

    @functools.cached_property
    def sub_agents_reach(self) -> int:
        """Nominal ticks that 999 of 1,000 sub-agents stay below, after a fixed sample."""
        if self.spawn_probability == 0:
            return 0
        numbers, outputs, waits = streams(1, 3)
        calls = self.lengths["sub_agent_calls"].sample(numbers, 1000)
        first = np.cumsum(calls) - calls
        total = int(calls.sum())
        times = duration("sub_agent_think_time", self.sub_agent_think_time).sample(waits, total)
        times[first] = 0.0
        times += self.nominal_ttft
        times += self.nominal_tpot * self.lengths["output_tokens"].sample(outputs, total)
        longest = float(np.quantile(np.add.reduceat(times, first), 0.999))
        return int(to_ticks(np.minimum(longest, to_seconds(NEVER) / 4)))

    @functools.cached_property
    def contexts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of the follow-ups in a fixed sample of sessions, tokens beyond the head and calls left.

        Any follow-up of the sample stands for as many as any other, so one drawn uniformly is one
        of a session drawn in proportion to its follow-ups.
        """
        heads, numbers, *generators = streams(0, 7)
        count = max(1, int(_CONTEXT_SAMPLE / self.mean_main_calls))
        head = self.lengths["system_tokens"].sample(heads, count)
        head += self.lengths["repository_tokens"].sample(heads, count)
        prompt = head + self.lengths["file_tokens"].sample(heads, count)
        prompt += self.lengths["new_tokens"].sample(heads, count)
        num_calls = self.lengths["calls"].sample(numbers, count)
        follow_ups = int(num_calls.sum()) - count
        own_tokens, calls_left = np.empty(follow_ups, np.int64), np.empty(follow_ups, np.int64)
        play_contexts(
            num_calls,
            prompt,
            head,
            self.lengths["output_tokens"].sample(generators[0], follow_ups),
            self.lengths["new_tokens"].sample(generators[1], follow_ups),
            self.lengths["summary_tokens"].sample(generators[2], follow_ups),
            generators[3].random(follow_ups),
            self.rules(0),
            own_tokens,
            calls_left,
        )
        return own_tokens, calls_left
