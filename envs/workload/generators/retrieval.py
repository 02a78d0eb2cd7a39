"""Retrieval-augmented generation: a system prompt, passages from a library, then a question.

Popular passages return all the time, but each time in another order and company, and a prefix ends
at the first difference. In RAGPulse 72 % of all prompt tokens repeat earlier content and only
31.5 % lie in a common prefix (`traces.md` §3.3): a workload that shows what prefix caches cannot
get.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel
from prefixgym.envs.rng import mix64, uniform
from prefixgym.envs.workload.arrivals import Arrivals
from prefixgym.envs.workload.chains import ceil_div, chained_tape, exclusive_sum
from prefixgym.envs.workload.distributions import LogNormal
from prefixgym.envs.workload.fields import check_number, check_whole
from prefixgym.envs.workload.lengths import Length, distribution
from prefixgym.envs.workload.popularity import choose, zipf_weights
from prefixgym.envs.workload.streams import streams
from prefixgym.envs.workload.tape import Tape

_LEAST_LEFT = 1e-3
_PASSAGE_TOKENS = LogNormal(median=260, sigma=0.4, low=20, high=512)
_QUESTION_TOKENS = LogNormal(median=430, sigma=1.0, high=4000)
_OUTPUT_TOKENS = LogNormal(median=234, sigma=0.6, high=2000)


@kernel
def _draw_passages(
    key: np.uint64,
    shares: NDArray[np.float64],
    guide: NDArray[np.int64],
    number: NDArray[np.int64],
    passages: NDArray[np.int64],
) -> None:
    """Fill row r of `passages` [R, K] with number[r] different ones in random order, then -1.

    They are drawn one after another by popularity, without repetition: the first passage whose
    cumulative share is above a random number. guide[i] is that for the number i / guide.size.
    """
    counter = 0
    for r in range(number.size):
        for j in range(passages.shape[1]):
            passages[r, j] = -1
        for j in range(number[r]):
            while True:
                point = uniform(key, counter)
                counter += 1
                drawn = guide[int(point * guide.size)]
                while shares[drawn] <= point:
                    drawn += 1
                repeated = False
                for i in range(j):
                    repeated |= passages[r, i] == drawn
                if not repeated:
                    break
            # Popular ones tend to be drawn first: put this one anywhere among those before.
            place = int(uniform(key, counter) * (j + 1))
            counter += 1
            passages[r, j] = passages[r, place]
            passages[r, place] = drawn


@kernel
def _number_heads(
    system_of: NDArray[np.int64],
    passages: NDArray[np.int64],
    system_tokens: NDArray[np.int64],
    passage_tokens: NDArray[np.int64],
    block_size: int,
    table: NDArray[np.int64],
    head_tokens: NDArray[np.int64],
    head_start: NDArray[np.int64],
    head_blocks: NDArray[np.int64],
) -> int:
    """Number the blocks before the questions: equal ids for equal beginnings, only for those.

    A beginning is a system prompt and the first j passages in their order. Its new blocks are those
    that end within passage j; the first of them may begin before it.

    Args:
        system_of: which system prompt a request has, [R].
        passages: its passages in order, then -1, [R, K].
        system_tokens: lengths, [systems].
        passage_tokens: lengths, [passages].
        block_size: tokens in a block.
        table: a hash table, [2^n, 3], all -1. A slot is for a beginning and its next passage, and
            holds the number of this longer beginning and its first id.
        head_tokens: out, tokens before the question, [R].
        head_start, head_blocks: out, first ids and numbers of blocks, [R, 1 + K].

    Returns:
        The first unused id.
    """
    next_id = 0
    system_start = np.empty(system_tokens.size, np.int64)
    for s in range(system_tokens.size):
        system_start[s] = next_id
        next_id += system_tokens[s] // block_size
    beginnings = system_tokens.size
    for r in range(system_of.size):
        beginning = system_of[r]
        tokens = system_tokens[beginning]
        head_start[r, 0] = system_start[beginning]
        head_blocks[r, 0] = tokens // block_size
        for j in range(passages.shape[1]):
            passage = passages[r, j]
            if passage < 0:
                break
            key = beginning * passage_tokens.size + passage
            slot = np.int64(mix64(np.uint64(key)) & np.uint64(len(table) - 1))
            while table[slot, 0] != -1 and table[slot, 0] != key:
                slot = (slot + 1) & (len(table) - 1)
            longer = tokens + passage_tokens[passage]
            blocks = longer // block_size - tokens // block_size
            if table[slot, 0] == -1:
                table[slot, 0] = key
                table[slot, 1] = beginnings
                table[slot, 2] = next_id
                beginnings += 1
                next_id += blocks
            beginning = table[slot, 1]
            head_start[r, j + 1] = table[slot, 2]
            head_blocks[r, j + 1] = blocks
            tokens = longer
        head_tokens[r] = tokens
    return next_id


@dataclass(frozen=True)
class RetrievedPassages:
    """Each request retrieves passages by popularity and gets them by relevance: in random order.

    System prompts and passages keep their lengths whenever they return. Every request is a session.

    Attributes:
        num_requests: rows of a tape.
        arrivals: when they come.
        block_size: tokens in a block.
        num_system_prompts: applications, whose popularity is Zipf's with exponent 2, as RAGPulse's
            three are (77 / 20 / 4 %).
        num_passages: in the library.
        zipf: exponent of the passages' popularity; 0 is uniform.
        passages: retrieved for a request, all different.
        system_tokens: length of a system prompt.
        passage_tokens: length of a passage.
        question_tokens: length of what belongs to the request alone: history, search results,
            question.
        output_tokens: length of an answer.
    """

    num_requests: int
    arrivals: Arrivals
    block_size: int
    num_system_prompts: int = 3
    num_passages: int = 3500
    zipf: float = 1.2
    passages: Length = (4, 8)
    system_tokens: Length = 650
    passage_tokens: Length = _PASSAGE_TOKENS
    question_tokens: Length = _QUESTION_TOKENS
    output_tokens: Length = _OUTPUT_TOKENS

    def __post_init__(self) -> None:
        check_whole("num_requests", self.num_requests, 1, 2**31 - 1)
        check_whole("block_size", self.block_size, 1, 2**31 - 1)
        check_whole("num_system_prompts", self.num_system_prompts, 1, 2**31 - 1)
        check_whole("num_passages", self.num_passages, 1, 2**31 - 1)
        check_number("zipf", self.zipf, 0)
        most = distribution("passages", self.passages, least=0).high
        if most > self.num_passages:
            raise ValueError(
                f"passages: found up to {most}, must be at most num_passages, {self.num_passages}"
            )
        # The last of many is drawn until it is none of those before, which may be the popular ones.
        weights = zipf_weights(self.num_passages, self.zipf)
        if weights[max(0, most - 1) :].sum() < _LEAST_LEFT * weights.sum():
            raise ValueError(
                f"passages: found up to {most}, too many for zipf = {self.zipf}: all but the most "
                f"popular {most - 1} must have a share of at least {_LEAST_LEFT}"
            )
        distribution("system_tokens", self.system_tokens, least=0)
        distribution("passage_tokens", self.passage_tokens)
        distribution("question_tokens", self.question_tokens)
        distribution("output_tokens", self.output_tokens)

    @property
    def num_sessions(self) -> int:
        """Every request is a session."""
        return self.num_requests

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest possible prompt."""
        longest = (
            distribution("system_tokens", self.system_tokens, least=0).high
            + distribution("passages", self.passages, least=0).high
            * distribution("passage_tokens", self.passage_tokens).high
            + distribution("question_tokens", self.question_tokens).high
        )
        return -(-longest // self.block_size)

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names; all but its arrivals are the same at every rate."""
        arrival, system, numbers, drawn, systems, lengths, questions, outputs = streams(seed, 8)
        count = self.num_requests
        system_of = choose(zipf_weights(self.num_system_prompts, 2.0), system, count)
        number = distribution("passages", self.passages, least=0).sample(numbers, count)
        shares = np.cumsum(zipf_weights(self.num_passages, self.zipf))
        shares /= shares[-1]
        guide = np.searchsorted(shares, np.arange(len(shares)) / len(shares), side="right")
        passages = np.empty((count, int(number.max())), np.int64)
        key = drawn.integers(2**64, dtype=np.uint64)
        _draw_passages(key, shares, guide, number, passages)

        system_tokens = distribution("system_tokens", self.system_tokens, least=0).sample(
            systems, self.num_system_prompts
        )
        passage_tokens = distribution("passage_tokens", self.passage_tokens).sample(
            lengths, self.num_passages
        )
        head_tokens = np.empty(count, np.int64)
        head_start = np.zeros((count, 1 + passages.shape[1]), np.int64)
        head_blocks = np.zeros_like(head_start)
        tail_first = _number_heads(
            system_of,
            passages,
            system_tokens,
            passage_tokens,
            self.block_size,
            np.full((2 ** (3 * int(number.sum()) // 2).bit_length(), 3), -1),
            head_tokens,
            head_start,
            head_blocks,
        )
        question = distribution("question_tokens", self.question_tokens).sample(questions, count)
        prompt = head_tokens + question
        tail_blocks = ceil_div(prompt, self.block_size) - head_tokens // self.block_size
        return chained_tape(
            block_size=self.block_size,
            arrival=self.arrivals.ticks(arrival, count),
            prompt_tokens=prompt,
            output_tokens=distribution("output_tokens", self.output_tokens).sample(outputs, count),
            cacheable_blocks=prompt // self.block_size,
            heads=list(zip(head_start.T, head_blocks.T, strict=True)),
            tail_start=tail_first + exclusive_sum(tail_blocks),
        )
