"""Shared system prompts: groups of requests that begin alike and then ask their own question.

The conventional synthetic workload for prefix caches (`traces.md` §5), there with uniform
popularity; real traces have popular groups, hence the Zipf exponent, and those do not stay popular
for ever.
"""

import math
from dataclasses import dataclass

import numpy as np

from prefixgym.envs.workload.arrivals import Arrivals
from prefixgym.envs.workload.chains import ceil_div, exclusive_sum, two_part_tape
from prefixgym.envs.workload.fields import check_number, check_whole
from prefixgym.envs.workload.generators.changing_popularity import HotPrefixes, replaced
from prefixgym.envs.workload.lengths import Length, distribution
from prefixgym.envs.workload.popularity import choose, zipf_weights
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.tape import Tape

_MOST_ROWS = 2**31 - 1


@dataclass(frozen=True)
class SharedPrompts:
    """Each request draws a group by popularity, and a question of that group uniformly.

    A group's system prompt and a question keep their lengths whenever they return. Outputs are
    sampled anew for each request, so two requests with one question share its prompt's blocks but
    none that decoding fills: `cacheable_blocks` are the prompt's full blocks.

    Attributes:
        num_requests: rows of a tape.
        arrivals: when they come.
        block_size: tokens in a block.
        num_groups: system prompts.
        prompts_per_group: questions of a group, each a session (a user who repeats it);
            None: no question is asked twice, each is a session.
        zipf: exponent of the groups' popularity; 0 is uniform.
        half_life: requests after which half of the groups have made way for new ones, which nobody
            has asked for before; inf: the groups stay. See `changing_popularity.py`.
        hot_prefixes: bursts in which many requests want one group; None: there are none.
        system_tokens: length of a group's system prompt; 0 shares nothing.
        question_tokens: length of a question.
        output_tokens: length of an answer.
    """

    num_requests: int
    arrivals: Arrivals
    block_size: int
    num_groups: int
    prompts_per_group: int | None
    system_tokens: Length
    question_tokens: Length
    output_tokens: Length
    zipf: float = 0.0
    half_life: float = math.inf
    hot_prefixes: HotPrefixes | None = None

    def __post_init__(self) -> None:
        check_whole("num_requests", self.num_requests, 1, _MOST_ROWS)
        check_whole("block_size", self.block_size, 1, _MOST_ROWS)
        check_whole("num_groups", self.num_groups, 1, _MOST_ROWS)
        if self.prompts_per_group is not None:
            most = _MOST_ROWS // self.num_groups
            check_whole("prompts_per_group", self.prompts_per_group, 1, most)
        check_number("zipf", self.zipf, 0)
        if self.half_life != math.inf:
            check_number("half_life", self.half_life, 0, above=True)
        distribution("system_tokens", self.system_tokens, least=0)
        distribution("question_tokens", self.question_tokens)
        distribution("output_tokens", self.output_tokens)

    @classmethod
    def llm_d(cls, num_requests: int, arrivals: Arrivals, block_size: int) -> "SharedPrompts":
        """llm-d-benchmark's 150 × 5 prompts of 6,000 + 1,200 tokens, 1,000 out.

        Its guide `precise-prefix-cache-routing` plays them as Poisson at 3 to 60 requests/s.
        """
        return cls(num_requests, arrivals, block_size, 150, 5, 6000, 1200, 1000)

    @classmethod
    def sglang(cls, num_requests: int, arrivals: Arrivals, block_size: int) -> "SharedPrompts":
        """SGLang's 64 × 16 prompts of 2,048 + 128 tokens, 256 out.

        The defaults of `bench_serving --dataset-name generated-shared-prefix`.
        """
        return cls(num_requests, arrivals, block_size, 64, 16, 2048, 128, 256)

    @property
    def num_sessions(self) -> int:
        """Number of questions, or of requests if only those that are asked have a number."""
        if self.prompts_per_group is None or self.half_life < math.inf:
            return self.num_requests
        return self.num_groups * self.prompts_per_group

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest possible prompt."""
        system = distribution("system_tokens", self.system_tokens, least=0)
        question = distribution("question_tokens", self.question_tokens)
        return -(-(system.high + question.high) // self.block_size)

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names; all but its arrivals are the same at every rate."""
        arrival, popularity, repeats, systems, questions, outputs, drift, bursts = streams(seed, 8)
        group = choose(zipf_weights(self.num_groups, self.zipf), popularity, self.num_requests)
        num_groups = self.num_groups
        if self.hot_prefixes is not None:
            group = self.hot_prefixes.redirect(group, num_groups, bursts)
        if self.half_life < math.inf:
            group, rank_of = replaced(group, self.half_life, drift)
            num_groups = len(rank_of)
        if self.prompts_per_group is None:
            question = np.arange(self.num_requests)
            group_of = group
        else:
            question = group * self.prompts_per_group
            question += repeats.integers(self.prompts_per_group, size=self.num_requests)
            group_of = np.repeat(np.arange(self.num_groups), self.prompts_per_group)
            if self.half_life < math.inf:
                asked, question = np.unique(question, return_inverse=True)
                group_of = asked // self.prompts_per_group

        system = distribution("system_tokens", self.system_tokens, least=0)
        system_tokens = system.sample(systems, num_groups)
        length = distribution("question_tokens", self.question_tokens)
        prompt_tokens = system_tokens[group_of] + length.sample(questions, len(group_of))
        # Ids: the groups' blocks one after another, then the questions' likewise.
        head_blocks = system_tokens // self.block_size
        head_start = exclusive_sum(head_blocks)
        tail_blocks = ceil_div(prompt_tokens, self.block_size) - head_blocks[group_of]
        tail_start = int(head_blocks.sum()) + exclusive_sum(tail_blocks)

        prompt = prompt_tokens[question]
        output = distribution("output_tokens", self.output_tokens)
        tape = two_part_tape(
            block_size=self.block_size,
            arrival=self.arrivals.ticks(arrival, self.num_requests),
            prompt_tokens=prompt,
            output_tokens=output.sample(outputs, self.num_requests),
            cacheable_blocks=prompt // self.block_size,
            head_start=head_start[group],
            head_blocks=head_blocks[group],
            tail_start=tail_start[question],
        )
        tape.requests["session"] = question
        return tape
