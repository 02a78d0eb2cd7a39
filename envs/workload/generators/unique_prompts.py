"""Unique prompts: no request shares a block with another, so that routing is load balancing.

The lengths are those of Azure's conversation trace of 2023, which has no prefix identities
(`traces.md` §3.2).
"""

from dataclasses import dataclass

import numpy as np

from prefixgym.envs.workload.arrivals import Arrivals
from prefixgym.envs.workload.chains import ceil_div, exclusive_sum, two_part_tape
from prefixgym.envs.workload.distributions import Empirical
from prefixgym.envs.workload.fields import check_whole
from prefixgym.envs.workload.lengths import Length, distribution
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.tape import Tape

_LEVELS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
_PROMPT_TOKENS = Empirical((2, 207, 396, 1020, 1189, 2734, 4083, 4142, 6179, 14_050), _LEVELS)
_OUTPUT_TOKENS = Empirical((7, 54, 85, 129, 395, 424, 451, 601, 954, 1000), _LEVELS)


@dataclass(frozen=True)
class UniquePrompts:
    """Every request is a session of its own and repeats nothing.

    Attributes:
        num_requests: rows of a tape.
        arrivals: when they come.
        block_size: tokens in a block.
        prompt_tokens: length of a prompt.
        output_tokens: length of an answer, independent of its prompt's.
    """

    num_requests: int
    arrivals: Arrivals
    block_size: int
    prompt_tokens: Length = _PROMPT_TOKENS
    output_tokens: Length = _OUTPUT_TOKENS

    def __post_init__(self) -> None:
        check_whole("num_requests", self.num_requests, 1, 2**31 - 1)
        check_whole("block_size", self.block_size, 1, 2**31 - 1)
        distribution("prompt_tokens", self.prompt_tokens)
        distribution("output_tokens", self.output_tokens)

    @property
    def num_sessions(self) -> int:
        """Every request is a session."""
        return self.num_requests

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest possible prompt."""
        return -(-distribution("prompt_tokens", self.prompt_tokens).high // self.block_size)

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names; all but its arrivals are the same at every rate."""
        arrival, prompts, outputs = streams(seed, 3)
        prompt = distribution("prompt_tokens", self.prompt_tokens)
        prompt_tokens = prompt.sample(prompts, self.num_requests)
        output = distribution("output_tokens", self.output_tokens)
        nothing = np.zeros(self.num_requests, np.int64)
        return two_part_tape(
            block_size=self.block_size,
            arrival=self.arrivals.ticks(arrival, self.num_requests),
            prompt_tokens=prompt_tokens,
            output_tokens=output.sample(outputs, self.num_requests),
            cacheable_blocks=prompt_tokens // self.block_size,
            head_start=nothing,
            head_blocks=nothing,
            tail_start=exclusive_sum(ceil_div(prompt_tokens, self.block_size)),
        )
