"""Multi-turn chat: sessions whose every prompt repeats the conversation so far and adds to it.

Turn k + 1 of a session has prompt_{k+1} = prompt_k + output_k + user_{k+1} tokens, and its block
ids continue those of turn k. So the blocks that decoding fills have names already, and an engine
that keeps them serves the next turn from them.

An episode is cut out of a steady state: requests come at the stated rate from the first second on,
and many belong to sessions that began before it (caches are cold all the same). Nothing need be
played before time 0 for that. With N turns a session, sessions start at λ = rate / E[N] and
follow-ups come at λ (E[N] − 1), each with a gap behind it; a follow-up at time t is the first that
the episode sees of its session if its gap is longer than t. The sessions of such follow-ups have N
drawn in proportion to P(N) (N − 1), and each of a session's follow-ups is equally likely to be the
one. This is exact for sessions that start as a Poisson process. For other processes the sessions
from before time 0 are drawn so too, which is near enough: independent gaps scatter old sessions.
Where load varies with time, they come at its mean rate.
"""

import functools
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import NEVER, to_seconds
from prefixgym.envs.jit import kernel
from prefixgym.envs.workload.arrivals import Arrivals
from prefixgym.envs.workload.chains import ceil_div, exclusive_sum, renumbered, two_part_tape
from prefixgym.envs.workload.distributions import Geometric, LogNormal
from prefixgym.envs.workload.durations import Duration, duration, sample_ticks
from prefixgym.envs.workload.fields import check_flag, check_number, check_whole
from prefixgym.envs.workload.lengths import MAX_LENGTH, Distribution, Length, distribution
from prefixgym.envs.workload.links import link_rows
from prefixgym.envs.workload.popularity import choose, zipf_weights
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.tape import NO_ROW, Tape

_TURN = np.dtype(
    [
        ("arrival", np.int64),  # ticks, as if every turn came its gap after the one before
        ("session", np.int64),
        ("prompt_tokens", np.int64),
        ("output_tokens", np.int64),
    ]
)
_MEAN_TURNS_SAMPLE = 8192

# Defaults: a chat service whose users come back more often than those of Mooncake's trace (75 % of
# its sessions have one turn); answers as in that trace (`traces.md` §3.2, §3.6).
_TURNS = Geometric(mean=4, high=64)
_THINK_TIME = LogNormal(median=120, sigma=1)
_USER_TOKENS = LogNormal(median=100, sigma=1.2, high=8192)
_OUTPUT_TOKENS = LogNormal(median=250, sigma=0.9, high=2000)


class _Added(NamedTuple):
    """Distributions of what users add in a turn, by its place in the session."""

    opening: Distribution
    between: Distribution
    closing: Distribution
    lone: Distribution


@kernel
def _play_sessions(
    first: NDArray[np.int64],
    past: NDArray[np.int64],
    turns: NDArray[np.int64],
    system: NDArray[np.int64],
    gap: NDArray[np.int64],
    user: NDArray[np.int64],
    output: NDArray[np.int64],
    cap: int,
    played: NDArray[np.void],
) -> int:
    """Write the turns of each session after its `past` ones; return how many.

    A session ends at the first prompt above `cap`. `user` and `output` have one number for each
    turn, session by session, `gap` one for each turn that is not past.
    """
    written = 0
    draw = 0
    gap_draw = 0
    for s in range(first.size):
        arrival = first[s]
        context = system[s]
        for turn in range(turns[s]):
            prompt = context + user[draw + turn]
            if prompt > cap:
                break
            context = prompt + output[draw + turn]
            if turn >= past[s]:
                played[written].arrival = arrival
                played[written].session = s
                played[written].prompt_tokens = prompt
                played[written].output_tokens = output[draw + turn]
                written += 1
                arrival += gap[gap_draw + turn - past[s]]
                if arrival > NEVER:
                    break
        draw += turns[s]
        gap_draw += turns[s] - past[s]
    return written


@kernel
def _follow_up(requests: NDArray[np.void], last_row: NDArray[np.int64]) -> None:
    """Make each row a follow-up of its session's row before; arrivals become think times.

    `last_row` [sessions] is all NO_ROW.
    """
    for row in range(requests.size):
        requests[row].parent = last_row[requests[row].session]
        last_row[requests[row].session] = row
    for row in range(requests.size - 1, -1, -1):
        parent = requests[row].parent
        if parent != NO_ROW:
            requests[row].arrival -= requests[parent].arrival


@dataclass(frozen=True)
class MultiTurnChat:
    """Chat sessions in steady state; the first `num_requests` requests after time 0.

    Attributes:
        num_requests: rows of a tape.
        arrivals: the process by which sessions start. Its rate is that of requests per second,
            follow-ups included.
        block_size: tokens in a block.
        turns: requests of a session.
        think_time: gap before a follow-up, in seconds. Real chat has a median of about 120 s from
            turn to turn (`traces.md` §3.6); an episode sees little reuse unless it is several
            times longer than this.
        num_system_prompts: distinct system prompts, one drawn for each session.
        zipf: exponent of their popularity; 0 is uniform.
        system_tokens: length of a system prompt; 0 means there is none.
        user_tokens: what a user adds in a turn; a `Mixture` makes some of it pasted documents.
        opening_tokens: what a user adds in the first of several turns; None: as in the others. Real
            conversations often open with thousands of tokens and go on with a line.
        closing_tokens: what a user adds in the last of several turns; None: as in the others. In
            Mooncake's trace nine in ten conversations end with a document once one is pasted.
        lone_tokens: what a user writes who asks only once; None: as `opening_tokens`.
        output_tokens: length of an answer.
        max_prompt_tokens: a session ends before its prompt would pass this.
        closed_loop: False: each turn comes one gap after the arrival of the one before, whether
            that has finished or not. True: the same requests, but a follow-up comes one gap after
            the end of the one before, through the tape's links; the rate then falls short of
            `arrivals.rate` in the first seconds, by the answers under way.
    """

    num_requests: int
    arrivals: Arrivals
    block_size: int
    turns: Length = _TURNS
    think_time: Duration = _THINK_TIME
    num_system_prompts: int = 1
    zipf: float = 0.0
    system_tokens: Length = 1000
    user_tokens: Length = _USER_TOKENS
    opening_tokens: Length | None = None
    closing_tokens: Length | None = None
    lone_tokens: Length | None = None
    output_tokens: Length = _OUTPUT_TOKENS
    max_prompt_tokens: int = 32768
    closed_loop: bool = False

    def __post_init__(self) -> None:
        check_whole("num_requests", self.num_requests, 1, 2**31 - 1)
        check_whole("block_size", self.block_size, 1, 2**31 - 1)
        check_whole("num_system_prompts", self.num_system_prompts, 1, 2**31 - 1)
        duration("think_time", self.think_time)
        check_number("zipf", self.zipf, 0)
        check_flag("closed_loop", self.closed_loop)
        distribution("turns", self.turns)
        distribution("output_tokens", self.output_tokens)
        system = distribution("system_tokens", self.system_tokens, least=0)
        longest = system.high + max(self._added.opening.high, self._added.lone.high)
        check_whole("max_prompt_tokens", self.max_prompt_tokens, 1, MAX_LENGTH)
        if self.max_prompt_tokens < longest:
            keys = [key for key in ("opening_tokens", "lone_tokens") if getattr(self, key)]
            raise ValueError(
                f"max_prompt_tokens: found {self.max_prompt_tokens}, must be at least the longest "
                f"first prompt, {longest} (system_tokens + {' or '.join(keys) or 'user_tokens'})"
            )

    @property
    def _added(self) -> _Added:
        """What users add, by the place of the turn in its session."""
        user = distribution("user_tokens", self.user_tokens)
        opening = user
        if self.opening_tokens is not None:
            opening = distribution("opening_tokens", self.opening_tokens)
        return _Added(
            opening=opening,
            between=user,
            closing=user
            if self.closing_tokens is None
            else distribution("closing_tokens", self.closing_tokens),
            lone=opening
            if self.lone_tokens is None
            else distribution("lone_tokens", self.lone_tokens),
        )

    @property
    def num_sessions(self) -> int:
        """Sessions are numbered as they appear, so there are at most as many as requests."""
        return self.num_requests

    @property
    def max_blocks(self) -> int:
        """Ids of the longest possible prompt with its answer."""
        output = distribution("output_tokens", self.output_tokens)
        prompt_blocks = -(-self.max_prompt_tokens // self.block_size)
        return max(prompt_blocks, (self.max_prompt_tokens + output.high) // self.block_size)

    @functools.cached_property
    def mean_turns(self) -> float:
        """E[N], the mean number of turns of a session once `max_prompt_tokens` has ended it.

        E[N] = Σ_k P(turns ≥ k) · P(prompt_k ≤ max_prompt_tokens | turns ≥ k). The second factor
        comes from a fixed sample of 8,192 conversations, the same for every seed of the tape; what
        their turn k adds is that of a last turn with probability P(turns = k | turns ≥ k).
        """
        turns = distribution("turns", self.turns)
        output = distribution("output_tokens", self.output_tokens)
        added = self._added
        generator, closings = streams(0, 2)
        reached = np.ones(turns.high + 1)  # P(turns ≥ k) for k = 1 … high + 1
        reached[turns.low :] = 1.0 - np.cumsum(turns.probabilities())
        context = distribution("system_tokens", self.system_tokens, least=0).sample(
            generator, _MEAN_TURNS_SAMPLE
        )
        mean = 0.0
        for k, (this_many, more) in enumerate(itertools.pairwise(reached)):
            last = added.lone if k == 0 else added.closing
            not_last = added.opening if k == 0 else added.between
            prompt = context + not_last.sample(generator, _MEAN_TURNS_SAMPLE)
            fits = fits_last = float(np.mean(prompt <= self.max_prompt_tokens))
            if last is not not_last:
                end = context + last.sample(closings, _MEAN_TURNS_SAMPLE)
                fits_last = float(np.mean(end <= self.max_prompt_tokens))
            mean += float((this_many - more) * fits_last + more * fits)
            if fits == fits_last == 0.0:
                break
            context = prompt + output.sample(generator, _MEAN_TURNS_SAMPLE)
        return mean

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names."""
        *sources, prompts, openings, closings, lone = streams(seed, 11)
        system = distribution("system_tokens", self.system_tokens, least=0)
        system_tokens = system.sample(prompts, self.num_system_prompts)
        turns, prompt_of = self._steady_state(system_tokens, [*sources, openings, closings, lone])

        # Sessions that the episode sees, numbered without gaps.
        session, seen = renumbered(turns["session"])
        prompt_of = prompt_of[seen]

        # Ids: the system prompts' blocks one after another, then the sessions' likewise.
        prompt, output = turns["prompt_tokens"], turns["output_tokens"]
        cacheable_blocks = (prompt + output) // self.block_size
        head_blocks = system_tokens // self.block_size
        head_start = exclusive_sum(head_blocks)
        tail_blocks = np.empty(len(prompt_of), np.int64)
        # Rows are in order of time and prompts only grow: what stays is each session's last row.
        tail_blocks[session] = np.maximum(ceil_div(prompt, self.block_size), cacheable_blocks)
        tail_blocks -= head_blocks[prompt_of]
        tail_start = int(head_blocks.sum()) + exclusive_sum(tail_blocks)

        tape = two_part_tape(
            block_size=self.block_size,
            arrival=turns["arrival"],
            prompt_tokens=prompt,
            output_tokens=output,
            cacheable_blocks=cacheable_blocks,
            head_start=head_start[prompt_of][session],
            head_blocks=head_blocks[prompt_of][session],
            tail_start=tail_start[session],
        )
        tape.requests["session"] = session
        if self.closed_loop:
            _follow_up(tape.requests, np.full(len(prompt_of), NO_ROW))
            link_rows(tape.requests, np.arange(len(tape.requests)))
        return tape

    def _steady_state(
        self, system_tokens: NDArray[np.int64], sources: list[np.random.Generator]
    ) -> tuple[NDArray[np.void], NDArray[np.int64]]:
        """The first `num_requests` turns after time 0, sorted, and the sessions' system prompts.

        Sessions are drawn up to a horizon, the last one's start; before it nothing is missing.
        """
        batches: list[NDArray[np.void]] = []
        prompt_of: list[NDArray[np.int64]] = []
        num_sessions = horizon = missing = 0
        while not batches or missing > 0:
            # 10 % more than expected, so that a second round is rare.
            starts = int(1.1 * (missing or self.num_requests) / self.mean_turns) + 8
            first, past, turns, horizon = self._draw_sessions(horizon, starts, sources)
            popularity = zipf_weights(self.num_system_prompts, self.zipf)
            prompt_of.append(choose(popularity, sources[3], len(first)))
            batch = self._play(first, past, turns, system_tokens[prompt_of[-1]], sources[4:])
            batch["session"] += num_sessions
            num_sessions += len(first)
            batches.append(batch)
            missing = self.num_requests - sum(
                int(np.count_nonzero(played["arrival"] <= horizon)) for played in batches
            )
        played = np.concatenate(batches)
        played = played[played["arrival"] <= horizon]
        order = np.argsort(played["arrival"], kind="stable")[: self.num_requests]
        return played[order], np.concatenate(prompt_of)

    def _draw_sessions(
        self, since: int, starts: int, sources: list[np.random.Generator]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
        """Sessions first seen after `since` and up to a horizon, in order (see the file's head).

        Returns ticks of the first turn seen, turns before it, turns of the session, all [S], and
        the horizon: the last of `starts` session starts.
        """
        turns = distribution("turns", self.turns)
        number = np.arange(turns.low, turns.high + 1)
        probability = turns.probabilities()
        rate = self.arrivals.rate / self.mean_turns
        started = self.arrivals.at_rate(rate).ticks(sources[0], starts, since)
        horizon = int(started[-1])

        span = horizon - since
        expected = rate * (float(probability @ number) - 1.0) * float(to_seconds(span))
        num_follow_ups = sources[1].poisson(max(0.0, expected))
        time = since + (sources[1].random(num_follow_ups) * span).astype(np.int64)
        carried = time[self._gaps(sources[1], num_follow_ups) > time]
        carried_turns = np.empty(0, np.int64)
        if len(carried) > 0:
            biased = choose(probability * (number - 1), sources[2], len(carried))
            carried_turns = number[biased]

        first = np.concatenate([started, carried])
        past = np.concatenate([np.zeros(starts, np.int64), sources[2].integers(1, carried_turns)])
        total = np.concatenate([turns.sample(sources[2], starts), carried_turns])
        order = np.argsort(first, kind="stable")
        return first[order], past[order], total[order], horizon

    def _gaps(self, generator: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Gaps before follow-ups, in ticks."""
        return sample_ticks(duration("think_time", self.think_time), generator, count)

    def _play(
        self,
        first: NDArray[np.int64],
        past: NDArray[np.int64],
        turns: NDArray[np.int64],
        system_tokens: NDArray[np.int64],
        sources: list[np.random.Generator],
    ) -> NDArray[np.void]:
        """All turns of these sessions after their past ones, as _TURN records."""
        draws = int(turns.sum())
        gaps = draws - int(past.sum())
        played = np.empty(gaps, _TURN)
        added = self._added
        user = added.between.sample(sources[1], draws)
        begin, several = exclusive_sum(turns), turns > 1
        for length, rows, source in (
            (added.opening, begin[several], sources[3]),
            (added.closing, (begin + turns - 1)[several], sources[4]),
            (added.lone, begin[~several], sources[5]),
        ):
            if length is not added.between:
                user[rows] = length.sample(source, len(rows))
        written = _play_sessions(
            first,
            past,
            turns,
            system_tokens,
            self._gaps(sources[0], gaps),
            user,
            distribution("output_tokens", self.output_tokens).sample(sources[2], draws),
            self.max_prompt_tokens,
            played,
        )
        return played[:written]
